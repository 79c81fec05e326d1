"""procrastinate, driven by the orders of the benchmark; runs in the peers' environment.

Its best documented setting: asynchronous tasks, so that no job needs a thread; concurrency in one process as "Execute
multiple jobs at the same time" has it, with a connection for each and one more as "Mind the size of your PostgreSQL
pool" asks; jobs in bulk by `batch_defer`. uvloop is not in its documentation and does it no harm, so it gets it.
"""

# mypy: disable-error-code="import-not-found"
# mypy: allow-untyped-decorators

import asyncio
from collections.abc import Callable
from typing import Any

import uvloop
from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from bench.peers.wire import WARM_UP, Countdown, Order, Stopwatch, asked, obey, say


def prepare(order: Order) -> None:
    """Apply the schema."""
    with App(connector=SyncPsycopgConnector(conninfo=order.url)).open() as app:
        app.schema_manager.apply_schema()


def single(order: Order) -> None:
    """Defer one job after another; the synchronous client is the faster one here."""
    app, noop = _app(SyncPsycopgConnector(conninfo=order.url), lambda: None)
    with app.open():
        for n in range(WARM_UP):
            noop.defer(n=n)
        with Stopwatch(order.count):
            for n in range(order.count):
                noop.defer(n=n)


def bulk(order: Order) -> None:
    """Defer with `batch_defer`, its bulk form, in chunks of the size that was fastest."""
    chunk = order.settings["bulk_chunk"]
    app, noop = _app(SyncPsycopgConnector(conninfo=order.url), lambda: None)
    with app.open(), Stopwatch(order.count):
        for start in range(0, order.count, chunk):
            noop.batch_defer(*({"n": n} for n in range(start, min(start + chunk, order.count))))


def drain(order: Order) -> None:
    """Run until the queue is empty."""
    _loop(order)(_run(order, Countdown(order.runs).tick, wait=False))


def work(order: Order) -> None:
    """Run until SIGTERM, and report each job that was handled."""
    _loop(order)(_run(order, lambda: say("handled"), wait=True))


def trickle(order: Order) -> None:
    """Defer one job for each line of the benchmark."""
    app, noop = _app(SyncPsycopgConnector(conninfo=order.url), lambda: None)
    with app.open():
        for number in asked():
            say("sending")
            noop.defer(n=number)


async def _run(order: Order, handle: Callable[[], None], *, wait: bool) -> None:
    pool_size = order.settings["pool_size"]
    app, _ = _app(PsycopgConnector(conninfo=order.url, min_size=pool_size, max_size=pool_size), handle)
    async with app.open_async():
        say("ready")
        await app.run_worker_async(concurrency=order.settings["concurrency"], wait=wait)


def _app(connector: Any, handle: Callable[[], None]) -> tuple[Any, Any]:
    app = App(connector=connector)

    @app.task(name="noop")
    async def noop(n: int) -> None:
        handle()

    return app, noop


def _loop(order: Order) -> Callable[[Any], Any]:
    return uvloop.run if order.settings["uvloop"] else asyncio.run


if __name__ == "__main__":
    obey({"prepare": prepare, "single": single, "bulk": bulk, "drain": drain, "work": work, "trickle": trickle})
