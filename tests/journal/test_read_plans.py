"""What reading costs in a journal with thousands of other rows: the rows of the answer."""

from collections.abc import Iterator
from typing import LiteralString

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.postgres import storage as storage_module
from squid_dagster.journal.postgres import transaction as transaction_module
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import run_thread
from tests.facts import T0, cataloged, planned, queued, scheduled, signal, started
from tests.journal.access import put, raw
from tests.journal.query_plans import explain, reads_only

MINE, ASKED, OTHERS = "run-mine", "run-asked", 4000


# Copies of the facts of one run, as facts of many others.
_MORE_RUNS: LiteralString = """
    INSERT INTO journal_entries
    SELECT nextval('journal_numbers') << 20, replace(thread, 'run-0', 'other-' || n),
           CASE WHEN thread LIKE '%%run-0' THEN seq ELSE 1000 + n * 10 + seq END, type, 'other-' || n,
           occurred_at, data, digest
      FROM journal_entries CROSS JOIN generate_series(1, %s) n WHERE run_id = 'run-0' ORDER BY n, position"""


@pytest.fixture(scope="module")
def large_journal(postgres_url: str) -> Iterator[PostgresStorage]:
    """A journal with one run among thousands of others."""
    storage = PostgresStorage(postgres_url, "plans", clock=VirtualClock(T0))
    storage.upgrade()
    for run in ("run-0", MINE):
        put(storage, signal(run), started(run), planned(run=run), queued(run), scheduled(run), cataloged(run))
    keyed = [signal(ASKED, at=n, idempotency_key=f"key-{n}") for n in range(1, 301)]
    put(storage, signal(ASKED, idempotency_key="key-0"), started(ASKED), *keyed, *(signal(ASKED) for _ in range(300)))
    with raw(storage) as connection:
        connection.execute(_MORE_RUNS, (OTHERS,))
        put(storage, *(signal(MINE, at=n) for n in range(1, 301)))
        connection.execute("VACUUM ANALYZE journal_entries")
    yield storage
    storage.close()


def test_a_run_s_thread_is_read_by_its_index_and_nothing_else_is_touched(large_journal: PostgresStorage) -> None:
    with raw(large_journal) as connection:
        plan = explain(connection, large_journal.sql(storage_module._READ), (run_thread(MINE), 0, None))
    assert plan.rows == 303
    reads_only(plan, "journal_entries_thread")


def test_a_thread_after_a_revision_costs_what_came_after_it(large_journal: PostgresStorage) -> None:
    with raw(large_journal) as connection:
        plan = explain(connection, large_journal.sql(storage_module._READ), (run_thread(MINE), 298, None))
        page = explain(connection, large_journal.sql(storage_module._READ), (run_thread(MINE), 100, 7))
        queue = explain(
            connection, large_journal.sql(storage_module._READ), ("squid:dispatch:default", 1000 + OTHERS * 10, 5)
        )
    assert (plan.rows, page.rows, queue.rows) == (5, 7, 2)
    for scanned in (plan, page, queue):
        reads_only(scanned, "journal_entries_thread")
        assert scanned.blocks <= 20


def test_all_facts_of_one_run_are_read_by_its_index(large_journal: PostgresStorage) -> None:
    with raw(large_journal) as connection:
        whole = explain(connection, large_journal.sql(storage_module._READ_RUN), (MINE, None))
        earlier = large_journal.read_run(MINE)[4].position
        before = explain(connection, large_journal.sql(storage_module._READ_RUN), (MINE, earlier))
    assert (whole.rows, before.rows) == (306, 4)
    for scanned in (whole, before):
        reads_only(scanned, "journal_entries_run")


def test_a_command_is_found_by_its_key_however_many_its_run_has(large_journal: PostgresStorage) -> None:
    with raw(large_journal) as connection:
        for key, rows in (("key-7", 2), ("key-0", 1), ("other", 1)):
            values = {"thread": run_thread(ASKED), "key": key}
            plan = explain(connection, large_journal.sql(transaction_module._READ_SIGNALS), values)
            # then it is read by its key, beside the first entry, which is not in that index
            assert {scan.by for scan in plan.scans} - {None} == {"journal_entries_thread", "journal_entries_signals"}
            assert plan.rows == rows
            assert sum(scan.removed for scan in plan.scans) == 0
            assert plan.blocks <= 20


def test_a_slice_between_cuts_is_read_by_position(large_journal: PostgresStorage) -> None:
    end = large_journal.cut()
    with raw(large_journal) as connection:
        last = explain(connection, large_journal.sql(storage_module._READ_BETWEEN), (end - 50, end, None))
        middle = explain(connection, large_journal.sql(storage_module._READ_BETWEEN), (end // 2, end, 20))
    assert (last.rows, middle.rows) == (50, 20)
    for scanned in (last, middle):
        reads_only(scanned, "journal_entries_pkey")
        assert scanned.blocks <= 20


def test_a_cut_reads_one_place_of_one_index_and_a_revision_no_entries(large_journal: PostgresStorage) -> None:
    query = "SELECT seq_scan, idx_scan FROM pg_stat_xact_user_tables WHERE relid = 'journal_entries'::regclass"
    with raw(large_journal, autocommit=False) as connection:
        connection.execute("SELECT cut()")  # planned once per session, which reads the index, too
        before = connection.execute(query).fetchone() or (0, 0)
        connection.execute("SELECT cut()")
        connection.execute(large_journal.sql(storage_module._REVISION), (run_thread(MINE),))
        after = connection.execute(query).fetchone() or (0, 0)
    assert (after[0] - before[0], after[1] - before[1]) == (0, 1)
