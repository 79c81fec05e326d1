"""The live views can be dropped at any time: they come back equal in every column, while others write."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, LiteralString

import pytest

from squid_dagster.journal import Append, PostgresDispatchStore, PostgresStorage, rebuild_views, verify
from squid_dagster.journal.postgres.connection.pool import pooled_connection
from squid_dagster.journal.postgres.schema.names import VIEWS, lock_number
from squid_dagster.journal.postgres.views.rebuild import Rebuild
from squid_dagster.protocol.errors import StorageUnavailable, ViewsMissing
from tests.facts import queue_paused, scheduled, started
from tests.journal.access import raw
from tests.journal.writers import start
from tests.processes import Child, children

_DUMP: dict[str, LiteralString] = {
    "runs": "SELECT to_json(v)::text FROM {schema}.runs v ORDER BY run_id",
    "attempts": "SELECT to_json(v)::text FROM {schema}.attempts v ORDER BY run_id, runnable_key",
    "children": "SELECT to_json(v)::text FROM {schema}.children v ORDER BY run_id, child_run_id",
    "queues": "SELECT to_json(v)::text FROM {schema}.queues v ORDER BY queue",
    "anomalies": "SELECT to_json(v)::text FROM {schema}.anomalies v ORDER BY thread, seq, ordinal",
}
# The order of keys in an input is not part of what it says.
_SHAPE: LiteralString = """SELECT c.relname, a.attname, a.atttypid::regtype::text, a.attnotnull
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE n.nspname = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, a.attnum"""


def _dump(storage: PostgresStorage) -> dict[str, list[Any]]:
    return {view: storage.rows(text) for view, text in _DUMP.items()}


def _drop_views(storage: PostgresStorage) -> None:
    with pooled_connection(storage.engine) as connection:
        for view in VIEWS:
            connection.execute(f'DROP TABLE "{storage.schema}"."{view}"'.encode())


@contextmanager
def _filled(storage: PostgresStorage) -> Iterator[tuple[Rebuild, int]]:
    """Yield a rebuild that has filled its shadow tables up to a cut, and has yet to swap them in."""
    with pooled_connection(storage.engine) as connection:
        rebuild = Rebuild(storage, connection)
        rebuild.create_shadows()
        covered = storage.cut()
        rebuild.fill(covered, lambda _: None)
        yield rebuild, covered


def test_views_that_were_dropped_come_back_equal(postgres: PostgresStorage) -> None:
    start(postgres, [f"run-{n}" for n in range(50)])
    postgres.append("squid:dispatch:default", [queue_paused()])
    before, shape = _dump(postgres), postgres.rows(_SHAPE, postgres.schema)
    _drop_views(postgres)

    rebuilt = rebuild_views(postgres)

    assert _dump(postgres) == before
    assert postgres.rows(_SHAPE, postgres.schema) == shape
    assert rebuilt.runs == 50


def test_while_views_are_missing_appends_fail_and_write_nothing(postgres: PostgresStorage) -> None:
    start(postgres, ["run-1"])
    _drop_views(postgres)
    revision, cut = postgres.revision("squid:run:run-2"), postgres.cut()

    with pytest.raises(ViewsMissing, match="rebuild_views"):
        postgres.append("squid:run:run-2", [started("run-2")])
    with pytest.raises(ViewsMissing, match="rebuild_views"):
        PostgresDispatchStore(postgres).claim("default", "worker")

    assert postgres.revision("squid:run:run-2") == revision == 0
    assert postgres.cut() == cut


def test_writers_lose_nothing_while_views_are_rebuilt_and_dropped_under_them(
    postgres: PostgresStorage, postgres_url: str
) -> None:
    with children() as crowd:
        for number in range(4):
            crowd.append(Child("tests.journal.writers", "work", postgres_url, postgres.schema, str(number), "250"))
        for child in crowd:
            child.wait_for_lines(10)
        for drop_first in (False, True, False):
            if drop_first:
                _drop_views(postgres)
            rebuild_views(postgres)
            assert verify(postgres) == []
        assert [child.end() for child in crowd] == [0, 0, 0, 0], [child.errors() for child in crowd]

    before = _dump(postgres)
    rebuild_views(postgres)
    assert _dump(postgres) == before
    assert before["anomalies"] == []
    assert len(before["runs"]) > 20
    assert verify(postgres) == []


def test_a_rebuild_that_crashed_is_cleaned_up_by_the_next(postgres: PostgresStorage) -> None:
    start(postgres, ["run-1", "run-2"])
    before = _dump(postgres)
    with _filled(postgres):
        pass  # and no further

    rebuild_views(postgres)

    assert _dump(postgres) == before
    assert not postgres.rows(
        "SELECT FROM pg_tables WHERE schemaname = %s AND tablename LIKE '%%shadow'", postgres.schema
    )


def test_facts_that_come_in_after_the_fill_are_in_the_swapped_views(postgres: PostgresStorage) -> None:
    start(postgres, ["run-1"])
    with _filled(postgres) as (rebuild, covered):
        start(postgres, ["run-2"])
        postgres.append("squid:dispatch:default", [scheduled("run-1", step="late", at=1), queue_paused()])
        before = _dump(postgres)

        end, touched = rebuild.swap(covered)

    assert (end, touched) == (postgres.cut(), 2)
    assert _dump(postgres) == before


def test_a_commit_whose_announcement_outlives_it_is_in_the_swapped_views(postgres: PostgresStorage) -> None:
    # given a commit that has ended, and of whose locks the announcement is released last
    start(postgres, ["before"])
    with raw(postgres) as other:
        other.execute(
            "SELECT pg_advisory_lock_shared(%s, (last_value & 4294967295)::bit(32)::int) FROM journal_numbers",
            (lock_number(postgres.schema, "positions"),),
        )
        start(postgres, ["after"])
        expected = _dump(postgres)
        # when the views are rebuilt at that moment, then they hold it
        assert rebuild_views(postgres).tail_runs == 1
        assert _dump(postgres) == expected
    assert verify(postgres) == []


def test_a_second_rebuild_at_the_same_time_is_refused(postgres: PostgresStorage) -> None:
    with pooled_connection(postgres.engine) as connection:
        number = lock_number(postgres.schema, "rebuild")
        connection.execute("SELECT pg_advisory_lock(%s)", (number,))
        with pytest.raises(StorageUnavailable, match="another rebuild"):
            rebuild_views(postgres)
        connection.execute("SELECT pg_advisory_unlock(%s)", (number,))


def test_views_that_were_made_before_an_upgrade_are_not_swapped_in_after_it(postgres: PostgresStorage) -> None:
    # given shadows that are filled
    start(postgres, ["run-1"])
    before = _dump(postgres)
    with _filled(postgres) as (rebuild, covered), raw(postgres) as connection:
        # when newer code upgrades the schema meanwhile
        connection.execute("UPDATE squid_schema SET version = version + 1")
        # then they are refused, and the views stay as they were
        with pytest.raises(StorageUnavailable, match="while its views were rebuilt"):
            rebuild.swap(covered)
    assert _dump(postgres) == before


def test_many_pages_of_runs_are_folded_as_one_journal(
    postgres: PostgresStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(3)
    for batch in range(10):
        start(postgres, [f"run-{batch}-{n}" for n in range(rng.randint(1, 9))])
    before = _dump(postgres)
    progress: list[int] = []
    monkeypatch.setattr("squid_dagster.journal.postgres.views.rebuild._PAGE", 7)

    rebuilt = rebuild_views(postgres, progress.append)

    assert _dump(postgres) == before
    assert progress == sorted(progress)
    assert progress[-1] == rebuilt.entries == len(postgres.read_between(0, postgres.cut()))


def test_a_claim_cannot_slip_past_the_swap(postgres: PostgresStorage) -> None:
    start(postgres, ["run-1"])
    with _filled(postgres) as (rebuild, covered):
        (claim,) = PostgresDispatchStore(postgres).claim("default", "worker")
        rebuild.swap(covered)

    assert PostgresDispatchStore(postgres).claim("default", "rival") == []
    (answer,) = PostgresDispatchStore(postgres).heartbeat([claim.ref])
    assert answer.unwrap().claim_id == claim.ref.claim_id
    assert verify(postgres) == []


def test_an_append_needs_no_view_row_of_other_runs(postgres: PostgresStorage) -> None:
    postgres.commit([Append("squid:run:run-1", [started("run-1")]), Append("squid:run:run-2", [started("run-2")])])
    with pooled_connection(postgres.engine) as connection, connection.transaction():
        connection.execute(f"SELECT FROM \"{postgres.schema}\".runs WHERE run_id = 'run-1' FOR UPDATE".encode())

        assert postgres.append("squid:run:run-3", [started("run-3")]) == 1
