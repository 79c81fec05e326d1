"""What queries cost in a journal of thousands of runs: the rows of the answer, and nothing if all is well."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, LiteralString

import pytest

from squid_dagster.journal import PostgresQueries, RunFilter
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.queries import AHEAD, RUN_STATUSES
from squid_dagster.journal.postgres import queries as queries_module
from squid_dagster.journal.postgres.queries import listing
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.facts import cataloged, indexed, planned, queued, runnable, scheduled, started, t
from tests.journal.access import put, raw
from tests.journal.query_plans import Plan, explain

RUNS, PAGE = 20_000, 50
POSITION = 1_000_000  # of the last copy that is made, and so of the newest run

# Copies of one run: the older half completed, of a workflow of their own; of the newer half one in ten has failed, and
# one in a hundred waits for a person. Every tenth has a parent, and every third was started by a schedule.
_MORE_RUNS: LiteralString = """
    INSERT INTO runs (run_id, position, status, workflow, trigger, queue, parent_run_id, started_at, start_digest,
        planned_visits, applied_visits, terminal_status, fenced, quarantined, indexed, cataloged, unfenced,
        has_children, window_start)
    SELECT 'copy-' || lpad(n::text, 6, '0'), %(newest)s - %(runs)s + n, s.status,
           CASE WHEN n <= %(runs)s / 2 THEN 'old' ELSE 'flow' || n %% 4 END, 'nightly', 'queue' || n %% 3,
           CASE WHEN n %% 10 = 0 THEN 'run-0' END, r.started_at + n * interval '1 second', r.start_digest, 1, 0,
           CASE WHEN s.status IN ('completed', 'failed') THEN s.status END, false, false, r.indexed, r.cataloged,
           false, false, CASE WHEN n %% 3 = 0 THEN r.started_at + n * interval '1 second' END
      FROM runs r CROSS JOIN generate_series(1, %(runs)s) n CROSS JOIN LATERAL (
          SELECT CASE WHEN n <= %(runs)s / 2 THEN 'completed' WHEN n %% 10 = 3 THEN 'failed'
                      WHEN n %% 100 = 7 THEN 'paused' ELSE 'running' END AS status) s
     WHERE r.run_id = 'run-0'"""
# One claimable attempt for each of the open ones, and a retry under way for one in twenty.
_MORE_ATTEMPTS: LiteralString = """
    INSERT INTO attempts
    SELECT (jsonb_populate_record(a, jsonb_build_object(
               'run_id', r.run_id, 'runnable_key', r.run_id || ':charge:1:' || k, 'position', r.position + k,
               'idempotency_key', r.run_id || ':charge:1', 'attempt_number', k,
               'status', CASE WHEN k < tries THEN 'failed' ELSE 'available' END,
               'due_at', CASE WHEN k < tries THEN NULL ELSE a.due_at END))).*
      FROM attempts a, (SELECT *, CASE WHEN position % 20 = 0 THEN 2 ELSE 1 END AS tries FROM runs
                         WHERE run_id <> 'run-0' AND terminal_status IS NULL) r, generate_series(1, r.tries) k
     WHERE a.run_id = 'run-0'"""


@pytest.fixture(scope="module")
def large_journal(postgres_url: str) -> Iterator[PostgresStorage]:
    """A healthy journal of 20,000 runs, half of which have ended."""
    storage = PostgresStorage(postgres_url, "questions", clock=VirtualClock(t(60)))
    storage.upgrade()
    put(storage, started("run-0"), planned(run="run-0"), queued("run-0"), scheduled("run-0"))
    put(storage, indexed("run-0"), cataloged("run-0"))
    with raw(storage) as connection:
        connection.execute(_MORE_RUNS, {"runs": RUNS, "newest": POSITION})
        connection.execute(_MORE_ATTEMPTS)
        connection.execute("VACUUM ANALYZE runs, attempts, anomalies, children")
    yield storage
    storage.close()


def touched(plan: Plan, table: str) -> float:
    """Return how many rows of a table were read, whether they were returned or not."""
    return sum(scan.rows + scan.removed for scan in plan.scans if scan.table == table)


def ways(plan: Plan, table: str) -> set[str | None]:
    """Return the indexes by which a table was read; assert that it was read in no other way."""
    assert not [scan for scan in plan.scans if scan.table == table and scan.kind == "Seq Scan"]
    return {scan.by for scan in plan.scans if (scan.by or "").startswith(f"{table}_")}


def ask(storage: PostgresStorage, text: LiteralString, values: dict[str, Any]) -> Plan:
    """Run a query and return what it read."""
    with raw(storage) as connection:
        return explain(connection, storage.sql(text), values)


@pytest.mark.parametrize(
    ("filters", "index"),
    [
        ({}, "runs_status"),
        ({"status": "failed"}, "runs_status"),
        ({"status": ("paused", "failed")}, "runs_status"),
        ({"open_only": True}, "runs_status"),
        ({"workflow": "flow1"}, "runs_workflow"),
        ({"workflow": "old"}, "runs_workflow"),
        ({"workflow": "flow3", "status": "failed"}, "runs_workflow"),
        ({"workflow": "old", "status": "failed"}, "runs_workflow"),
        ({"workflow": "nothing"}, "runs_workflow"),
        ({"queue": "queue1"}, "runs_queue"),
        ({"queue": "queue1", "status": "paused"}, "runs_queue"),
        ({"queue": "queue2", "open_only": True}, "runs_queue"),
        ({"parent_run_id": "run-0"}, "runs_parent"),
        ({"parent_run_id": "nobody"}, "runs_parent"),
    ],
    ids=str,
)
@pytest.mark.parametrize("before", [None, POSITION - RUNS // 4, POSITION - RUNS * 3 // 4])
def test_a_page_of_runs_costs_the_runs_on_it(
    large_journal: PostgresStorage, filters: dict[str, Any], index: str, before: int | None
) -> None:
    plan = ask(large_journal, *listing(RunFilter(**filters), before, PAGE))
    assert ways(plan, "runs") == {index}
    # each stream has its next run at hand
    assert touched(plan, "runs") <= plan.rows + len(RUN_STATUSES)
    assert plan.blocks <= 4 * (PAGE + len(RUN_STATUSES))


def test_the_runs_of_a_short_time_are_found_without_looking_at_all_others(large_journal: PostgresStorage) -> None:
    for first, last in ((RUNS - 20, None), (RUNS // 2, RUNS // 2 + 20), (RUNS + 100, None)):
        where = RunFilter(started_after=t(first), started_before=None if last is None else t(last))
        plan = ask(large_journal, *listing(where, None, PAGE))
        assert plan.rows <= 20
        assert touched(plan, "runs") < RUNS / 10


def test_one_run_is_found_by_its_id(large_journal: PostgresStorage) -> None:
    plan = ask(large_journal, queries_module._GET, {"run_id": "copy-000500"})
    assert (plan.rows, ways(plan, "runs"), touched(plan, "runs")) == (1, {"runs_pkey"}, 1)


def test_a_healthy_journal_is_searched_for_repairs_at_next_to_no_cost(large_journal: PostgresStorage) -> None:
    values = {"after": "", "limit": 100, "queue": None, "definitions": [], "steps": []}
    plan = ask(large_journal, queries_module._TO_REPAIR, values)
    # only attempts that failed and were tried again are read, with their runs and their successors
    with raw(large_journal) as connection:
        (retried,) = connection.execute("SELECT count(*) FROM attempts WHERE status = 'failed'").fetchone() or (0,)
    assert 0 < retried < RUNS / 20
    assert plan.rows == 0
    assert touched(plan, "attempts") <= 3 * retried
    assert touched(plan, "runs") <= retried
    # and behind the last of them nothing at all
    beyond = ask(large_journal, queries_module._TO_REPAIR, {**values, "after": "run-0"})
    assert (beyond.rows, touched(beyond, "attempts"), touched(beyond, "runs")) == (0, 0, 0)
    assert beyond.blocks <= 20


def test_one_broken_run_among_healthy_ones_is_found_by_its_index(large_journal: PostgresStorage) -> None:
    put(large_journal, planned(run="run-broken"), started("run-broken"))
    try:
        values = {"after": "run-0", "limit": 100, "queue": None, "definitions": [], "steps": []}
        plan = ask(large_journal, queries_module._TO_REPAIR, values)
        assert plan.rows == 1
        assert touched(plan, "attempts") <= 2
        assert PostgresQueries(large_journal).runs_to_repair("", 10) == ["run-broken"]
        unlisted = ask(large_journal, queries_module._TO_LIST, {"limit": 100})
        assert (unlisted.rows, ways(unlisted, "runs"), touched(unlisted, "runs")) == (1, {"runs_unlisted"}, 1)
    finally:
        large_journal.delete_thread("squid:run:run-broken")


def test_where_nothing_is_to_be_listed_and_nothing_is_dead_nothing_is_read(large_journal: PostgresStorage) -> None:
    unlisted = ask(large_journal, queries_module._TO_LIST, {"limit": 100})
    dead = ask(large_journal, queries_module._DEAD, {"queue": None, "limit": 100, "after": 0})
    assert (touched(unlisted, "runs"), touched(dead, "attempts")) == (0, 0)
    assert max(unlisted.blocks, dead.blocks) <= 20


@pytest.mark.parametrize("now", [t(60), t(-60)])
def test_counting_the_work_of_queues_costs_what_is_counted(large_journal: PostgresStorage, now: datetime) -> None:
    plan = ask(large_journal, queries_module._QUEUES, {"now": now, "limit": 50})
    assert ways(plan, "attempts") <= {"attempts_due", "attempts_leased"}
    # so many of each kind, of each lane, and its first row; not thousands
    assert touched(plan, "attempts") <= 300


@pytest.mark.parametrize("limit", [1, 100])
def test_a_backlog_costs_what_it_counts(large_journal: PostgresStorage, limit: int) -> None:
    # given thousands of attempts that are due, in one lane
    values: dict[str, Any] = {"queues": ["default"], "definitions": None, "limit": limit, "now": t(60)}
    plan = ask(large_journal, queries_module._BACKLOG, values)
    assert (plan.rows, ways(plan, "attempts")) == (1, {"attempts_due"})
    assert touched(plan, "attempts") <= limit + 2
    # when none of them is due yet, then one look at the lane's head is all
    idle = ask(large_journal, queries_module._BACKLOG, {**values, "now": t(-60)})
    assert (idle.rows, ways(idle, "attempts")) == (0, {"attempts_due"})
    assert touched(idle, "attempts") <= 2
    assert idle.blocks <= 20


def test_the_cursor_of_a_schedule_is_one_row_and_those_ahead_of_it(large_journal: PostgresStorage) -> None:
    values = {"workflow": "flow1", "trigger": "nightly", "ahead": AHEAD, "limit": 10}
    plan = ask(large_journal, queries_module._CURSOR, values)
    assert (plan.rows, ways(plan, "runs"), touched(plan, "runs")) == (1, {"runs_window"}, 1)


def test_a_step_of_a_run_writes_no_index_of_its_row(postgres: PostgresStorage) -> None:
    # given a run that is under way
    put(postgres, started(), planned(), queued(), scheduled())
    before = _updates(postgres)
    # when it goes on
    for visit in range(2, 12):
        put(postgres, planned(runnable(visit=visit), at=visit))
    # then its row was updated in place every time
    after = _updates(postgres)
    assert (after[0] - before[0], after[1] - before[1]) == (10, 10)


def _updates(storage: PostgresStorage) -> tuple[int, int]:
    """Return how often rows of runs were updated so far, and how often without touching an index."""
    # on the storage's one connection, which has not flushed its statistics yet
    storage.rows("SELECT pg_stat_force_next_flush()")
    ((updates, in_place),) = storage.rows(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = '{schema}.runs'::regclass"
    )
    return updates, in_place
