"""What a claim costs among thousands of other cards: as much as in a backlog that holds no others."""

from collections.abc import Iterator
from typing import Any, LiteralString, NamedTuple
from uuid import uuid4

import psycopg
import pytest

from squid_dagster.backlog import Backlog
from squid_dagster.backlog.postgres import store as store_module
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import BACKLOG_THREAD
from tests.facts import t, token_hash
from tests.journal.access import raw
from tests.journal.query_plans import explain

MANY = 3_000

# Copies of one card: done, waiting for others, parked, not due, or held; all of them better than any that is claimable.
_MORE: LiteralString = """
    INSERT INTO backlog
    SELECT (jsonb_populate_record(b, jsonb_build_object('id', kind || n, 'priority', 5, 'status', k.status,
               'open_dependencies', waits, 'depends_on', CASE waits WHEN 0 THEN '[]'::jsonb ELSE '["a"]'::jsonb END,
               'queued_at', b.queued_at + soon, 'claim_expires_at', b.queued_at + held))).*
      FROM backlog b CROSS JOIN generate_series(1, %s) n CROSS JOIN (VALUES
               ('done', 'done', 0, interval '0', NULL), ('gated', 'ready', 1, '0', NULL),
               ('parked', 'blocked', 0, '0', NULL), ('later', 'ready', 0, '1 day', NULL),
               ('held', 'claimed', 0, '0', interval '1 day')) k (kind, status, waits, soon, held)
     WHERE b.id = 'model'"""


@pytest.fixture(scope="module")
def large_backlog(postgres_url: str, schema_names: Iterator[str]) -> Iterator[PostgresStorage]:
    """A backlog with a few cards that can be claimed, and fifteen thousand that cannot."""
    storage = PostgresStorage(postgres_url, next(schema_names), clock=VirtualClock(t(60)))
    storage.upgrade()
    backlog = Backlog(storage)
    for name in ("model", "a", "b", *(f"c{number}" for number in range(30))):
        backlog.create(name, name, phase="M1")
    backlog.complete("model")
    with raw(storage) as connection:
        connection.execute(_MORE, (MANY,))
        connection.execute("VACUUM ANALYZE backlog")
    yield storage
    storage.close()


class MeasuredCall(NamedTuple):
    """What a function returned, and what it read of the cards for it."""

    answer: Any
    seq_scans: int
    rows: int


def _call(connection: psycopg.Connection[Any], statement: bytes, values: tuple[object, ...]) -> MeasuredCall:
    """Call a function in a transaction of its own, and read the session's own counters."""
    counters = """SELECT seq_scan, coalesce(idx_tup_fetch, 0) + seq_tup_read
                    FROM pg_stat_xact_user_tables WHERE relid = 'backlog'::regclass"""
    with connection.transaction():
        before = connection.execute(counters).fetchone()
        answer = connection.execute(statement, values).fetchone()
        after = connection.execute(counters).fetchone()
    assert before is not None
    assert answer is not None
    assert after is not None
    return MeasuredCall(answer[0], after[0] - before[0], after[1] - before[1])


def _claim(connection: psycopg.Connection[Any], storage: PostgresStorage, phase: str | None) -> MeasuredCall:
    values = (uuid4(), "w", 900, token_hash("x"), None, phase, t(60))
    return _call(connection, storage.sql(store_module._CLAIM), values)


@pytest.mark.parametrize("phase", [None, "M1"])
def test_a_claim_reads_few_cards_whatever_else_is_there(large_backlog: PostgresStorage, phase: str | None) -> None:
    with raw(large_backlog) as connection:
        for _ in range(10):  # often enough that the statements inside switch to their generic plans
            reads = _claim(connection, large_backlog, phase)
            assert reads.answer["card"] is not None
            assert reads.seq_scans == 0
            assert reads.rows <= 12


def test_a_claim_that_finds_nothing_reads_almost_nothing(large_backlog: PostgresStorage) -> None:
    with raw(large_backlog) as connection:
        reads = _claim(connection, large_backlog, "another phase")
    assert (reads.answer["card"], reads.seq_scans) == (None, 0)
    assert reads.rows <= 2


def test_completing_reads_the_card_and_those_that_wait_for_it(large_backlog: PostgresStorage) -> None:
    locking = large_backlog.sql("SELECT {schema}.lock_cards(0, %s, NULL, NULL, false, true)")
    putting = large_backlog.sql(store_module._PUT)
    with raw(large_backlog) as connection:
        for statement, values in ((locking, (["c0"],)), (putting, (None, None, ["c0"]))):
            for _ in range(10):
                reads = _call(connection, statement, values)
                assert reads.seq_scans == 0
                assert reads.rows <= 4


def test_the_statements_take_the_indexes_that_are_named_beside_them(large_backlog: PostgresStorage) -> None:
    with raw(large_backlog) as connection:
        for text, values, index in (
            (store_module._FIND, ("a",), "backlog_pkey"),
            (store_module._HISTORY, ("a",), "journal_entries_card"),
            (
                "SELECT id FROM {schema}.backlog WHERE open_dependencies > 0 AND depends_on @> to_jsonb(%s::text[])",
                (["b"],),
                "backlog_waiting",
            ),
            (
                "SELECT id FROM {schema}.backlog WHERE status = 'claimed' AND claim_expires_at <= %s",
                (t(60),),
                "backlog_leases",
            ),
        ):
            plan = explain(connection, large_backlog.sql(text), values)
            assert index in {scan.by for scan in plan.scans}, text
            assert plan.blocks < 60, text
    assert large_backlog.revision(BACKLOG_THREAD) >= 7
