"""Ours, driven by the orders of the comparison in `bench.peers`; runs in the project's own environment.

Nothing is switched off: every fact is journalled, leases are held and kept alive, all views are up to date. The setting
is one worker process with as many steps at a time as `concurrency` says; starts in bulk are calls of `start_many`.
"""

from collections.abc import Callable

from pydantic import BaseModel

from bench.peers.wire import WARM_UP, Countdown, Order, Stopwatch, asked, obey, say
from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.workflow import Workflow

SCHEMA = "squid"
QUEUE = "default"
WORKFLOWS = {1: "one_step", 3: "three_steps"}


class Job(BaseModel):
    """What every system gets as the input of a job."""

    n: int


def prepare(order: Order) -> None:
    """Make the schema."""
    storage = PostgresStorage(order.url.replace("postgresql://", "postgresql+psycopg://"), SCHEMA)
    storage.upgrade()
    storage.close()


def single(order: Order) -> None:
    """Start one run after another."""
    with _connect(order, _nothing) as squid:
        for n in range(WARM_UP):
            squid.start(WORKFLOWS[order.steps], {"n": n})
        with Stopwatch(order.count):
            for n in range(order.count):
                squid.start(WORKFLOWS[order.steps], {"n": n})


def bulk(order: Order) -> None:
    """Start many runs with each call."""
    chunk = order.settings["bulk_chunk"]
    with _connect(order, _nothing) as squid, Stopwatch(order.count):
        for start in range(0, order.count, chunk):
            payloads = [{"n": n} for n in range(start, min(start + chunk, order.count))]
            squid.start_many(WORKFLOWS[order.steps], payloads)


def drain(order: Order) -> None:
    """Work until nothing is due."""
    with _connect(order, Countdown(order.count).tick) as squid:
        worker = squid.new_worker(QUEUE, concurrency=order.settings["concurrency"], until_idle=True)
        say("ready")
        worker.run()


def work(order: Order) -> None:
    """Work until ended, and say when each run is handled."""
    with _connect(order, lambda: say("handled")) as squid:
        worker = squid.new_worker(QUEUE, concurrency=order.settings["concurrency"])
        say("ready")
        worker.run()


def trickle(order: Order) -> None:
    """Start one run whenever the benchmark asks for one."""
    with _connect(order, _nothing) as squid:
        for number in asked():
            say("sending")
            squid.start(WORKFLOWS[order.steps], {"n": number})


def _connect(order: Order, handle: Callable[[], None]) -> Squid:
    return Squid.connect(order.url, workflows(handle), schema=SCHEMA)


def workflows(handle: Callable[[], None]) -> list[Workflow]:
    """Return the workflows of all orders, whose last steps call `handle`."""
    return [_one_step(handle), _three_steps(handle)]


def _one_step(handle: Callable[[], None]) -> Workflow:
    workflow = Workflow(WORKFLOWS[1], payload=Job)

    @workflow.step
    def only(n: int) -> int:
        handle()
        return n + 1

    return workflow


def _three_steps(handle: Callable[[], None]) -> Workflow:
    workflow = Workflow(WORKFLOWS[3], payload=Job)

    @workflow.step
    def first(n: int) -> int:
        return n + 1

    @workflow.step
    def second(first: int) -> int:
        return first + 1

    @workflow.step
    def third(second: int) -> int:
        handle()
        return second + 1

    return workflow


def _nothing() -> None:
    """Handle nothing: this process starts runs and works on none."""


if __name__ == "__main__":
    obey({"prepare": prepare, "single": single, "bulk": bulk, "drain": drain, "work": work, "trickle": trickle})
