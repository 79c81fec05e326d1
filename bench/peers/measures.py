"""The measurements. Each runs a system on a fresh copy of its database, and counts by the tables of that database."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import psycopg

from bench.peers.process import PATIENCE_SECONDS, BenchError, Process
from bench.peers.server import Server
from bench.peers.systems import Candidates, Settings, System
from bench.peers.wire import SHAPES, WARM_UP, Order

_POLL_SECONDS = 0.001
_SHARED_POLL_SECONDS = 0.05  # while handlers run, and of a drain that takes seconds
_LATENCY_WARM_UP = 5
_PAUSE_SECONDS = (0.15, 0.25)  # longer than any system buffers a completion, and at random moments of its polls


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement: name, unit, the function that measures a system in one setting, and the settings of a system."""

    name: str
    unit: str
    take: Callable[[Server, System, Settings, random.Random], list[float]]
    jobs: Callable[[System], int]  # none where a system cannot do it
    candidates: Callable[[System], Candidates]


def prepare(server: Server, system: System) -> None:
    """Create the database that all measurements of a system are copied from."""
    url = server.create(system.name)
    with Process(system.command, Order("prepare", url)) as process:
        process.finish()


def single_start(server: Server, system: System, settings: Settings, _: random.Random) -> list[float]:
    """Measure starts a second, one after another, by one client."""
    return [_starts(server, system, Order("single", "", system.sizes.single, settings=settings), WARM_UP)]


def bulk_start(server: Server, system: System, settings: Settings, _: random.Random) -> list[float]:
    """Measure starts a second, in the system's own bulk form."""
    return [_starts(server, system, Order("bulk", "", system.sizes.bulk, settings=settings), 0)]


def drain(
    name: str, workflow: str, steps: int, server: Server, system: System, settings: Settings, _: random.Random
) -> list[float]:
    """Measure starts a second that one process completes, times `steps`."""
    order = Order("drain", "", system.drains[name].count, workflow, settings)
    with _filled(server, system, order) as url, Process(system.command, replace(order, url=url)) as process:
        ready: float = process.wait_for("ready")["at"]
        first: float = process.wait_for("last")["first"]
        end = _wait_until_done(url, system, order)
        process.finish()
    # For a system that works while it still starts up, the rest of its startup does not count.
    return [order.count * steps / (end - min(ready, first))]


def share_drain(
    name: str, workflow: str, server: Server, system: System, settings: Settings, _: random.Random
) -> list[float]:
    """Measure starts a second that some processes complete together, from the moment when all of them are ready."""
    order = Order("share", "", system.drains[name].count, workflow, settings)
    with _filled(server, system, order) as url, ExitStack() as stack:
        ordered = replace(order, url=url)
        processes = [stack.enter_context(Process(system.command, ordered)) for _ in range(settings["processes"])]
        for process in processes:
            process.wait_for("ready")
        begin = time.monotonic()
        for process in processes:
            process.ask()
        end = _wait_until_done(url, system, order, _SHARED_POLL_SECONDS)
        for process in processes:
            process.finish()
    return [order.count / (end - begin)]


def idle_latency(server: Server, system: System, settings: Settings, chance: random.Random) -> list[float]:
    """Measure milliseconds from the call that starts a job to the handler's first line, on an idle queue."""
    milliseconds = []
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
                milliseconds.append((worker.wait_for("handled")["at"] - sent["at"]) * 1e3)
            _wait_until_done(url, system, Order("trickle", url, len(milliseconds)))
    return milliseconds[_LATENCY_WARM_UP:]


def _drain_of(name: str, unit: str, workflow: str, steps: int = 1) -> Measurement:
    return _of_drains(name, unit, partial(drain, name, workflow, steps))


def _of_drains(name: str, unit: str, take: Callable[..., list[float]]) -> Measurement:
    return Measurement(
        name,
        unit,
        take,
        lambda system: system.drains[name].count if name in system.drains else 0,
        lambda system: system.drains[name].candidates,
    )


SHARED = "shared three-step drain"
MEASUREMENTS = (
    _drain_of("one-step drain", "jobs/s", "one_step"),
    _drain_of("three-step drain", "workflows/s", "three_steps"),
    _of_drains(SHARED, "workflows/s", partial(share_drain, SHARED, "three_steps")),
    _drain_of("step of a chain", "steps/s", "chain", SHAPES["chain"].steps),
    _drain_of("sibling of a fan-out", "steps/s", "fan", SHAPES["fan"].steps),
    _drain_of("child of a parent", "runs/s", "family", SHAPES["family"].runs),
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


@contextmanager
def _filled(server: Server, system: System, order: Order) -> Iterator[str]:
    """Yield a copy of the system's database whose queue holds the order's jobs."""
    with server.copy_of(system.name) as url:
        with Process(system.command, replace(order, command="bulk", url=url, settings=system.starts)) as process:
            process.finish()
        server.settle(url)
        yield url


def _wait_until_done(url: str, system: System, order: Order, poll_seconds: float = _POLL_SECONDS) -> float:
    """Return the time at which all is done by the system's tables.

    Raises:
        BenchError: it takes too long, or another table of the system differs.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (done := _one(connection, system.done, {})) < order.runs:
            if time.monotonic() > deadline:
                msg = f"{system.name} was to end {order.runs} runs in {PATIENCE_SECONDS:g} s, and its table has {done}"
                raise BenchError(msg)
            time.sleep(poll_seconds)
        end = time.monotonic()
        proven = _one(connection, system.proof, {"steps": SHAPES[order.workflow].steps})
    if not done == proven == order.runs:
        msg = f"{system.name} ran {order.runs} jobs, and its tables have {done} and {proven} as done"
        raise BenchError(msg)
    return end


def _ask(url: str, query: str) -> int:
    with psycopg.connect(url) as connection:
        return _one(connection, query, {})


def _one(connection: psycopg.Connection[Any], query: str, values: dict[str, int]) -> int:
    row = connection.execute(query.encode(), values).fetchone()
    assert row is not None
    return int(row[0])
