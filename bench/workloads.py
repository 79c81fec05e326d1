"""Workflows of many steps, visits, siblings and children for the benchmarks, and the loops that drain them.

Steps do nothing, so that what is measured is the claim, the call and the settlement.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from pydantic import BaseModel, JsonValue

from bench.report import progress
from squid_dagster import Signal
from squid_dagster.api import Squid
from squid_dagster.runtime.worker.report import SettledAttempt
from squid_dagster.workflow import StepContext, Workflow, path

ROUNDS = 40  # visits with decisions, every other one by a process without any state of the run
EARLY, CHECKPOINTED = 10, 400  # visits; the second has a checkpoint before it
WINDOW = 100  # visits, siblings or children of which the mean is taken
S = TypeVar("S")


class Job(BaseModel):
    """The payload of every run."""

    n: int = 1


def chain(length: int) -> Workflow:
    """Return a workflow of steps one after another, each taking the output of the one before."""
    workflow = Workflow(f"chain_{length}", payload=Job)
    _add(workflow, "step_0", "n: int")
    for i in range(1, length):
        _add(workflow, f"step_{i}", f"step_{i - 1}: int")
    return workflow


def conditional(length: int) -> Workflow:
    """Return a chain by routes, with a condition on the output of each step."""
    workflow = Workflow(f"conditional_{length}", payload=Job)
    for i in range(length):
        _add(workflow, f"step_{i}", "n: int" if not i else f"step_{i - 1}: int")
    for i in range(length - 1):
        workflow.route(f"step_{i}", to="fail", when=path(f"step_{i}") < 0)
        workflow.route(f"step_{i}", to=f"step_{i + 1}")
    workflow.route(f"step_{length - 1}", to="complete")
    return workflow


def fan(width: int) -> Workflow:
    """Return a workflow of a step, so many siblings after it, and a step that takes the outputs of all of them."""
    workflow = Workflow(f"fan_{width}", payload=Job)
    _add(workflow, "root", "n: int")
    for i in range(width):
        _add(workflow, f"side_{i}", "root: int")
    _add(workflow, "join", ", ".join(f"side_{i}: int" for i in range(width)))
    return workflow


def loop(visits: int) -> Workflow:
    """Return a workflow of one step that is visited so many times."""
    workflow = Workflow(f"loop_{visits}", payload=Job)

    @workflow.step(output="count", max_visits=visits)
    def turn(count: int = 0) -> int:
        return count + 1

    workflow.route("turn", to="turn", when=path("count") < visits)
    workflow.route("turn", to="complete")
    return workflow


def _add(workflow: Workflow, name: str, parameters: str) -> None:
    scope: dict[str, Callable[..., int]] = {}
    exec(f"def {name}({parameters}) -> int: return 1", scope)  # noqa: S102  a function of that name and signature
    workflow.step(scope[name])


def decided_loop(visits: int) -> Workflow:
    """Return a loop of so many visits, some of which are followed by an approval and an external step."""
    workflow = Workflow(f"decided_{visits}", payload=Job, entry="turn")

    @workflow.step(output="count", max_visits=visits + ROUNDS)
    def turn(count: int = 0) -> int:
        return count + 1

    workflow.approval("review", max_visits=3 * ROUNDS)
    workflow.external("elsewhere", "dagster_job", job="elsewhere", max_visits=3 * ROUNDS)
    for begin in (EARLY, CHECKPOINTED, visits):
        workflow.route("turn", to="turn", when=path("count") < begin)
        workflow.route("turn", to="review", when=path("count") < begin + ROUNDS)
    workflow.route("turn", to="complete")
    workflow.route("review", to="elsewhere")
    workflow.route("review", on="error", to="fail")
    workflow.route("elsewhere", to="turn")
    return workflow


def calls_about(run_id: str, key: str) -> dict[str, Callable[[Squid], object]]:
    """Return the commands to a run at one visit, each under a key of its own."""
    about: dict[str, JsonValue] = {"run_id": run_id, "runnable_key": key}
    request = Signal(
        type="external_requested", payload={**about, "launcher": "bench"}, idempotency_key=f"request:{key}"
    )
    outcome = Signal(type="external_completed", payload={**about, "succeeded": True}, idempotency_key=f"outcome:{key}")
    return {
        "approval": lambda squid: squid.approve(run_id, actor="ada", idempotency_key=f"approval:{key}"),
        "keyed signal": lambda squid: squid.apply_signal(request),
        "external outcome": lambda squid: squid.apply_signal(outcome),
    }


def family(read: Callable[[], S], children: int, window: int = WINDOW) -> tuple[Workflow, Workflow, list[S]]:
    """Return a workflow that starts children on a queue of their own, that of the children, and a list of readings.

    A reading is taken at every `window` starts of a run with so many `children`, none of smaller ones.
    """
    parent, child = Workflow("parent", payload=Job), chain(1)
    costs: list[S] = []

    @parent.step
    def start_all(ctx: StepContext, n: int) -> int:
        for number in range(n):
            if n == children and number % window == 0:
                costs.append(read())
                progress("children", number, children)
            ctx.start_child_run(child.name, {"n": number}, child_key=f"c-{number}", queue="children")
        if n == children:
            costs.append(read())
        return n

    return parent, child, costs


def watched(squid: Squid, read: Callable[[], S], steps: int, window: int = WINDOW) -> list[S]:
    """Execute attempts until nothing is due. Return a reading at every `window` steps."""
    costs: list[S] = []
    done = 0

    def settled(attempts: Sequence[SettledAttempt]) -> None:
        nonlocal done
        before, done = done // window, done + len(attempts)
        if done // window > before:  # a reading costs as much as a step
            costs.append(read())
            progress("settled", min(done, steps), steps)

    squid.new_worker("default", concurrency=10, until_idle=True, on_settled=settled).run()
    return costs
