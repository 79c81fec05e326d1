"""Workflows for the tests of the kit: one for each thing that can hold a run up, or bring it to its end."""

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel

from squid_dagster import Defer, Resource, Retry, StepContext, Workflow, path


class Amount(BaseModel):
    """A payload."""

    amount: int = 1


class Script:
    """A resource that says what a step does each time it is called; once the script is over, it succeeds."""

    def __init__(self, *acts: Exception | Callable[[], object]) -> None:
        """Store what happens call by call: an exception to raise, or a function to call."""
        self._acts = list(acts)
        self.calls = 0

    def then(self, *acts: Exception | Callable[[], object]) -> None:
        """Append further acts."""
        self._acts += acts

    def play(self) -> int:
        """Run the next act; return the number of calls."""
        self.calls += 1
        act = self._acts.pop(0) if self._acts else None
        if isinstance(act, Exception):
            raise act
        if act is not None:
            act()
        return self.calls


Scripted = Annotated[Script, Resource("script")]


def scripted(name: str = "scripted", **options: object) -> Workflow:
    """Return one step that follows its script, with three attempts ten minutes apart."""
    workflow = Workflow(name, payload=Amount)
    retry = Retry(max_attempts=3, initial=timedelta(minutes=10), factor=1)

    @workflow.step(**{"retry": retry, **options})  # type: ignore[call-overload, untyped-decorator]
    def work(amount: int, script: Scripted) -> dict[str, int]:
        return {"amount": amount, "call": script.play()}

    workflow.route("work", to="complete")
    return workflow


def review() -> Workflow:
    """Return a step, a wait of an hour, an approval, a pause, a step."""
    workflow = Workflow("review", payload=Amount, version="1")

    @workflow.step(output="quote")
    def ask(amount: int) -> int:
        return amount * 2

    workflow.wait("rest", timedelta(hours=1))
    workflow.approval("approve", output="decision", deadline=timedelta(days=2))
    workflow.pause("hold")

    @workflow.step(output="paid")
    def pay(ctx: StepContext, quote: int, decision: dict[str, str]) -> str:
        return f"{quote} as {decision['actor']} said, under {ctx.idempotency_key}"

    for source, target in (("ask", "rest"), ("rest", "approve"), ("approve", "hold"), ("hold", "pay")):
        workflow.route(source, to=target)
    workflow.route("approve", on="error", to="fail")
    workflow.route("pay", to="complete")
    return workflow


def diamond(**options: object) -> Workflow:
    """Return one step, then two at once (`left` follows its script), then one that needs both."""
    workflow = Workflow("diamond", payload=Amount)

    @workflow.step
    def top(amount: int) -> int:
        return amount

    @workflow.step(**options)  # type: ignore[call-overload, untyped-decorator]
    def left(top: int, script: Scripted) -> int:
        return top + script.play()

    @workflow.step
    def right(top: int) -> int:
        return top + 10

    @workflow.step
    def bottom(left: int, right: int) -> int:
        return left + right

    return workflow


def saga(undone: list[str]) -> Workflow:
    """Return two steps that are compensated, newest first, since the third one fails."""
    workflow = Workflow("saga", payload=Amount)

    @workflow.step(compensate=lambda: undone.append("book"))
    def book(amount: int) -> int:
        return amount

    @workflow.step(compensate=lambda: undone.append("charge"))
    def charge(book: int) -> int:
        return book

    @workflow.step
    def ship(charge: int) -> None:
        raise ValueError(f"no ship for {charge}")

    workflow.route(book, to=charge)
    workflow.route(charge, to=ship)
    workflow.route(ship, to="complete")
    return workflow


def circle(visits: int = 1000) -> Workflow:
    """Return a step that is visited again and again."""
    workflow = Workflow("circle")

    @workflow.step(max_visits=visits)
    def look() -> dict[str, bool]:
        return {"found": False}

    workflow.route(look, to="complete", when=path("look.found") == True)  # noqa: E712  a condition, not a bool
    workflow.route(look, to=look)
    return workflow


def family() -> list[Workflow]:
    """Return a parent that starts a child of one step."""
    parent, child = Workflow("parent", payload=Amount), Workflow("child", payload=Amount)

    @parent.step
    def spawn(ctx: StepContext, amount: int) -> str:
        run_id: str = ctx.start_child_run("child", {"amount": amount + 1}, child_key="only").run_id
        return run_id

    @child.step
    def grow(amount: int) -> int:
        return amount

    return [parent, child]


def deferring(hours: int = 2) -> Defer:
    """Return what a step raises to be run later."""
    return Defer("not yet", after=timedelta(hours=hours))
