"""The measurements. Each takes a system on a fresh copy of its database, and believes only what that database says."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from bench.peers.process import PATIENCE_SECONDS, BenchError, Process
from bench.peers.server import Server
from bench.peers.systems import Candidates, Settings, System
from bench.peers.wire import WARM_UP, Order

_POLL_SECONDS = 0.001
_LATENCY_WARM_UP = 5
_PAUSE_SECONDS = (0.15, 0.25)  # longer than any system buffers a completion, and never in step with a poll


@dataclass(frozen=True, slots=True)
class Measurement:
    """What is measured, in which unit, how it is taken from a system in one setting, and what a system brings to it."""

    name: str
    unit: str
    take: Callable[[Server, System, Settings, random.Random], list[float]]
    jobs: Callable[[System], int]  # none where a system cannot do it
    candidates: Callable[[System], Candidates]


def prepare(server: Server, system: System) -> None:
    """Make the database that all measurements of a system are copied from."""
    url = server.create(system.name)
    with Process(system.command, Order("prepare", url)) as process:
        process.finish()


def single_start(server: Server, system: System, settings: Settings, _: random.Random) -> list[float]:
    """Starts a second, one after another, by one client."""
    return [_starts(server, system, Order("single", "", system.sizes.single, settings=settings), WARM_UP)]


def bulk_start(server: Server, system: System, settings: Settings, _: random.Random) -> list[float]:
    """Starts a second, in the system's own bulk form."""
    return [_starts(server, system, Order("bulk", "", system.sizes.bulk, settings=settings), 0)]


def drain_jobs(server: Server, system: System, settings: Settings, _: random.Random) -> list[float]:
    """Jobs a second that one process completes."""
    return [_drain(server, system, Order("drain", "", system.sizes.drain, 1, settings))]


def drain_workflows(server: Server, system: System, settings: Settings, _: random.Random) -> list[float]:
    """Workflows of three steps a second that one process completes."""
    return [_drain(server, system, Order("drain", "", system.sizes.workflows, 3, settings))]


def idle_latency(server: Server, system: System, settings: Settings, chance: random.Random) -> list[float]:
    """Milliseconds from the call that starts a job to the handler's first line, each on a queue that is idle."""
    found = []
    with server.copy_of(system.name) as url:
        server.settle(url)
        with (
            Process(system.command, Order("work", url, settings=settings)) as worker,
            Process(system.command, Order("trickle", url, settings=settings)) as client,
        ):
            worker.wait_for("ready")
            for _ in range(_LATENCY_WARM_UP + system.sizes.latency):
                time.sleep(chance.uniform(*_PAUSE_SECONDS))
                client.ask()
                sent = client.wait_for("sending")
                found.append((worker.wait_for("handled")["at"] - sent["at"]) * 1e3)
            _wait_until_done(url, system, len(found), 1)
    return found[_LATENCY_WARM_UP:]


MEASUREMENTS = (
    Measurement("one-step drain", "jobs/s", drain_jobs, lambda s: s.sizes.drain, lambda s: s.drains),
    Measurement(
        "three-step drain", "workflows/s", drain_workflows, lambda s: s.sizes.workflows, lambda s: s.workflow_drains
    ),
    Measurement("single start", "starts/s", single_start, lambda s: s.sizes.single, lambda s: [s.starts]),
    Measurement("bulk start", "starts/s", bulk_start, lambda s: s.sizes.bulk, lambda s: [s.starts]),
    Measurement("idle latency", "ms", idle_latency, lambda s: s.sizes.latency, lambda s: s.idles),
)


def _starts(server: Server, system: System, order: Order, extra: int) -> float:
    with server.copy_of(system.name) as url:
        server.settle(url)
        with Process(system.command, replace(order, url=url)) as process:
            timed = process.wait_for("timed")
            process.finish()
        waiting = _ask(url, system.waiting)
        if waiting != order.count + extra:
            msg = f"{system.name} started {order.count + extra} jobs, and its table has {waiting}"
            raise BenchError(msg)
    return float(timed["count"] / timed["seconds"])


def _drain(server: Server, system: System, order: Order) -> float:
    """Fill a queue, then time one process from being ready until its last job is seen as done by another session."""
    with server.copy_of(system.name) as url:
        order = replace(order, url=url)
        with Process(system.command, replace(order, command="bulk", settings=system.starts)) as process:
            process.finish()
        server.settle(url)
        with Process(system.command, order) as process:
            ready: float = process.wait_for("ready")["at"]
            first: float = process.wait_for("last")["first"]
            end = _wait_until_done(url, system, order.count, order.steps)
            process.finish()
    # A system that begins while it still starts up is not charged for the rest of that.
    return order.count / (end - min(ready, first))


def _wait_until_done(url: str, system: System, count: int, steps: int) -> float:
    """Give the time at which the system's tables first say that all is done; asks only once handlers have run."""
    with psycopg.connect(url, autocommit=True) as connection:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (done := _one(connection, system.done, {})) < count:
            if time.monotonic() > deadline:
                msg = f"{system.name} ran {count} jobs, and after {PATIENCE_SECONDS:g} s its table has {done} as done"
                raise BenchError(msg)
            time.sleep(_POLL_SECONDS)
        end = time.monotonic()
        proven = _one(connection, system.proof, {"steps": steps})
    if not done == proven == count:
        msg = f"{system.name} ran {count} jobs, and its tables have {done} and {proven} as done"
        raise BenchError(msg)
    return end


def _ask(url: str, query: str) -> int:
    with psycopg.connect(url) as connection:
        return _one(connection, query, {})


def _one(connection: psycopg.Connection[Any], query: str, values: dict[str, int]) -> int:
    row = connection.execute(query.encode(), values).fetchone()
    assert row is not None
    return int(row[0])
