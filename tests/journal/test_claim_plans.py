"""What claiming costs in a queue of thousands of attempts: the rows of the answer."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, LiteralString, NamedTuple
from uuid import uuid4

import psycopg
import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Completed, Settlement, hash_token, new_claims
from squid_dagster.journal.postgres import transaction as transaction_module
from squid_dagster.journal.postgres.dispatch import attempt_queries
from squid_dagster.journal.postgres.dispatch.dispatch_store import PostgresDispatchStore
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.facts import scheduled, t
from tests.journal.access import put, raw
from tests.journal.query_plans import explain
from tests.journal.writers import plan as plan_end
from tests.journal.writers import start

DEPTH = 20_000


# Copies of one attempt: half of them urgent and not due, half of them due; of three definitions.
_MORE_ATTEMPTS: LiteralString = """
    INSERT INTO attempts
    SELECT (jsonb_populate_record(a, jsonb_build_object(
               'run_id', 'deep-' || n, 'runnable_key', 'deep-' || n || ':charge:1:1', 'position', 1000000 + n,
               'idempotency_key', 'deep-' || n || ':charge:1', 'rank', CASE WHEN n %% 2 = 0 THEN -10 ELSE 0 END,
               'definition', 'flow' || n %% 3 || '/',
               'due_at', CASE WHEN n %% 2 = 0 THEN a.due_at + interval '1 day' ELSE a.due_at END))).*
      FROM attempts a CROSS JOIN generate_series(1, %s) n WHERE a.run_id = 'deep-0'"""


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
