"""An upgrade while others work: code of version 5 goes on, nothing is lost, and there is no deadlock."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

from squid_dagster.journal.contract.command_target import CommandedRun, CommandTarget, SignalKey
from squid_dagster.journal.embedded.deadline import Deadline
from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.dispatch.dispatch_store import PostgresDispatchStore
from squid_dagster.journal.postgres.schema import table_locks
from squid_dagster.journal.postgres.schema import upgrade as migrate
from squid_dagster.journal.postgres.schema.drift import drift
from squid_dagster.journal.postgres.schema.names import CODE_VERSION, lock_number
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import StorageUnavailable
from tests.facts import RUN, signal, started, t
from tests.journal.access import THREAD, Opener, plain_url, raw, wait_for_a_lock
from tests.journal.schema.released_schemas import make_released, written_by_this_code
from tests.journal.schema.version5 import Worker

_MINUTE = timedelta(minutes=1)
_DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


@pytest.fixture
def no_deadlocks(postgres_url: str) -> Iterator[None]:
    """Assert that the server had to end no deadlock."""
    with psycopg.connect(plain_url(postgres_url), autocommit=True) as connection:
        before = connection.execute(_DEADLOCKS).fetchone()
        yield
        connection.execute("SELECT pg_stat_force_next_flush()")
        assert connection.execute(_DEADLOCKS).fetchone() == before


@pytest.mark.usefixtures("no_deadlocks")
@pytest.mark.parametrize("_time", range(2))
def test_workers_of_version_5_go_on_while_the_schema_is_upgraded(
    open_storage: Opener, postgres_url: str, _time: int
) -> None:
    # given workers of version 5 on three queues, and a follower
    storage = make_released(open_storage(), 5)
    workers = [Worker(plain_url(postgres_url), storage.schema, f"q{n % 3}") for n in range(6)]
    done, seen = threading.Event(), list[int]()

    def follow() -> None:
        after = 0
        while True:
            last = done.is_set()
            upto = storage.cut(after)
            seen.extend(entry.position for entry in storage.read_between(after, upto))
            after = upto
            if last:
                return

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        for worker in workers:
            worker.start()
        try:
            _wait_for_work(workers)
            # when the schema is upgraded under them, and their functions are replaced once more
            assert storage.upgrade() == CODE_VERSION
            _wait_for_work(workers)
            with raw(storage) as connection:
                connection.execute("COMMENT ON FUNCTION cut IS 'older'")
            assert storage.upgrade() == CODE_VERSION
            _wait_for_work(workers)
        finally:
            for worker in workers:
                worker.stop()
            done.set()
        following.result(60)
    # then they went on
    assert [worker.states for worker in workers] == [[]] * len(workers)
    assert drift(storage) == []
    # and everything that they wrote is there, once: three facts of a start, a claim, three of an end
    with raw(storage) as connection:
        rows = connection.execute("SELECT thread, seq, position FROM journal_entries ORDER BY position").fetchall()
    assert len(rows) == sum(7 * len(worker.ended) + worker.appended for worker in workers)
    assert len({run_id for worker in workers for run_id in worker.ended}) == sum(len(w.ended) for w in workers)
    last: dict[str, int] = {}
    for thread, seq, _ in rows:
        assert seq == last.get(thread, 0) + 1
        last[thread] = seq
    # and the follower has read it all, across the upgrade
    assert seen == [position for _, _, position in rows]


def _wait_for_work(workers: list[Worker], further: int = 5) -> None:
    wanted = [len(worker.ended) + further for worker in workers]
    deadline = Deadline(_MINUTE)
    while any(len(w.ended) < n and not w.states for w, n in zip(workers, wanted, strict=True)):
        assert deadline.pause()


@pytest.mark.usefixtures("no_deadlocks")
def test_a_transaction_that_reads_and_then_writes_does_not_wait_in_a_circle_with_an_upgrade(
    open_storage: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a transaction that has read what the upgrade alters, and comes to the gate only when the upgrade has it
    storage = make_released(open_storage(), 3)
    given_way = threading.Event()
    monkeypatch.setattr(table_locks, "_TABLES_SECONDS", 2.0)  # longer than `deadlock_timeout`

    def end_vacuums(connection: PgConnection, schema: str, names: Sequence[str]) -> None:
        given_way.set()
        table_locks.end_vacuums(connection, schema, names)

    monkeypatch.setattr(migrate, "end_vacuums", end_vacuums)
    with raw(storage, autocommit=False) as reader, ThreadPoolExecutor(1) as pool:
        reader.execute("SELECT FROM journal_entries")
        reader.execute("SELECT last_value FROM journal_positions")
        upgrading = pool.submit(storage.upgrade)
        _wait_for_a_closed_gate(storage)
        # when it waits for the gate
        reader.execute("SELECT pg_advisory_xact_lock_shared(%s)", (lock_number(storage.schema, "gate"),))
        # then the upgrade has given way, and comes to its end when the transaction has
        assert given_way.wait(60)
        reader.commit()
        assert upgrading.result(60) == CODE_VERSION
    assert drift(storage) == []


def _wait_for_a_closed_gate(storage: PostgresStorage) -> None:
    deadline = Deadline(_MINUTE)
    with raw(storage) as connection:
        query = "SELECT pg_try_advisory_xact_lock_shared(%s)"
        while connection.execute(query, (lock_number(storage.schema, "gate"),)).fetchone() == (True,):
            assert deadline.pause()


def test_an_upgrade_that_waits_for_long_names_who_is_in_the_way(
    open_storage: Opener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    storage = make_released(open_storage(), 5)
    monkeypatch.setattr(migrate, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(table_locks, "_GATE_SECONDS", 1)
    with raw(storage, autocommit=False) as writer:
        writer.execute("SET application_name = 'somebody'")
        writer.execute("SELECT pg_advisory_xact_lock_shared(%s)", (lock_number(storage.schema, "gate"),))
        with pytest.raises(
            StorageUnavailable, match=r"held by process \d+ \(somebody, idle in transaction, for \d+ s\)"
        ):
            storage.upgrade()
    # when that has ended, it can be repeated
    assert storage.upgrade() == CODE_VERSION


def test_a_start_that_waits_while_the_schema_is_upgraded_begins_again(open_storage: Opener, postgres_url: str) -> None:
    # given a start of version 5 that waits for the gate, in the function of its time
    storage = make_released(open_storage(), 5)
    worker = Worker(plain_url(postgres_url), storage.schema, "default")
    with raw(storage, autocommit=False) as upgrading:
        upgrading.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number(storage.schema, "gate"),))
        worker.start()
        wait_for_a_lock(storage)
        # when the schema is upgraded before it can go on
        with storage.engine.begin() as connection:
            migrate.build(connection, storage.schema)
    _wait_for_work([worker], 2)
    worker.stop()
    # then it has begun again, and no position stands below the first number
    assert (worker.states, worker.again) == ([], 1)
    assert all(entry.position > 2**20 for entry in storage.read_between(0, storage.cut()))


def test_commands_that_are_older_than_the_index_of_their_keys_are_found_by_it(open_storage: Opener) -> None:
    # given a journal of version 7 with commands that have keys, and some that have none
    storage = make_released(open_storage(), 7)
    with written_by_this_code(storage, 7):
        storage.append(THREAD, [signal(idempotency_key="start"), started()])
        storage.append(THREAD, [signal(at=n, idempotency_key=f"key-{n}" if n % 2 else None) for n in range(1, 20)])
    # when it is upgraded
    assert storage.upgrade() == CODE_VERSION
    # then they are found
    runs_seen: list[CommandedRun] = []
    for key in ("start", "key-7", "key-8"):
        target = CommandTarget(RUN, signal=SignalKey("start_run", key))
        PostgresDispatchStore(storage).command([target], lambda runs, now: runs_seen.append(runs[RUN]) or [])  # type: ignore[func-returns-value]
    assert [run.first and run.first.occurred_at for run in runs_seen] == [t(0), t(7), None]
    assert drift(storage) == []


def test_a_call_that_takes_the_revision_of_a_queue_from_its_row_begins_again_after_an_upgrade(
    postgres: PostgresStorage,
) -> None:
    # given a function of version 6, which read the row of a thread that no commit updates any more
    with raw(postgres) as connection, pytest.raises(psycopg.Error) as refused:
        connection.execute("SELECT take_positions(1)")
    # then it is told what every version of the code answers by beginning again
    assert refused.value.sqlstate == "SQ002"


@pytest.mark.parametrize(
    ("run_id", "ago"),
    [(RUN, "null"), ("new", "-1 minute"), ("new", "200 milliseconds")],
    ids=["a run that is there", "a time that is yet to come", "a time that has passed"],
)
def test_a_start_by_code_of_version_6_takes_the_general_way_where_it_is_not_new(
    postgres: PostgresStorage, run_id: str, ago: str
) -> None:
    # given a run, and code that locks new ones in the message that starts them
    postgres.append(THREAD, [started()])
    lock = "SELECT lock_new(ARRAY[%s], clock_timestamp() - nullif(%s, 'null')::interval)"
    with raw(postgres) as connection:
        connection.execute(lock, ("new", "0 seconds"))
        connection.execute(lock, ("new", "null"))
        # when a run is there, or the time is not the database's
        with pytest.raises(psycopg.Error) as refused:
            connection.execute(lock, (run_id, ago))
    # then it is told what that code takes for it
    assert refused.value.sqlstate == "SQ003"


def test_a_journal_goes_on_behind_its_old_positions(open_storage: Opener, postgres_url: str) -> None:
    storage = make_released(open_storage(), 5)
    worker = Worker(plain_url(postgres_url), storage.schema, "default")
    worker.start()
    _wait_for_work([worker])
    worker.stop()
    with raw(storage) as connection:
        (before,) = connection.execute("SELECT cut()").fetchone() or (0,)
        # given that the sequence has passed many numbers
        connection.execute("SELECT setval('journal_positions', 5000000)")
    storage.upgrade()
    assert storage.cut() == before
    storage.append(THREAD, [signal()])
    (entry,) = storage.read(THREAD)
    assert entry.position == storage.cut() == ((5_000_000 >> 20) + 1 << 20) + 1
