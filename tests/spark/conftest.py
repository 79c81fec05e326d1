"""One Spark session for all tests here, in this process: two tasks at a time, with an event log to look into."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession
from sqlalchemy.engine import make_url

from squid_dagster.spark.session.session import open_session
from tests.journal.access import plain_url


@pytest.fixture(scope="session")
def postgres_url(postgres_url: str) -> str:
    """A database of its own on the same server: what it holds is what these tests have put there."""
    with psycopg.connect(plain_url(postgres_url), autocommit=True) as connection:
        connection.execute("CREATE DATABASE spark")
    return make_url(postgres_url).set(database="spark").render_as_string(hide_password=False)


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark writes what it did."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark(event_log: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on `local[2]`."""
    session = open_session(
        "local[2]",
        {
            "spark.sql.shuffle.partitions": "2",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": event_log.as_uri(),
            "spark.sql.warehouse.dir": tmp_path_factory.mktemp("warehouse").as_uri(),
            "spark.driver.memory": "512m",
        },
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
