"""What reading and claiming cost in a journal with thousands of other rows: the rows of the answer."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, LiteralString, NamedTuple
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Completed, Settlement, hash_token, new_claims
from squid_dagster.journal.postgres import storage as storage_module
from squid_dagster.journal.postgres import transaction as transaction_module
from squid_dagster.journal.postgres.dispatch import attempt_queries
from squid_dagster.journal.postgres.dispatch.dispatch_store import PostgresDispatchStore
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import run_thread
from tests.facts import T0, cataloged, planned, queued, scheduled, signal, started, t
from tests.journal.access import put, raw
from tests.journal.writers import plan as plan_end
from tests.journal.writers import start

MINE, ASKED, OTHERS, DEPTH = "run-mine", "run-asked", 4000, 20_000

# Copies of the facts of one run, as facts of many others.
_MORE_RUNS: LiteralString = """
    INSERT INTO journal_entries
    SELECT nextval('journal_numbers') << 20, replace(thread, 'run-0', 'other-' || n),
           CASE WHEN thread LIKE '%%run-0' THEN seq ELSE 1000 + n * 10 + seq END, type, 'other-' || n,
           occurred_at, data, digest
      FROM journal_entries CROSS JOIN generate_series(1, %s) n WHERE run_id = 'run-0' ORDER BY n, position"""
# Copies of one attempt: half of them urgent and not due, half of them due; of three definitions.
_MORE_ATTEMPTS: LiteralString = """
    INSERT INTO attempts
    SELECT (jsonb_populate_record(a, jsonb_build_object(
               'run_id', 'deep-' || n, 'runnable_key', 'deep-' || n || ':charge:1:1', 'position', 1000000 + n,
               'idempotency_key', 'deep-' || n || ':charge:1', 'rank', CASE WHEN n %% 2 = 0 THEN -10 ELSE 0 END,
               'definition', 'flow' || n %% 3 || '/',
               'due_at', CASE WHEN n %% 2 = 0 THEN a.due_at + interval '1 day' ELSE a.due_at END))).*
      FROM attempts a CROSS JOIN generate_series(1, %s) n WHERE a.run_id = 'deep-0'"""


class Scan(NamedTuple):
    """One node of a plan that reads a table."""

    kind: str
    table: str
    by: str | None
    rows: float
    removed: float


class Plan(NamedTuple):
    """What a statement did."""

    scans: list[Scan]
    rows: float
    blocks: int


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


@pytest.fixture(scope="module")
def deep_queue(postgres_url: str) -> Iterator[PostgresStorage]:
    """A queue of 20,000 attempts, half of which have a higher priority and are not due."""
    storage = PostgresStorage(postgres_url, "deep", clock=VirtualClock(t(60)))
    storage.upgrade()
    put(storage, scheduled("deep-0", queue="deep", workflow="flow0"))
    with raw(storage) as connection:
        connection.execute(_MORE_ATTEMPTS, (DEPTH,))
        connection.execute("VACUUM ANALYZE attempts")
        counts = connection.execute("SELECT count(*) FILTER (WHERE rank < 0), count(*) FROM attempts").fetchone()
        assert counts == (DEPTH // 2, DEPTH + 1)
    yield storage
    storage.close()


def explain(connection: psycopg.Connection[Any], statement: sql.Composed | bytes, values: Any = ()) -> Plan:
    """Run a statement and return what it read."""
    query = statement if isinstance(statement, bytes) else statement.as_bytes(connection)
    answer = connection.execute(b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query, values).fetchone()
    assert answer is not None
    top = answer[0][0]["Plan"]
    scans: list[Scan] = []

    def walk(node: dict[str, Any]) -> None:
        if "Relation Name" in node or "Index Name" in node:
            removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
            rows, loops = node["Actual Rows"], node["Actual Loops"]
            kind, table = node["Node Type"], node.get("Relation Name", "")
            scans.append(Scan(kind, table, node.get("Index Name"), rows * loops, removed * loops))
        for below in node.get("Plans", ()):
            walk(below)

    walk(top)
    return Plan(scans, top["Actual Rows"], top.get("Shared Hit Blocks", 0) + top.get("Shared Read Blocks", 0))


def reads_only(plan: Plan, index: str) -> None:
    """Assert that the plan reads the journal by that index, and no row that it does not return."""
    assert {scan.by for scan in plan.scans} - {None} == {index}
    for scan in plan.scans:
        assert scan.kind in ("Index Scan", "Index Only Scan", "Bitmap Index Scan", "Bitmap Heap Scan")
        assert (scan.rows, scan.removed) == (plan.rows, 0)


# --- reading --------------------------------------------------------------------------------------------------------


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


# --- claiming -------------------------------------------------------------------------------------------------------


class Reads(NamedTuple):
    """What was read of the attempts so far, in this session."""

    seq_scans: int
    rows: int


def attempts_read(connection: psycopg.Connection[Any]) -> Reads:
    """Query the session's own counters."""
    answer = connection.execute(
        """SELECT seq_scan, coalesce(idx_tup_fetch, 0) + seq_tup_read
             FROM pg_stat_xact_user_tables WHERE relid = 'attempts'::regclass"""
    ).fetchone()
    assert answer is not None
    return Reads(*answer)


_CLAIM: LiteralString = """SELECT {schema}.claim_attempts(%s::uuid, %s::text, %s::text, %s::interval, %s::text[],
    %s::text[], %s::text[], %s::timestamptz, %s::integer, %s::boolean, %s::json)"""


def claim(
    connection: psycopg.Connection[Any], storage: PostgresStorage, limit: int, definitions: list[str] | None = None
) -> tuple[int, Reads]:
    """Claim in a transaction of its own; return how many were claimed and what was read of the attempts for it."""
    tokens = new_claims(limit)
    lease = timedelta(minutes=1)
    ids, hashes = [claim_id for claim_id, _ in tokens], [hash_token(token) for _, token in tokens]
    values = (uuid4(), "deep", "worker-1", lease, ids, hashes, definitions, t(60), 0, False, None)
    with connection.transaction():
        before = attempts_read(connection)
        answer = connection.execute(storage.sql(_CLAIM), values).fetchone()
        after = attempts_read(connection)
    assert answer is not None
    read = Reads(after.seq_scans - before.seq_scans, after.rows - before.rows)
    return len(answer[0]["claimed"] or []), read


def test_a_claim_reads_few_rows_however_deep_the_queue_and_whatever_is_not_due(deep_queue: PostgresStorage) -> None:
    with raw(deep_queue) as connection:
        # often enough that the statements inside switch to their generic plans
        for _ in range(12):
            claimed, read = claim(connection, deep_queue, 10)
            assert (claimed, read.seq_scans) == (10, 0)
            # a handful per claim, and a few for each of the six lanes; not 20,000
            assert read.rows <= 120
        for _ in range(12):
            claimed, read = claim(connection, deep_queue, 1, ["flow1/"])
            assert (claimed, read.seq_scans) == (1, 0)
            assert read.rows <= 30


def test_claims_and_settlements_read_few_rows_also_by_plans_that_were_made_while_the_tables_were_empty(
    postgres: PostgresStorage,
) -> None:
    store = PostgresDispatchStore(postgres)
    start(postgres, ["first"])
    store.settle([Settlement(c.ref, Completed(None)) for c in store.claim("default", "w")], plan_end)
    start(postgres, [f"grown-{n}" for n in range(2_000)])
    before = _fetched(postgres)
    for _ in range(4):
        claims = store.claim("default", "w", limit=50)
        answers = store.settle([Settlement(c.ref, Completed(None)) for c in claims], plan_end)
        assert [answer.error for answer in answers] == [None] * 50
    after = _fetched(postgres)
    # a dozen rows of each table for each run, whatever else is in it
    assert after["journal_entries"] > before["journal_entries"]
    for table, fetched in after.items():
        assert fetched - before[table] <= 200 * 12, table


def _fetched(storage: PostgresStorage) -> dict[str, int]:
    """Count the rows of each table that were fetched so far; the one connection flushes its statistics at once."""
    storage.rows("SELECT pg_stat_force_next_flush()")
    rows = storage.rows(
        """SELECT relname, coalesce(idx_tup_fetch, 0) + coalesce(seq_tup_read, 0)
             FROM pg_stat_user_tables WHERE schemaname = %s""",
        storage.schema,
    )
    return {str(name): int(fetched) for name, fetched in rows}


def test_a_claim_that_finds_nothing_of_its_own_reads_almost_nothing(deep_queue: PostgresStorage) -> None:
    with raw(deep_queue) as connection:
        for definitions in (["nothing/known"], []):
            claimed, read = claim(connection, deep_queue, 10, definitions)
            assert (claimed, read.seq_scans) == (0, 0)
            assert read.rows <= 10


def _nested(connection: psycopg.Connection[Any], begin: str, end: str, variables: dict[str, str]) -> bytes:
    """Extract a statement from the function that claims, with values in the place of its variables."""
    answer = connection.execute("SELECT prosrc FROM pg_proc WHERE oid = 'claim_attempts'::regproc").fetchone()
    assert answer is not None
    source = str(answer[0])
    start = source.index(begin)
    text = re.sub(r"\sINTO [\w, ]+", " ", source[start : source.index(end, start)].rstrip().rstrip(";"))
    for name, value in variables.items():
        text = re.sub(rf"\b{name}\b", value, text)
    assert not re.search(r"\b[vp]_\w+", text), "a variable without a value"
    return text.encode()


_MARKS = json.dumps(
    [{"definition": f"flow{n}/", "rank": 0, "due_at": "2026-01-01T00:00:00Z", "position": 0} for n in range(3)]
)


def _candidates(connection: psycopg.Connection[Any], rank: int) -> bytes:
    """Return the statement inside a claim that looks for due attempts of a rank."""
    return _nested(
        connection,
        "SELECT array_agg(c.run_id",
        "EXIT WHEN v_runs IS NULL",
        {
            "p_queue": "'deep'",
            "v_lanes": "ARRAY['flow0/', 'flow1/', 'flow2/']",
            "v_starts": "array_fill(timestamptz '-infinity', ARRAY[3])",
            "v_places": "array_fill(0::bigint, ARRAY[3])",
            "v_rank": f"({rank})::smallint",
            "v_now": "timestamptz '2026-01-01 00:01:00Z'",
            "v_due": "timestamptz '-infinity'",
            "v_position": "0::bigint",
            "v_wanted": "10",
            "v_live": "0",
            "v_passed": "0",
        },
    )


def test_the_statements_inside_a_claim_go_by_the_index_of_due_attempts(deep_queue: PostgresStorage) -> None:
    with raw(deep_queue) as connection:
        # given the settings under which the function runs
        settings = connection.execute("SELECT unnest(proconfig) FROM pg_proc WHERE oid = 'claim_attempts'::regproc")
        for name, value in (row[0].split("=", 1) for row in settings.fetchall()):
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        # when its statements are executed by hand
        lanes = explain(
            connection,
            _nested(
                connection,
                "WITH RECURSIVE lane",
                "\n    ELSE",
                {"p_queue": "'deep'", "p_definitions": "NULL::text[]"},
            ),
        )
        marked = explain(
            connection,
            _nested(
                connection,
                "SELECT array_agg(m.definition)",
                "\n    END IF",
                {"p_queue": "'deep'", "p_marks": f"'{_MARKS}'", "v_now": "timestamptz '2026-01-01 00:01:00Z'"},
            ),
        )
        candidates = explain(connection, _candidates(connection, rank=0))
        not_due = explain(connection, _candidates(connection, rank=-10))
    # then each goes by attempts_due, reads a few rows and throws none away
    for plan, most in ((lanes, 7), (marked, 3), (candidates, 30), (not_due, 0)):
        read = [scan for scan in plan.scans if scan.table == "attempts"]
        assert read
        assert {scan.by for scan in read} == {"attempts_due"}
        assert all("Index" in scan.kind and scan.removed == 0 for scan in read)
        assert sum(scan.rows for scan in read) <= most
        assert plan.blocks <= 120


def test_an_append_about_one_run_touches_the_rows_of_that_run_alone(deep_queue: PostgresStorage) -> None:
    store = PostgresDispatchStore(deep_queue)
    (held,) = store.claim("deep", "worker-1")
    arguments: tuple[object, ...] = (
        30_000,  # milliseconds that the locks may be held while idle
        [held.ref.run_id],
        [held.ref.run_id],
        [held.ref.run_id],
        [held.ref.runnable_key],
        [],
        [],
    )
    with raw(deep_queue) as connection:
        for _ in range(8):
            before = attempts_read(connection)
            connection.execute(deep_queue.sql(transaction_module._LOCK), arguments)
            after = attempts_read(connection)
            assert (after.seq_scans, after.rows - before.rows <= 2) == (0, True)


def test_claims_whose_lease_ran_out_are_found_by_their_index(deep_queue: PostgresStorage) -> None:
    with raw(deep_queue) as connection:
        values = {"queue": "deep", "now": t(60), "spent": False, "limit": 10, "definitions": None}
        plan = explain(connection, deep_queue.sql(attempt_queries._EXPIRED), values)
    assert {scan.by for scan in plan.scans} == {"attempts_leased"}
    assert sum(scan.rows + scan.removed for scan in plan.scans) == 0


@pytest.mark.parametrize(("definitions", "most"), [(None, 37), (["flow1/"], 17), (["nothing/known"], 7)])
def test_what_is_visible_is_found_lane_by_lane_whatever_others_have_put_there(
    deep_queue: PostgresStorage, definitions: list[str] | None, most: int
) -> None:
    values = {"queue": "deep", "now": t(60), "limit": 10, "definitions": definitions}
    with raw(deep_queue) as connection:
        connection.execute("ANALYZE attempts")
        plan = explain(connection, deep_queue.sql(attempt_queries._VISIBLE), values)
    read = [scan for scan in plan.scans if scan.table == "attempts"]
    assert {scan.by for scan in read} == {"attempts_due"}
    # one for each of the six lanes, and as many as are asked for in each lane that is wanted and due
    assert sum(scan.rows for scan in read) <= most
