"""This project's side of the comparison in `bench.peers`; runs in the project's own environment.

Nothing is switched off: every fact is journalled, leases are held and kept alive, all views are up to date. The setting
is one worker process with as many steps at a time as `concurrency` says, or several of these; starts in bulk are calls
of `start_many`.
"""

from collections.abc import Callable, Iterator
from threading import Thread

from pydantic import BaseModel

from bench.peers.wire import CHAIN, WARM_UP, WIDTH, Countdown, Order, Stopwatch, asked, obey, say
from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.workflow import StepContext, Workflow

SCHEMA = "squid"
QUEUE = "default"


class Job(BaseModel):
    """The input of a job, the same for every system."""

    n: int


def _nothing() -> None:
    """Handle nothing."""


def prepare(order: Order) -> None:
    """Create the schema."""
    storage = PostgresStorage(order.url.replace("postgresql://", "postgresql+psycopg://"), SCHEMA)
    storage.upgrade()
    storage.close()


def single(order: Order) -> None:
    """Start one run after another."""
    with _connect(order, _nothing) as squid:
        for n in range(WARM_UP):
            squid.start(order.workflow, {"n": n})
        with Stopwatch(order.count):
            for n in range(order.count):
                squid.start(order.workflow, {"n": n})


def bulk(order: Order) -> None:
    """Start many runs with each call."""
    chunk = order.settings["bulk_chunk"]
    with _connect(order, _nothing) as squid, Stopwatch(order.count):
        for start in range(0, order.count, chunk):
            payloads = [{"n": n} for n in range(start, min(start + chunk, order.count))]
            squid.start_many(order.workflow, payloads)


def drain(order: Order) -> None:
    """Execute attempts until nothing is due."""
    with _connect(order, Countdown(order.runs).tick) as squid:
        worker = squid.new_worker(QUEUE, concurrency=order.settings["concurrency"], until_idle=True)
        say("ready")
        worker.run()


def share(order: Order) -> None:
    """Wait for a line, then execute attempts beside other processes until the benchmark closes stdin."""
    with _connect(order, _nothing) as squid:
        worker = squid.new_worker(QUEUE, concurrency=order.settings["concurrency"])
        lines = asked()
        say("ready")
        next(lines)
        Thread(target=_stop_after, args=(lines, worker.stop), daemon=True).start()
        worker.run()


def work(order: Order) -> None:
    """Execute attempts until SIGTERM, and report each run that was handled."""
    with _connect(order, lambda: say("handled")) as squid:
        worker = squid.new_worker(QUEUE, concurrency=order.settings["concurrency"])
        say("ready")
        worker.run()


def trickle(order: Order) -> None:
    """Start one run for each line of the benchmark."""
    with _connect(order, _nothing) as squid:
        for number in asked():
            say("sending")
            squid.start(order.workflow, {"n": number})


def _connect(order: Order, handle: Callable[[], None]) -> Squid:
    others = _OTHERS[order.workflow](handle) if order.workflow in _OTHERS else []
    return Squid.connect(order.url, [*workflows(handle), *others], schema=SCHEMA)


def _stop_after(lines: Iterator[int], stop: Callable[[], None]) -> None:
    for _ in lines:
        continue
    stop()


def workflows(handle: Callable[[], None]) -> list[Workflow]:
    """Return a workflow of one step and one of three, whose last steps call `handle`."""
    return [_one_step(handle), _three_steps(handle)]


def _one_step(handle: Callable[[], None]) -> Workflow:
    workflow = Workflow("one_step", payload=Job)

    @workflow.step
    def only(n: int) -> int:
        handle()
        return n + 1

    return workflow


def _three_steps(handle: Callable[[], None]) -> Workflow:
    workflow = Workflow("three_steps", payload=Job)

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


def _chain(handle: Callable[[], None]) -> list[Workflow]:
    workflow = Workflow("chain", payload=Job)
    _add(workflow, "step_0", "n: int")
    for i in range(1, CHAIN):
        _add(workflow, f"step_{i}", f"step_{i - 1}: int", handle if i == CHAIN - 1 else _nothing)
    return [workflow]


def _fan(handle: Callable[[], None]) -> list[Workflow]:
    workflow = Workflow("fan", payload=Job)
    _add(workflow, "root", "n: int")
    for i in range(WIDTH):
        _add(workflow, f"side_{i}", "root: int")
    _add(workflow, "join", ", ".join(f"side_{i}: int" for i in range(WIDTH)), handle)
    return [workflow]


def _family(handle: Callable[[], None]) -> list[Workflow]:
    parent, child = Workflow("family", payload=Job), Workflow("child", payload=Job)

    @parent.step
    def start_all(ctx: StepContext, n: int) -> int:
        for number in range(WIDTH):
            ctx.start_child_run(child.name, {"n": n}, child_key=f"c-{number}")
        handle()
        return WIDTH

    @child.step
    def only(n: int) -> int:
        handle()
        return n + 1

    return [parent, child]


def _add(workflow: Workflow, name: str, parameters: str, handle: Callable[[], None] = _nothing) -> None:
    scope: dict[str, Callable[..., int]] = {}
    source = f"def {name}({parameters}) -> int:\n    handle()\n    return 1"
    exec(source, {"handle": handle}, scope)  # noqa: S102  a function of that name and signature
    workflow.step(scope[name])


_OTHERS = {"chain": _chain, "fan": _fan, "family": _family}

if __name__ == "__main__":
    commands = {"prepare": prepare, "single": single, "bulk": bulk, "drain": drain, "share": share, "work": work}
    obey({**commands, "trickle": trickle})
