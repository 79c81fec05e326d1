"""dbos, driven by the orders of the benchmark; runs in the peers' environment.

Its best documented setting: a queue with or without `worker_concurrency`, whichever is faster, polled far more often
than the default of once a second; asynchronous or threaded workflows, whichever is faster. A job is a workflow without
a step of its own, which is the least that dbos can make durable; a workflow of several steps calls them one after
another. Steps side by side are asynchronous and gathered. Children are started in place or enqueued, whichever is
faster. In bulk many workflows are enqueued with one transaction (`enqueue_in_transaction`), which beat concurrent calls
of `enqueue_async`.
"""

# mypy: disable-error-code="import-not-found"
# mypy: allow-untyped-decorators

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from dbos import DBOS, DBOSClient

from bench.peers.wire import CHAIN, WARM_UP, WIDTH, Countdown, Order, Stopwatch, asked, obey, say

QUEUE = "bench"
APPLICATION = "bench"


def prepare(order: Order) -> None:
    """Create the system tables."""
    _launch(order, lambda: None)
    DBOS.destroy()


def single(order: Order) -> None:
    """Enqueue one workflow after another."""
    client = DBOSClient(system_database_url=order.url)
    for n in range(WARM_UP):
        client.enqueue(_options(order), n)
    with Stopwatch(order.count):
        for n in range(order.count):
            client.enqueue(_options(order), n)


def bulk(order: Order) -> None:
    """Enqueue many workflows with each transaction."""
    chunk = order.settings["bulk_chunk"]
    client = DBOSClient(system_database_url=order.url)
    engine = sa.create_engine(order.url.replace("postgresql://", "postgresql+psycopg://"))
    with Stopwatch(order.count):
        for start in range(0, order.count, chunk):
            with engine.begin() as connection:
                for n in range(start, min(start + chunk, order.count)):
                    client.enqueue_in_transaction(connection, _options(order), n)


def drain(order: Order) -> None:
    """Serve the queue until the benchmark closes stdin."""
    _serve(order, Countdown(order.runs).tick)


def work(order: Order) -> None:
    """Serve the queue until SIGTERM, and report each workflow that was handled."""
    _serve(order, lambda: say("handled"))


def trickle(order: Order) -> None:
    """Enqueue one workflow for each line of the benchmark."""
    client = DBOSClient(system_database_url=order.url)
    for number in asked():
        say("sending")
        client.enqueue(_options(order), number)


def _serve(order: Order, handle: Callable[[], None]) -> None:
    # Registered before the launch, so that the queue is polled at once: the launched process looks for new queues once
    # a second only.
    client = DBOSClient(system_database_url=order.url)
    client.register_queue(
        QUEUE,
        worker_concurrency=order.settings["worker_concurrency"],
        polling_interval_sec=order.settings["polling_interval_sec"],
        application_name=APPLICATION,
    )
    client.destroy()
    _launch(order, handle)
    say("ready")
    sys.stdin.read()
    DBOS.destroy()


def _launch(order: Order, handle: Callable[[], None]) -> None:
    DBOS(
        config={
            "name": APPLICATION,
            "system_database_url": order.url,
            "sys_db_pool_size": order.settings.get("pool_size"),
            "log_level": "ERROR",
            "application_version": "1",
        }
    )
    if order.settings.get("workflows") == "async":
        _register_async(handle, queued_children=order.settings.get("children") == "queued")
    else:
        _register(handle)
    DBOS.launch()


def _register(handle: Callable[[], None]) -> None:
    @DBOS.step()
    def step(n: int) -> int:
        return n + 1

    @DBOS.workflow(name="one_step")
    def one_step(n: int) -> int:
        handle()
        return n + 1

    @DBOS.workflow(name="three_steps")
    def three_steps(n: int) -> int:
        result: int = step(step(step(n)))
        handle()
        return result

    @DBOS.workflow(name="chain")
    def chain(n: int) -> int:
        for _ in range(CHAIN):
            n = step(n)
        handle()
        return n


def _register_async(handle: Callable[[], None], *, queued_children: bool) -> None:
    @DBOS.step()
    async def step(n: int) -> int:
        return n + 1

    @DBOS.workflow(name="one_step")
    async def one_step(n: int) -> int:
        handle()
        return n + 1

    @DBOS.workflow(name="three_steps")
    async def three_steps(n: int) -> int:
        result: int = await step(await step(await step(n)))
        handle()
        return result

    @DBOS.workflow(name="chain")
    async def chain(n: int) -> int:
        for _ in range(CHAIN):
            n = await step(n)
        handle()
        return n

    @DBOS.workflow(name="fan")
    async def fan(n: int) -> int:
        root = await step(n)
        sides = await asyncio.gather(*(step(root) for _ in range(WIDTH)))
        result: int = await step(sum(sides))
        handle()
        return result

    @DBOS.workflow(name="family")
    async def family(n: int) -> int:
        for _ in range(WIDTH):
            if queued_children:
                await DBOS.enqueue_workflow_async(QUEUE, one_step, n)
            else:
                await DBOS.start_workflow_async(one_step, n)
        handle()
        return WIDTH


def _options(order: Order) -> Any:
    return {"workflow_name": order.workflow, "queue_name": QUEUE}


if __name__ == "__main__":
    obey({"prepare": prepare, "single": single, "bulk": bulk, "drain": drain, "work": work, "trickle": trickle})
