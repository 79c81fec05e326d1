"""Draining beside a session that holds an old snapshot: the dead rows of claims and settlements cannot be vacuumed.

Two databases on one server, each with a worker process of its own, are drained in turn, a slice each. In one of them a
session holds a transaction with a snapshot from the first slice to the last; no other database is affected by it.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Lock, Thread
from typing import Any

import psycopg
from sqlalchemy import make_url

from bench.drain import QUEUE, workflows
from bench.journals import new_journal
from bench.peers.process import BenchError
from bench.report import Measure, progress
from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.postgres.connection.pool import connect

MINUTES = 10.0  # of work in each database
SLICES, WARM_UP_RUNS = 40, 300
AHEAD, CHUNK = 600, 100  # runs that wait at most; how many of each kind are started at a time
CONCURRENCY = 10
LAST_QUARTER_AT_LEAST = 0.8

_HOLD = "SELECT count(*) FROM bench.runs"
_DEAD = """SELECT relname, n_dead_tup, pg_total_relation_size(relid) / 1048576 FROM pg_stat_user_tables
    WHERE schemaname = 'bench' AND n_dead_tup > 1000 ORDER BY n_dead_tup DESC"""
_adding = Lock()
_RUNS, _CLAIMS, _CLAIMED, _CLAIM_SECONDS, _SETTLED, _SETTLE_SECONDS, _COUNTS = range(7)


@dataclass
class MeasuredDatabase:
    """One database, its worker, and the worker's rate in each slice."""

    name: str
    squid: Squid
    counts: Any
    alive: Callable[[], bool]
    started: int = 0
    runs_per_second: list[float] = field(default_factory=list)

    def drain(self, seconds: float) -> None:
        """Start runs for that many seconds, and wait until the worker has completed all."""
        before, began = self.started, time.perf_counter()
        while time.perf_counter() - began < seconds:
            self._supply(AHEAD)
        self._wait()
        self.runs_per_second.append((self.started - before) / (time.perf_counter() - began))

    def warm_up(self) -> None:
        """Complete some runs before anything is measured."""
        while self.started < WARM_UP_RUNS:
            self._supply(WARM_UP_RUNS)
        self._wait()

    def _supply(self, ahead: int) -> None:
        if self.started - self.counts[_RUNS] >= ahead:
            self._pause()
            return
        self.squid.start_many("one_step", [{"n": n} for n in range(2 * CHUNK)])
        self.squid.start_many("three_steps", [{"n": n} for n in range(CHUNK)])
        self.started += 3 * CHUNK

    def _wait(self) -> None:
        while self.counts[_RUNS] < self.started:
            self._pause()

    def _pause(self) -> None:
        if not self.alive():
            msg = f"the worker of the database {self.name!r} has ended; {self.counts[_RUNS]:,.0f} runs were done"
            raise BenchError(msg)
        time.sleep(0.005)

    def quarter(self, number: int) -> float:
        """Return the mean of a quarter of all slices."""
        size = len(self.runs_per_second) // 4
        return sum(self.runs_per_second[number * size : (number + 1) * size]) / size

    def call_times(self) -> str:
        """Return how long a claim and a settlement took, as text."""
        counts = list(self.counts)
        return (
            f"{self.name}: {1e3 * counts[_CLAIM_SECONDS] / max(1, counts[_CLAIMS]):.2f} ms per claim of "
            f"{counts[_CLAIMED] / max(1, counts[_CLAIMS]):.1f}, "
            f"{1e6 * counts[_SETTLE_SECONDS] / max(1, counts[_SETTLED]):.0f} us per settled step"
        )


def measure(minutes: float = MINUTES) -> list[Measure]:
    """Drain both databases in turn, and compare the quarters.

    Raises:
        BenchError: a worker ended before its time.
    """
    slices = max(4, min(SLICES, int(minutes * 15)) // 4 * 4)
    with new_journal() as storage, ExitStack() as stack:
        url = storage.engine.url.render_as_string(hide_password=False)
        plain = stack.enter_context(_database("plain", url))
        held = stack.enter_context(_database("held", _other_database(storage)))
        plain.warm_up()
        held.warm_up()
        stack.enter_context(_old_snapshot(held))
        for number in range(slices):
            progress("slices", number, slices)
            for database in (plain, held) if number % 2 else (held, plain):
                database.drain(60 * minutes / slices)
        print(f"\n{plain.call_times()}\n{held.call_times()}\n{_dead(plain)}\n{_dead(held)}")
    return [_judged(plain, held, number) for number in range(4)]


def _judged(plain: MeasuredDatabase, held: MeasuredDatabase, number: int) -> Measure:
    before, beside = plain.quarter(number), held.quarter(number)
    bound = LAST_QUARTER_AT_LEAST if number == 3 else None
    detail = f"{beside:,.0f} runs a second beside {before:,.0f}"
    name = f"old snapshot, quarter {number + 1} of the drain"
    return Measure(name, "times as fast", beside / before, at_least=bound, detail=detail)


@contextmanager
def _database(name: str, url: str) -> Iterator[MeasuredDatabase]:
    storage = PostgresStorage(url, "bench")
    storage.upgrade()
    context = multiprocessing.get_context("spawn")
    counts = context.RawArray("d", _COUNTS)  # written by the worker alone
    stop = context.Event()
    worker = context.Process(target=_work, args=(url, counts, stop))
    worker.start()
    with Squid(storage, workflows(lambda: None)) as squid:
        try:
            yield MeasuredDatabase(name, squid, counts, worker.is_alive)
        finally:
            stop.set()
            worker.join(60)
            storage.close()


def _other_database(storage: PostgresStorage) -> str:
    with connect(storage.engine) as connection:
        connection.autocommit = True
        connection.execute("CREATE DATABASE held")
    return make_url(storage.engine.url).set(database="held").render_as_string(hide_password=False)


@contextmanager
def _old_snapshot(database: MeasuredDatabase) -> Iterator[None]:
    with _open(database) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute(_HOLD)
        yield
        connection.execute("ROLLBACK")


def _open(database: MeasuredDatabase) -> "psycopg.Connection[Any]":
    storage = database.squid.journal
    assert isinstance(storage, PostgresStorage)
    connection = connect(storage.engine)
    connection.autocommit = True
    connection.execute("SET idle_in_transaction_session_timeout = 0")
    return connection


def _dead(database: MeasuredDatabase) -> str:
    with _open(database) as connection:
        rows = connection.execute(_DEAD).fetchall()
    return f"{database.name}: dead rows " + ", ".join(f"{name} {dead:,} ({size:,} MB)" for name, dead, size in rows)


def _work(url: str, counts: Any, stop: Any) -> None:
    """Run a worker in a process of its own until `stop` is set."""

    def handle() -> None:
        _add(counts, {_RUNS: 1})

    with Squid(PostgresStorage(url, "bench"), workflows(handle)) as squid:
        _time(squid.runtime.dispatch, counts)
        worker = squid.new_worker(QUEUE, concurrency=CONCURRENCY)
        Thread(target=_stop, args=(stop, worker.stop), daemon=True).start()
        worker.run()


def _stop(event: Any, stop: Callable[[], None]) -> None:
    event.wait()
    stop()


def _time(dispatch: Any, counts: Any) -> None:
    """Count the calls of a store, and how long they take."""
    claim, settle = dispatch.claim, dispatch.settle

    def timed_claim(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        claims = claim(*arguments, **options)
        if claims:
            _add(counts, {_CLAIMS: 1, _CLAIMED: len(claims), _CLAIM_SECONDS: time.perf_counter() - began})
        return claims

    def timed_settle(settlements: Any, *arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        answers = settle(settlements, *arguments, **options)
        _add(counts, {_SETTLED: len(answers), _SETTLE_SECONDS: time.perf_counter() - began})
        return answers

    dispatch.claim, dispatch.settle = timed_claim, timed_settle


def _add(counts: Any, added: dict[int, float]) -> None:
    with _adding:
        for place, value in added.items():
            counts[place] += value
