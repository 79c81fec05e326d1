"""The workflows of the scenarios: small, and each the same however often it is interrupted."""

import signal
import threading
from datetime import timedelta
from typing import Annotated, Any

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.workflow import Cron, Defer, Fail, Resource, Retry, StepContext, Workflow, path
from tests.recovery.scenario import NEVER


def done(ctx: StepContext) -> dict[str, Any]:
    """Succeed, and say which step it was."""
    return {"did": ctx.step}


def refuse(ctx: StepContext) -> None:
    """Fail for good."""
    raise Fail(f"{ctx.step} cannot be done")


def undo(ctx: StepContext) -> None:
    """Undo a step."""


def fail_to_undo(ctx: StepContext) -> None:
    """Fail to undo a step."""
    raise Fail("cannot be undone")


def line() -> Workflow:
    """Build two steps, one after the other."""
    workflow = Workflow("line")
    workflow.step(name="first")(done)
    workflow.step(name="second")(done)
    workflow.route("first", to="second")
    workflow.route("second", to="complete")
    return workflow


def turning() -> Workflow:
    """Build two steps, of which the first may be visited again: what follows from it depends on the run."""
    workflow = Workflow("turning", entry="first")
    workflow.step(name="first", max_visits=2)(done)
    workflow.step(name="second")(done)
    workflow.route("first", to="first", when=path("first.did") == "nothing")
    workflow.route("first", to="second")
    workflow.route("second", to="complete")
    return workflow


def diamond() -> Workflow:
    """Build one step, two that follow from it, and one that waits for both."""
    workflow = Workflow("diamond")
    workflow.step(name="top")(done)
    workflow.step(name="left", after="top")(done)
    workflow.step(name="right", after="top")(done)
    workflow.step(name="join", after=["left", "right"])(done)
    return workflow


def retried() -> Workflow:
    """Build a step that succeeds the second time, and one that follows from it."""
    workflow = Workflow("retried")

    def flaky(ctx: StepContext) -> dict[str, Any]:
        if ctx.attempt == 1:
            raise ValueError("the first attempt fails")
        return {"attempt": ctx.attempt}

    workflow.step(name="flaky", retry=Retry(max_attempts=2, initial=timedelta(seconds=10)))(flaky)
    workflow.step(name="after")(done)
    workflow.route("flaky", to="after")
    workflow.route("after", to="complete")
    return workflow


def failing() -> Workflow:
    """Build a step that fails while another one waits: the run ends with open work."""
    workflow = Workflow("failing")
    workflow.step(name="broken")(refuse)
    workflow.wait("long", NEVER)
    workflow.step(name="join", after=["broken", "long"])(done)
    return workflow


def mended() -> Workflow:
    """Build a failure with a route of its own."""
    workflow = Workflow("mended")
    workflow.step(name="broken")(refuse)
    workflow.step(name="mend")(done)
    workflow.route("broken", to="complete")
    workflow.route("broken", on="error", to="mend", recovery="compensation")
    workflow.route("mend", to="complete")
    return workflow


def saga() -> Workflow:
    """Build three steps of which the last fails: the others are undone, newest first, one of them in vain."""
    workflow = Workflow("saga")
    workflow.step(name="reserve", compensate=undo)(done)
    workflow.step(name="charge", compensate=fail_to_undo)(done)
    workflow.step(name="ship")(refuse)
    workflow.route("reserve", to="charge")
    workflow.route("charge", to="ship")
    workflow.route("ship", to="complete")
    workflow.route("ship", on="error", to="fail")
    return workflow


def deferring() -> Workflow:
    """Build a step that has nothing to do when it is first delivered."""
    workflow = Workflow("deferring")

    def patient(ctx: StepContext) -> dict[str, Any]:
        if ctx.fencing_token == 1:
            raise Defer("not yet", after=timedelta(minutes=1))
        return {"did": ctx.step}

    workflow.step(name="patient")(patient)
    workflow.step(name="after")(done)
    workflow.route("patient", to="after")
    workflow.route("after", to="complete")
    return workflow


def _deadly(ctx: StepContext, clock: Annotated[VirtualClock, Resource("clock")]) -> dict[str, Any]:
    """Sleep longer than the lease the first time: its worker counts as dead."""
    if ctx.attempt == 1:
        clock.advance(timedelta(minutes=10))
    return {"attempt": ctx.attempt}


def deadly() -> Workflow:
    """Build a step that is lost at every delivery of its first attempt."""
    workflow = Workflow("deadly")
    workflow.step(name="deadly", max_deliveries=2)(_deadly)
    workflow.step(name="after")(done)
    workflow.route("deadly", to="after")
    workflow.route("after", to="complete")
    return workflow


def deadly_mended() -> Workflow:
    """Build `deadly` with a route for its failure."""
    workflow = Workflow("deadly_mended")
    workflow.step(name="deadly", max_deliveries=2)(_deadly)
    workflow.step(name="mend")(done)
    workflow.route("deadly", to="complete")
    workflow.route("deadly", on="error", to="mend")
    workflow.route("mend", to="complete")
    return workflow


def reviewed() -> Workflow:
    """Build a step, an approval, and a step for each decision."""
    workflow = Workflow("reviewed")
    workflow.step(name="prepare", compensate=undo)(done)
    workflow.approval("review")
    workflow.step(name="publish")(done)
    workflow.route("prepare", to="review")
    workflow.route("review", to="publish")
    workflow.route("review", on="error", to="fail")
    workflow.route("publish", to="complete")
    return workflow


def paused_first() -> Workflow:
    """Build a pause before anything is scheduled, and another one after the steps."""
    workflow = Workflow("paused_first")
    workflow.pause("hold")
    workflow.step(name="after")(done)
    workflow.route("hold", to="after")
    workflow.route("after", to="complete")
    return workflow


def decided_first() -> Workflow:
    """Build an approval without steps: the queue never has any work of the run."""
    workflow = Workflow("decided_first")
    workflow.approval("decide")
    workflow.route("decide", to="complete")
    workflow.route("decide", on="error", to="fail")
    return workflow


def waiting() -> Workflow:
    """Build a wait that is longer than any scenario."""
    workflow = Workflow("waiting")
    workflow.wait("long", NEVER)
    workflow.step(name="after")(done)
    workflow.route("long", to="after")
    workflow.route("after", to="complete")
    return workflow


def hourly() -> Workflow:
    """Build a workflow that starts every hour."""
    workflow = Workflow("hourly", triggers=[Cron("0 * * * *", name="hourly")])
    workflow.step(name="first")(done)
    return workflow


def parent() -> Workflow:
    """Build a step that starts a child, and one that follows from it."""
    workflow = Workflow("parent")

    def spawn(ctx: StepContext) -> dict[str, Any]:
        ctx.start_child_run("line", {}, child_key="only", metadata={"why": "test"})
        return {"did": ctx.step}

    workflow.step(name="spawn")(spawn)
    workflow.step(name="after")(done)
    workflow.route("spawn", to="after")
    workflow.route("after", to="complete")
    return workflow


def family() -> tuple[Workflow, ...]:
    """Build a run that waits, with two children: one waits too, one has ended; each has a child that waits."""
    top, resting, ended = Workflow("top"), Workflow("resting"), Workflow("ended")

    def spawn_both(ctx: StepContext) -> None:
        ctx.start_child_run("resting", {}, child_key="resting")
        ctx.start_child_run("ended", {}, child_key="ended")

    def spawn_below_resting(ctx: StepContext) -> None:
        ctx.start_child_run("waiting", {}, child_key="below_resting")

    def spawn_below_ended(ctx: StepContext) -> None:
        ctx.start_child_run("waiting", {}, child_key="below_ended")

    for workflow, spawn in ((top, spawn_both), (resting, spawn_below_resting)):
        workflow.step(name="spawn")(spawn)
        workflow.wait("long", NEVER)
        workflow.route("spawn", to="long")
        workflow.route("long", to="complete")
    ended.step(name="spawn")(spawn_below_ended)
    return top, resting, ended, waiting()


def elsewhere() -> Workflow:
    """Build a step that another system does, twice if need be, and one that follows from it."""
    workflow = Workflow("elsewhere")
    retry = Retry(max_attempts=2, initial=timedelta(seconds=10))
    workflow.external("there", "dagster_job", job="there", retry=retry)
    workflow.step(name="after")(done)
    workflow.route("there", to="after")
    workflow.route("after", to="complete")
    return workflow


def unwritable() -> Workflow:
    """Build a step whose result cannot be written: a failure that says so."""
    workflow = Workflow("unwritable")

    def strange(ctx: StepContext) -> dict[str, str]:
        return {"text": "a\0b"}

    workflow.step(name="strange")(strange)
    workflow.step(name="mend")(done)
    workflow.route("strange", to="complete")
    workflow.route("strange", on="error", to="mend")
    workflow.route("mend", to="complete")
    return workflow


def interrupted() -> Workflow:
    """Build a workflow whose step is interrupted when it is first delivered."""
    workflow = Workflow("interrupted")

    def touchy(ctx: StepContext) -> dict[str, Any]:
        if ctx.fencing_token == 1 and threading.current_thread() is threading.main_thread():
            signal.raise_signal(signal.SIGHUP)
        return {"did": ctx.step}

    workflow.step(name="touchy")(touchy)
    return workflow


class Stopper:
    """Lets a step stop the worker that runs it, and no other worker."""

    def __init__(self) -> None:
        """Start without a worker to stop."""
        self.stop: Any = None


def stopped() -> Workflow:
    """Build a step that is given back when its worker is stopped, and done at its next delivery."""
    workflow = Workflow("stopped")

    def slow(ctx: StepContext, stopper: Annotated[Stopper, Resource("stopper")]) -> dict[str, Any]:
        if stopper.stop is not None:
            stopper.stop()
            ctx.cancelled.wait(60)
        return {"did": ctx.step}

    workflow.step(name="slow")(slow)
    return workflow
