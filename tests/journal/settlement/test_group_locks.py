"""Groups beside locks and errors of the database: what one member waits for or fails with is its own."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg import sql

from squid_dagster.journal.contract.dispatch_store import Answer, Claim
from squid_dagster.journal.contract.storage import Append
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import run_thread
from squid_dagster.protocol.errors import StorageUnavailable
from tests.facts import QUEUE, signal
from tests.journal.access import raw, wait_for_a_lock
from tests.journal.dispatch_fixture import DispatchFixture, Planner, broke, claim, done, seconds, start, statuses
from tests.journal.settlement.group_fixture import errors_of, others_hold

# --- locks ----------------------------------------------------------------------------------------------------------


TWELVE = [f"run-{i:02}" for i in range(12)]
HELD = 3
WAYS: dict[str, Callable[[DispatchFixture, list[Claim]], list[Answer]]] = {
    "succeeded": lambda dispatch, claims: dispatch.store.settle([done(c) for c in claims], Planner()),
    "failed": lambda dispatch, claims: dispatch.store.settle([broke(c) for c in claims], Planner()),
    "heartbeat": lambda dispatch, claims: dispatch.store.heartbeat([c.ref for c in claims], seconds(600)),
    "release": lambda dispatch, claims: dispatch.store.release([c.ref for c in claims]),
}
WRITTEN = {"succeeded": "completed", "failed": "failed", "heartbeat": "claimed", "release": "available"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("table", ["runs", "attempts"])
def test_a_member_whose_run_is_locked_keeps_no_other_waiting(
    postgres_dispatch: DispatchFixture, way: str, table: str
) -> None:
    start(postgres_dispatch, *TWELVE)
    claims = claim(postgres_dispatch, limit=12)
    # given another session that holds a row of one of twelve runs
    with others_hold(postgres_dispatch, [TWELVE[HELD]], table):
        began = time.monotonic()
        answers = WAYS[way](postgres_dispatch, claims)
        # then the others are written meanwhile, and it is said what that one waits for
        assert errors_of(answers) == [WRITTEN[way] if i != HELD else "StorageUnavailable" for i in range(12)]
        assert answers[HELD].unavailable
        assert TWELVE[HELD] in str(answers[HELD].error)
        # and who asks again, again and again, waits for nothing
        for _ in range(40):
            assert WAYS[way](postgres_dispatch, [claims[HELD]])[0].unavailable
        assert time.monotonic() - began < 15
    # when the lock goes, it is written too
    assert errors_of(WAYS[way](postgres_dispatch, [claims[HELD]])) == [WRITTEN[way]]
    for run in TWELVE:
        statuses(postgres_dispatch, run)


def test_a_locked_member_waits_for_the_rest_of_its_lease_and_no_longer(postgres_dispatch: DispatchFixture) -> None:
    start(postgres_dispatch, "run-1", "run-2")
    claims = claim(postgres_dispatch, limit=2)
    with others_hold(postgres_dispatch, ["run-1"]):
        answers = postgres_dispatch.store.heartbeat([c.ref for c in claims], seconds(600))
        assert errors_of(answers) == ["StorageUnavailable", "claimed"]
        postgres_dispatch.wait(61)
    answers = postgres_dispatch.store.heartbeat([c.ref for c in claims], seconds(600))
    assert errors_of(answers) == ["ExpiredClaim", "claimed"]


def test_a_commit_about_several_runs_does_not_hold_them_while_one_is_locked(postgres_dispatch: DispatchFixture) -> None:
    storage = postgres_dispatch.storage
    assert isinstance(storage, PostgresStorage)
    start(postgres_dispatch, "run-1", "run-2")
    both = [Append(run_thread(run), [signal(run)]) for run in ("run-1", "run-2")]
    before = {run: storage.revision(run_thread(run)) for run in ("run-1", "run-2")}
    # when another session holds one of two runs, then a commit about both gives up, and lets the other one go
    with ThreadPoolExecutor() as pool, others_hold(postgres_dispatch, ["run-2"]), raw(storage) as another:
        refused = pool.submit(storage.commit, both)
        wait_for_a_lock(storage)
        another.execute("SET lock_timeout = '10s'")
        another.execute("SELECT FROM runs WHERE run_id = 'run-1' FOR UPDATE")
        with pytest.raises(StorageUnavailable, match="55P03"):
            refused.result()
    assert {run: storage.revision(run_thread(run)) for run in before} == before
    # and one about a single run waits until it is let go
    with ThreadPoolExecutor() as pool, others_hold(postgres_dispatch, ["run-2"]):
        written = pool.submit(storage.commit, both[1:])
        wait_for_a_lock(storage)
    assert written.result() == {run_thread("run-2"): before["run-2"] + 1}


WAITING = """SELECT pid, xact_start FROM pg_stat_activity
    WHERE wait_event_type = 'Lock' AND datname = current_database()"""


@pytest.mark.parametrize("way", WAYS)
def test_a_group_waits_for_the_thread_of_its_queue_as_long_as_any_commit(
    postgres_dispatch: DispatchFixture, way: str
) -> None:
    storage = postgres_dispatch.storage
    assert isinstance(storage, PostgresStorage)
    start(postgres_dispatch, *TWELVE)
    claims = claim(postgres_dispatch, limit=12)
    with raw(storage, autocommit=False) as connection, raw(storage) as look, ThreadPoolExecutor() as pool:
        connection.execute("SELECT FROM journal_threads WHERE id = %s FOR UPDATE", (f"squid:dispatch:{QUEUE}",))
        answers = pool.submit(WAYS[way], postgres_dispatch, claims)
        wait_for_a_lock(storage)
        since = look.execute(WAITING).fetchone()
        time.sleep(1.5)  # longer than a group waits for a row of a run
        assert look.execute(WAITING).fetchone() == since, "it was not refused meanwhile"
        connection.rollback()
        assert errors_of(answers.result()) == [WRITTEN[way]] * 12


INTERNAL = """CREATE FUNCTION internal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.run_id = ANY ({runs}) THEN RAISE EXCEPTION 'a defect' USING ERRCODE = 'XX000'; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER internal BEFORE INSERT ON journal_entries FOR EACH ROW EXECUTE FUNCTION internal()"""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [[0], [3], [0, 1, 11], [*range(12)]], ids=str)
def test_an_internal_error_about_some_members_is_theirs_alone(
    postgres_dispatch: DispatchFixture, way: str, bad: list[int]
) -> None:
    assert isinstance(postgres_dispatch.storage, PostgresStorage)
    start(postgres_dispatch, *TWELVE)
    claims = claim(postgres_dispatch, limit=12)
    with raw(postgres_dispatch.storage) as connection:
        runs = sql.Literal([TWELVE[i] for i in bad])
        connection.execute(sql.SQL(INTERNAL).format(runs=runs))
        answers = WAYS[way](postgres_dispatch, claims)
        assert errors_of(answers) == [WRITTEN[way] if i not in bad else "StorageUnavailable" for i in range(12)]
        connection.execute("DROP TRIGGER internal ON journal_entries")
    assert errors_of(WAYS[way](postgres_dispatch, [claims[i] for i in bad])) == [WRITTEN[way]] * len(bad)


def test_an_internal_error_about_everything_is_found_out_before_each_member_was_tried(
    postgres_dispatch: DispatchFixture,
) -> None:
    assert isinstance(postgres_dispatch.storage, PostgresStorage)
    runs = [f"run-{i}" for i in range(300)]
    start(postgres_dispatch, *runs)
    claims = claim(postgres_dispatch, limit=300)
    with raw(postgres_dispatch.storage) as connection:
        connection.execute("CREATE SEQUENCE tries")
        connection.execute(
            sql.SQL(INTERNAL.replace("BEGIN\n", "BEGIN PERFORM nextval('{schema}.tries');\n", 1)).format(
                runs=sql.Literal(runs), schema=sql.SQL(postgres_dispatch.storage.schema)
            )
        )
        with pytest.raises(StorageUnavailable, match="XX000"):
            WAYS["heartbeat"](postgres_dispatch, claims)
        tries = connection.execute("SELECT last_value FROM tries").fetchone()
        assert tries is not None
        assert tries[0] < 200
        connection.execute("DROP TRIGGER internal ON journal_entries")
    assert errors_of(WAYS["heartbeat"](postgres_dispatch, claims)) == ["claimed"] * 300
