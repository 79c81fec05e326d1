"""The one lock order: gate, buckets, run rows by id, attempt rows, thread rows by id, new threads by id, number.

Each writer is stopped at each lock that it may want, by a session that holds it, and its own locks are read while
it waits: all of them come before that lock. Ids are ordered by their bytes, in a database of any collation.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
import pytest

import squid_dagster
from squid_dagster.journal.embedded import EmbeddedPostgres, account
from squid_dagster.journal.postgres.schema import functions
from squid_dagster.journal.postgres.schema.names import lock_number
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.journal.access import eventually, plain_url, raw
from tests.journal.schema.version5 import KEY, Worker, claim_one, end_arguments, start_arguments
from tests.scratch import SCRATCH

# --- what is written ------------------------------------------------------------------------------------------------

# Numbers and times; columns of text that have the collation "C" of their own.
_NUMBERS = {"seq", "position", "ord", "i", "n", "rank", "due_at", "priority", "queued_at", "claim_expires_at", "until"}
_NUMBERS |= {"m", "bucket", "ordinal", "window_start", "lease_until", "attnum", "oid", "seconds", "{order}"}
_BYTES = {"run_id", "child_run_id", "id", "definition", "thread", "queue", "worker_id", "workflow"}
_NO_COLUMN = {"queue"}  # in functions it comes out of JSON
_ITEM = re.compile(r"^(?:\w+\.)?([\w{}]+)(?: DESC)?$")
_ORDER_BY = re.compile(
    r'ORDER BY ((?:[^()"]|\([^()]*\)|"C")+?)(?=\)| LIMIT| OFFSET| FOR | FETCH| ON CONFLICT|;| ?"""|"$|$)', re.M
)


def test_every_order_by_text_is_by_bytes() -> None:
    package = Path(squid_dagster.__file__).parent
    texts = dict(functions.sources())
    for path in (*package.glob("journal/postgres/**/*.py"), *package.glob("backlog/**/*.py")):
        texts[str(path.relative_to(package))] = path.read_text()
    count, wrong = 0, []
    for name, text in texts.items():
        for match in _ORDER_BY.finditer(text):
            for item in re.split(r",\s*", match[1].strip()):
                count += 1
                column = _ITEM.match(item.strip())
                known = _NUMBERS | (_BYTES if name.endswith(".py") else _BYTES - _NO_COLUMN)
                if 'COLLATE "C"' not in item and (column is None or column[1] not in known):
                    wrong.append((name, item))
    assert (wrong, count > 80) == ([], True)


# --- what is locked -------------------------------------------------------------------------------------------------


class Lock(NamedTuple):
    """A lock by its place in the order: its kind, and what it is on."""

    kind: int
    key: str

    @classmethod
    def gate(cls) -> "Lock":
        return cls(0, "")

    @classmethod
    def bucket(cls, number: int) -> "Lock":
        return cls(1, f"{number:03}")

    @classmethod
    def run(cls, run_id: str) -> "Lock":
        return cls(2, run_id)

    @classmethod
    def attempt(cls, run_id: str) -> "Lock":
        return cls(3, run_id)

    @classmethod
    def thread(cls, thread: str) -> "Lock":
        return cls(4, thread)

    @classmethod
    def new_thread(cls, thread: str) -> "Lock":
        return cls(5, thread)

    @classmethod
    def number(cls) -> "Lock":
        return cls(6, "")


_QUEUES = ("B", "a")
_RUNS = ("Run-2", "run-1")  # by bytes in this order, by words in the other one
_NEW = ("New-2", "new-1")
_NEW_THREADS = [f"squid:run:{run}" for run in _NEW]
_THREADS = [f"squid:dispatch:{queue}" for queue in _QUEUES] + [f"squid:run:{run}" for run in _RUNS]

_BLOCK = {
    0: "SELECT pg_advisory_xact_lock({gate})",
    1: "SELECT pg_advisory_xact_lock({buckets}, %(key)s::int)",
    2: "SELECT FROM runs WHERE run_id = %(key)s FOR UPDATE",
    3: "SELECT FROM attempts WHERE run_id = %(key)s FOR UPDATE",
    4: "SELECT FROM journal_threads WHERE id = %(key)s FOR UPDATE",
    5: "INSERT INTO journal_threads (id, rev) VALUES (%(key)s, 1)",
}
_ADVISORY = """SELECT classid::bigint, objid::bigint, objsubid FROM pg_locks
    WHERE pid = %s AND locktype = 'advisory' AND granted"""
_FREE = {
    2: "SELECT run_id FROM runs FOR UPDATE SKIP LOCKED",
    3: "SELECT run_id FROM attempts FOR UPDATE SKIP LOCKED",
    4: "SELECT id FROM journal_threads FOR UPDATE SKIP LOCKED",
}
_EXISTING = {2: "SELECT run_id FROM runs", 3: "SELECT run_id FROM attempts", 4: "SELECT id FROM journal_threads"}

Write = Callable[[psycopg.Connection[Any]], object]


class LockFixture:
    """A journal with two claimed runs on two queues, and two more that can be claimed."""

    def __init__(self, storage: PostgresStorage) -> None:
        """Create the runs."""
        self.storage = storage
        self.claims: list[tuple[str, str, str]] = []  # of run, claim and queue
        with raw(storage) as connection:
            for queue, run_id in zip(_QUEUES, _RUNS, strict=True):
                connection.execute(*start_arguments([run_id], queue))
                claim = uuid4().hex
                assert claim_one(connection, queue, claim) == run_id
                self.claims.append((run_id, claim, queue))
                connection.execute(*start_arguments([f"due-{queue}"], queue))
            buckets = [connection.execute("SELECT hashtext(%s) & 511", (run,)).fetchone() or (0,) for run in _NEW]
        self.buckets = [int(bucket) for (bucket,) in buckets]
        self._numbers = {p: lock_number(storage.schema, p) for p in ("gate", "buckets", "positions")}

    def candidates(self) -> list[Lock]:
        """Return all locks that a writer may want here."""
        locks = [Lock.gate(), *map(Lock.bucket, self.buckets)]
        locks += [*map(Lock.run, _RUNS), *map(Lock.attempt, _RUNS)]
        return [*locks, *map(Lock.thread, _THREADS), *(Lock.new_thread(f"squid:run:{run}") for run in _NEW)]

    def held_before(self, write: Write, wanted: Lock) -> set[Lock] | None:
        """Run a writer against a lock that is held, and return what it holds itself; None if it needs no such lock."""
        with raw(self.storage, autocommit=False) as blocker, raw(self.storage, autocommit=False) as writer:
            blocker.execute(_BLOCK[wanted.kind].format(**self._numbers), {"key": wanted.key})
            with ThreadPoolExecutor(1) as pool:
                writing = pool.submit(write, writer)
                try:
                    eventually(lambda: writing.done() or self._waits(writer, blocker))
                    return None if writing.done() else self._held(writer, wanted) - {wanted}
                finally:
                    blocker.rollback()
                    writing.result(30)
                    writer.rollback()

    def _waits(self, writer: psycopg.Connection[Any], blocker: psycopg.Connection[Any]) -> bool:
        with raw(self.storage) as look:
            row = look.execute("SELECT pg_blocking_pids(%s)", (writer.info.backend_pid,)).fetchone()
        return row is not None and blocker.info.backend_pid in row[0]

    def _held(self, writer: psycopg.Connection[Any], wanted: Lock) -> set[Lock]:
        numbers = {number & 0xFFFFFFFF: purpose for purpose, number in self._numbers.items()}
        held = set()
        with raw(self.storage, autocommit=False) as look:
            for high, low, kind in look.execute(_ADVISORY, (writer.info.backend_pid,)).fetchall():
                purpose = numbers.get(low if kind == 1 else high)
                if purpose is not None:
                    held.add({"gate": Lock.gate(), "positions": Lock.number()}.get(purpose) or Lock.bucket(low))
            for kind, free in _FREE.items():
                rows = {key for (key,) in look.execute(_EXISTING[kind])} - {key for (key,) in look.execute(free)}
                held |= {Lock(kind, key) for key in rows}
        if wanted.kind == Lock.new_thread("").kind:
            held |= {Lock.new_thread(thread) for thread in _NEW_THREADS if self._is_made(thread)}
        return held

    def _is_made(self, thread: str) -> bool:
        """Return whether a session has created a thread and not committed: another one that creates it has to wait."""
        with raw(self.storage, autocommit=False) as look:
            look.execute("SET LOCAL lock_timeout = '100ms'")
            try:
                look.execute(_BLOCK[5], {"key": thread})
            except psycopg.errors.LockNotAvailable:
                return True
        return False


@pytest.fixture(scope="module")
def fixture(postgres_url: str, words_url: str | None, schema_names: Iterator[str]) -> Iterator[LockFixture]:
    """One journal for all writers, in a database that orders by words if there is one: none of them commits."""
    storage = PostgresStorage(words_url or postgres_url, next(schema_names))
    storage.upgrade()
    yield LockFixture(storage)
    storage.close()


def _append(connection: psycopg.Connection[Any]) -> None:
    """Write in the general way: two existing and two new runs, and facts on the threads of queues and runs."""
    _lock_runs(connection, [], list(_RUNS))
    _append_entries(connection, [*_THREADS, *_NEW_THREADS])


def _append_to_all(connection: psycopg.Connection[Any]) -> None:
    """Write in the general way, with all attempts of the runs."""
    _lock_runs(connection, list(_RUNS), [])
    _append_entries(connection, [*_THREADS, *_NEW_THREADS])


def _append_new(connection: psycopg.Connection[Any]) -> None:
    """Start runs as code up to version 6: two new runs, and a fact on an existing queue's thread."""
    connection.execute("SELECT lock_new(%s::text[], NULL)", (sorted(_NEW),))
    _append_entries(connection, [_THREADS[0], *_NEW_THREADS])


def _lock_runs(connection: psycopg.Connection[Any], whole: list[str], of_one_attempt: list[str]) -> None:
    connection.execute(
        "SELECT lock_runs(30000, %s::text[], %s::text[], %s::text[], %s::text[], '{}', '{}')",
        (sorted([*_RUNS, *_NEW]), whole, of_one_attempt, [KEY] * len(of_one_attempt)),
    )


def _append_entries(connection: psycopg.Connection[Any], named: list[str]) -> None:
    threads = sorted(named)
    facts = [
        {"ord": n, "t": n, "k": 1, "type": "x", "run_id": _RUNS[0], "at": "2026-01-01T00:00:00Z", "data": {}}
        for n in range(1, len(threads) + 1)
    ]
    connection.execute(
        "SELECT append_entries(%s, %s::text[], %s::bigint[], %s::int[], %s, NULL, NULL, NULL, NULL, NULL, NULL)",
        (uuid4(), threads, [None] * len(threads), [1] * len(threads), json.dumps(facts)),
    )


def _start(connection: psycopg.Connection[Any]) -> None:
    connection.execute(*start_arguments(sorted(_NEW), _QUEUES[0]))


def _start_one(connection: psycopg.Connection[Any]) -> None:
    connection.execute(*start_arguments([_NEW[0]], _QUEUES[0]))


def _claim(connection: psycopg.Connection[Any]) -> None:
    claim_one(connection, _QUEUES[0], uuid4().hex)


def _end(fixture: LockFixture) -> Write:
    """End runs as code of version 6 and before: two runs of two queues at once."""

    def write(connection: psycopg.Connection[Any]) -> None:
        row = connection.execute(*end_arguments(fixture.claims)).fetchone()
        assert row is not None
        assert row[0]["ended"] == [1, 2]

    return write


_SETTLE = """SELECT settle_runs(%s, clock_timestamp(), true, %s::text[], %s::text[], %s::bigint[], %s::boolean[],
    %s::json, %s::json, %s::json, NULL)"""


def _settle(fixture: LockFixture) -> Write:
    """Settle in the fast way: two runs of two queues at once."""

    def write(connection: psycopg.Connection[Any]) -> None:
        runs, ids, queues = zip(*fixture.claims, strict=True)
        claims = [{"m": m, "key": KEY, "claim_id": id_, "token_hash": id_} for m, id_ in enumerate(ids, 1)]
        facts: list[dict[str, Any]] = [{"m": m, "type": "attempt_completed", "data": {}} for m in (1, 2)]
        facts += [{"m": m, "k": 1, "type": "run_terminal", "data": {}} for m in (1, 2)]
        rows = [{"m": m, "status": "completed", "planned": 0, "applied": 1} for m in (1, 2)]
        texts = map(json.dumps, (claims, facts, rows))
        values = (uuid4(), list(runs), list(queues), [2, 2], [True, True], *texts)
        row = connection.execute(_SETTLE, values).fetchone()
        assert row is not None
        assert row[0]["written"] == [1, 2]

    return write


@pytest.mark.parametrize(
    "name", ["append", "append to all", "append new", "start", "start one", "claim", "end", "settle"]
)
def test_whatever_a_writer_waits_for_comes_after_all_that_it_holds(fixture: LockFixture, name: str) -> None:
    writers: dict[str, Write] = {"append": _append, "append to all": _append_to_all, "append new": _append_new}
    writers |= {
        "start": _start,
        "start one": _start_one,
        "claim": _claim,
        "end": _end(fixture),
        "settle": _settle(fixture),
    }
    write = writers[name]
    gate, buckets = {Lock.gate()}, {Lock.bucket(number) for number in fixture.buckets}
    runs, attempts = set(map(Lock.run, _RUNS)), set(map(Lock.attempt, _RUNS))
    queues, threads = set(map(Lock.thread, _THREADS[:2])), set(map(Lock.thread, _THREADS))
    new = [Lock.new_thread(f"squid:run:{run}") for run in _NEW]
    wanted = {
        "append": gate | buckets | runs | attempts | threads | set(new),
        "append to all": gate | buckets | runs | attempts | threads | set(new),
        "append new": gate | buckets | {min(queues)} | set(new),
        "start": gate | buckets | {min(queues)} | set(new),
        "start one": gate | {Lock.bucket(fixture.buckets[0])} | {min(queues), new[0]},
        "claim": gate | {min(queues)},  # it waits for no attempt
        "end": gate | runs | attempts | threads,
        "settle": gate | runs | attempts | threads,
    }[name]
    # when each lock is held by another session in turn
    waited = {}
    others = [] if name == "claim" else [Lock.attempt(f"due-{queue}") for queue in _QUEUES]  # claims pass those by
    for lock in fixture.candidates() + others:
        held = fixture.held_before(write, lock)
        if held is not None:
            waited[lock] = held
    # then the writer waits for those that it needs, and holds only what comes before
    assert set(waited) == wanted
    for lock, held in waited.items():
        after = {one for one in held if not _comes_before(one, lock)}
        assert not after, f"{name} holds {after} while it waits for {lock}"
    # and it holds all of those before
    for lock, held in waited.items():
        missing = {one for one in wanted if one.kind < lock.kind} - held
        assert not missing, f"{name} does not hold {missing} while it waits for {lock}"


def _comes_before(held: Lock, wanted: Lock) -> bool:
    """Compare locks. Attempts have no order: a writer that waits for one holds its run, and claims wait for none."""
    if held.kind == wanted.kind == Lock.attempt("").kind:
        return True
    return (held.kind, held.key.encode()) < (wanted.kind, wanted.key.encode())


# --- in any collation -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def words_url() -> Iterator[str | None]:
    """A database in which `a` comes before `B`, by a locale of glibc that is made for it; None where none can be made.

    The wheel's Postgres has no ICU.
    """
    if shutil.which("localedef") is None:
        yield None
        return
    with (
        tempfile.TemporaryDirectory(prefix="squid-words-", dir=SCRATCH) as directory,
        pytest.MonkeyPatch.context() as patch,
    ):
        Path(directory).chmod(0o755)
        locales = Path(directory) / "locales"
        locales.mkdir(mode=0o755)
        command = ["localedef", "-i", "en_US", "-f", "UTF-8", "--no-archive", str(locales / "en_US.UTF-8")]
        subprocess.run(command, capture_output=True, check=False)
        if not (locales / "en_US.UTF-8" / "LC_COLLATE").exists():
            yield None
            return
        for path in locales.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        environment = account._environment()
        patch.setattr(account, "_environment", lambda: {**environment, "LOCPATH": str(locales)})
        server = EmbeddedPostgres(Path(directory) / "postgres")
        try:
            url = server.ensure_running()
            with psycopg.connect(plain_url(url), autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET fsync = off")
                connection.execute("SELECT pg_reload_conf()")
                connection.execute("CREATE DATABASE words LC_COLLATE 'en_US.UTF-8' TEMPLATE template0")
            yield url.replace("/postgres?", "/words?")
        finally:
            server.stop()


def test_contended_queues_make_no_deadlock_in_a_database_of_any_collation(words_url: str | None) -> None:
    if words_url is None:
        pytest.skip("no locale can be made here")
    storage = PostgresStorage(words_url)
    storage.upgrade()
    try:
        # given a database that orders by words
        with raw(storage) as connection:
            assert connection.execute("SELECT 'a' < 'B', 'a' < 'B' COLLATE \"C\"").fetchone() == (True, False)
            connection.execute("ALTER DATABASE words SET deadlock_timeout = '20ms'")
        # when workers end runs of many queues at once, and append to all of their threads
        workers = [Worker(plain_url(words_url), storage.schema, "B", "a", "C", "b") for _ in range(6)]
        for worker in workers:
            worker.start()
        eventually(lambda: all(len(worker.ended) >= 60 or worker.states for worker in workers))
        for worker in workers:
            worker.stop()
        # then none of them was ever in a deadlock
        assert [worker.states for worker in workers] == [[]] * len(workers)
        with raw(storage) as connection:
            connection.execute("SELECT pg_stat_force_next_flush()")
            deadlocks = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = 'words'").fetchone()
        assert deadlocks == (0,)
    finally:
        storage.close()
