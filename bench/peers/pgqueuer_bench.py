"""pgqueuer, driven by the orders of the benchmark; runs in the peers' environment.

Its best documented setting: asyncpg and uvloop, as its own benchmark tool has them; the batch size, the pool and the
number of managers in the process that were fastest; the table settings of `pgq autovac`, as its checklist asks. Tables
are "durable", its default: the faster levels lose jobs in a crash.
"""

# mypy: disable-error-code="import-not-found"
# mypy: allow-untyped-decorators

import asyncio
import json
from collections.abc import Callable
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from bench.peers.wire import WARM_UP, Countdown, Order, Stopwatch, asked, obey, say

ENTRYPOINT = "noop"


def prepare(order: Order) -> None:
    """Install the tables, and the table settings that its checklist asks for."""

    async def install() -> None:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(order.url)))
        await queries.install()
        await queries.optimize_autovacuum()

    uvloop.run(install())


def single(order: Order) -> None:
    """Enqueue one job after another over one connection."""

    async def enqueue() -> None:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(order.url)))
        for n in range(WARM_UP):
            await queries.enqueue(ENTRYPOINT, _payload(n))
        with Stopwatch(order.count):
            for n in range(order.count):
                await queries.enqueue(ENTRYPOINT, _payload(n))

    uvloop.run(enqueue())


def bulk(order: Order) -> None:
    """Enqueue with lists, its bulk form, in chunks of the size that was fastest."""
    chunk = order.settings["bulk_chunk"]

    async def enqueue() -> None:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(order.url)))
        with Stopwatch(order.count):
            for start in range(0, order.count, chunk):
                payloads = [_payload(n) for n in range(start, min(start + chunk, order.count))]
                await queries.enqueue([ENTRYPOINT] * len(payloads), payloads, [0] * len(payloads))

    uvloop.run(enqueue())


def drain(order: Order) -> None:
    """Run until the queue is empty."""
    uvloop.run(_run(order, Countdown(order.runs).tick, QueueExecutionMode.drain))


def work(order: Order) -> None:
    """Run until SIGTERM, and report each job that was handled."""
    uvloop.run(_run(order, lambda: say("handled"), QueueExecutionMode.continuous))


def trickle(order: Order) -> None:
    """Enqueue one job for each line of the benchmark."""

    async def enqueue() -> None:
        queries = Queries(AsyncpgDriver(await asyncpg.connect(order.url)))
        numbers = asked()
        while (number := await asyncio.to_thread(next, numbers, None)) is not None:
            say("sending")
            await queries.enqueue(ENTRYPOINT, _payload(number))

    uvloop.run(enqueue())


async def _run(order: Order, handle: Callable[[], None], mode: Any) -> None:
    managers = [PgQueuer(await _driver(order)) for _ in range(order.settings["managers"])]
    for manager in managers:

        @manager.entrypoint(ENTRYPOINT)
        async def noop(_: Any) -> None:
            handle()

    say("ready")
    await asyncio.gather(*(manager.run(batch_size=order.settings["batch_size"], mode=mode) for manager in managers))


async def _driver(order: Order) -> Any:
    pool_size = order.settings["pool_size"]
    if pool_size == 1:
        return AsyncpgDriver(await asyncpg.connect(order.url))
    return AsyncpgPoolDriver(await asyncpg.create_pool(order.url, min_size=pool_size, max_size=pool_size))


def _payload(n: int) -> bytes:
    return json.dumps({"n": n}).encode()


if __name__ == "__main__":
    obey({"prepare": prepare, "single": single, "bulk": bulk, "drain": drain, "work": work, "trickle": trickle})
