"""Messages without a cursor: every value arrives as it was, and errors are those of a cursor."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.postgres.connection.message import array, execute, json_of, receive, send
from squid_dagster.journal.postgres.connection.pool import PgConnection, make_engine, pooled_connection
from tests.journal.access import raw

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
zones = st.integers(-12, 14).map(lambda hours: timezone(timedelta(hours=hours)))


@pytest.fixture(scope="module")
def connection(postgres_url: str) -> Iterator[PgConnection]:
    engine = make_engine(postgres_url)
    with pooled_connection(engine) as lent:
        yield lent
    engine.dispose()


@given(texts)
def test_any_text_arrives_as_it_was(connection: PgConnection, text: str) -> None:
    assert json_of(execute(connection, b"SELECT to_json(%s::text)", (text,))[0]) == text


@given(st.lists(texts))
def test_any_texts_arrive_as_they_were(connection: PgConnection, given: list[str]) -> None:
    asked = b"SELECT json_build_array(%s::text[], %s::text[])"
    assert json_of(execute(connection, asked, (given, array(given)))[0]) == [given, given]


@given(st.timedeltas(timedelta(0), timedelta(days=10_000)))
def test_any_time_to_come_is_as_long(connection: PgConnection, given: timedelta) -> None:
    asked = b"SELECT to_json((extract(epoch FROM %s::interval) * 1000000)::bigint)"
    assert json_of(execute(connection, asked, (given,))[0]) == given // timedelta(microseconds=1)


@given(st.datetimes(datetime(1900, 1, 1), datetime(2900, 1, 1), timezones=zones))  # noqa: DTZ001  they get their zones
def test_any_moment_is_the_same(connection: PgConnection, given: datetime) -> None:
    asked = b"SELECT to_json(to_char(%s::timestamptz AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US'))"
    answer = json_of(execute(connection, asked, (given,))[0])
    assert datetime.fromisoformat(answer).replace(tzinfo=UTC) == given


def test_other_values_are_what_they_are(connection: PgConnection) -> None:
    commit = UUID(int=7)
    asked = b"SELECT json_build_array(%s::uuid, %s::int, %s::boolean, %s::boolean, %s::text)"
    answer = json_of(execute(connection, asked, (commit, -(2**31), True, False, None))[0])
    assert answer == [str(commit), -(2**31), True, False, None]
    assert json_of(execute(connection, b"SELECT NULL")[0]) is None


def test_what_cannot_be_sent_is_refused_before_it_is(connection: PgConnection) -> None:
    with pytest.raises(psycopg.DataError, match="NUL"):
        execute(connection, b"SELECT %s::text", ("a\0b",))
    assert json_of(execute(connection, b"SELECT 1")[0]) == 1


def test_what_is_refused_says_why_and_leaves_the_connection_usable(connection: PgConnection) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero) as refused:
        execute(connection, b"SELECT 1; SELECT 1 / 0; SELECT 2")
    assert refused.value.sqlstate == "22012"
    assert [json_of(answer) for answer in execute(connection, b"SELECT 3; SELECT 4")] == [3, 4]


def test_an_answer_can_be_had_later(connection: PgConnection) -> None:
    send(connection, b"SELECT 5")
    assert [json_of(answer) for answer in receive(connection)] == [5]
    assert receive(connection) == []


def test_a_connection_that_is_gone_is_said_to_be(postgres: PostgresStorage) -> None:
    with raw(postgres) as lent:
        lent.close()
        with pytest.raises(psycopg.OperationalError, match="closed"):
            execute(lent, b"SELECT 1")
