"""Opening the journal by configuration alone."""

import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage, open_journal
from squid_dagster.protocol.errors import InvalidArgument, SchemaOutdated, StorageUnavailable
from tests.facts import started
from tests.journal.access import eventually
from tests.servers.proxy import Proxy


def test_a_server_is_not_migrated_unless_asked(postgres_url: str, schema: str) -> None:
    environ = {"SQUID_DATABASE_URL": postgres_url, "SQUID_SCHEMA": schema}

    with pytest.raises(SchemaOutdated, match="squid db upgrade"):
        open_journal(environ=environ)
    storage = open_journal(environ={**environ, "SQUID_AUTO_MIGRATE": "true"})
    again = open_journal(environ=environ)

    assert storage.append("squid:run:run-1", [started("run-1")]) == again.revision("squid:run:run-1") == 1
    storage.close()
    again.close()


def test_the_first_log_line_names_the_database_and_no_credential(
    postgres_url: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    secret = postgres_url.replace("postgres@", "postgres:hunter2@")
    with caplog.at_level(logging.INFO, "squid_dagster"):
        open_journal(secret, schema=schema, environ={"SQUID_AUTO_MIGRATE": "1"}).close()

    assert "journal: Postgres at" in caplog.messages[0]
    assert f"schema {schema}" in caplog.messages[0]
    assert "hunter2" not in caplog.text


def test_an_unreachable_database_is_told_without_its_password(schema: str) -> None:
    with pytest.raises(StorageUnavailable) as caught:
        open_journal("postgresql://me:hunter2@127.0.0.1:1/app", schema=schema, environ={})
    assert "127.0.0.1" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value.__cause__)


def test_an_unusable_schema_name_is_refused(postgres_url: str) -> None:
    with pytest.raises(InvalidArgument, match="'Not A Name'"):
        open_journal(postgres_url, schema="Not A Name", environ={})


def test_a_database_that_is_not_there_is_waited_for_as_long_as_one_says(
    postgres: PostgresStorage, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy(postgres_url) as proxy, ThreadPoolExecutor(1) as pool, caplog.at_level(logging.INFO):
        proxy.refuse()
        url = proxy.url(postgres_url)
        with pytest.raises(StorageUnavailable, match="refused"):
            open_journal(url, schema=postgres.schema, environ={}, wait=timedelta(seconds=0.2))
        caplog.clear()
        opening = pool.submit(open_journal, url, schema=postgres.schema, environ={}, wait=None)
        eventually(lambda: "waits for the database" in caplog.text)
        proxy.resume()
        opening.result(30).close()
    lines = [message for message in caplog.messages if "the database" in message]
    assert len(lines) == 2
    assert lines[1].startswith("opening the journal goes on: the database is there after ")


def test_a_database_that_is_just_starting_is_waited_for(postgres: PostgresStorage, postgres_url: str) -> None:
    with Proxy(postgres_url) as proxy, ThreadPoolExecutor(1) as pool:
        proxy.hold()  # it takes connections, and does not answer yet
        opening = pool.submit(
            Squid.connect, proxy.url(postgres_url), schema=postgres.schema, wait=timedelta(seconds=60)
        )
        eventually(lambda: proxy.accepted > 0)
        proxy.cut()
        proxy.resume()
        opening.result(30).close()


@pytest.mark.parametrize("wait", [timedelta(seconds=-1), 5, "long"])
def test_a_wait_that_is_none_is_refused(postgres_url: str, wait: Any) -> None:
    with pytest.raises(InvalidArgument, match="wait must be a timedelta"):
        open_journal(postgres_url, environ={}, wait=wait)
