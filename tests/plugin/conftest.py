"""What the tests of the plugin share: a journal that a `SquidResource` leads to, and Dagster instances."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dagster as dg
import pytest

from squid_dagster.api import Squid
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.plugin import SquidResource
from squid_dagster.plugin.engines import close_all

URL_VARIABLE = "SQUID_PLUGIN_TEST_URL"


@pytest.fixture(autouse=True)
def _close_connections() -> Iterator[None]:
    yield
    close_all()


@pytest.fixture(scope="module")
def spark_while_needed() -> Iterator[None]:
    """Ends the Spark session that a module has begun; one of other tests stays, since a process has only one."""
    from pyspark.sql import SparkSession

    before = SparkSession.getActiveSession()
    yield
    if before is None and (session := SparkSession.getActiveSession()) is not None:
        session.stop()


@pytest.fixture
def resource(postgres: PostgresStorage, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> SquidResource:
    """The resource of a migrated, empty journal, whose URL is in the environment."""
    monkeypatch.setenv(URL_VARIABLE, postgres_url)
    return SquidResource(url=dg.EnvVar(URL_VARIABLE), schema_name=postgres.schema)


@pytest.fixture
def make_squid(postgres: PostgresStorage) -> Iterator[Callable[..., Squid]]:
    """Makes a `Squid` on the same journal, to start runs and look at them from outside of Dagster."""
    made: list[Squid] = []

    def make(workflows: Sequence[Any] = (), **options: Any) -> Squid:
        made.append(Squid(postgres, workflows, **options))
        return made[-1]

    yield make
    for squid in made:
        squid.close()


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """A Dagster instance in memory."""
    with dg.DagsterInstance.ephemeral() as made:
        yield made
