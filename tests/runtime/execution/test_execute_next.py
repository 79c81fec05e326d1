"""`execute_next` and the context of a step: what a step receives, leases, and loops that run already."""

import asyncio
import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from typing import Annotated, Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.workflow import Resource, Retry, StepContext, Workflow
from tests.runtime.execution.single_attempts import Item
from tests.runtime.workers import facts_of, until

MINUTE = timedelta(minutes=1)


def test_a_step_is_told_everything_about_its_attempt(journal: Storage, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[StepContext] = []
    workflow = Workflow("told", payload=Item)

    @workflow.step
    def first(n: int) -> int:
        return n + 1

    @workflow.step(after=first, retry=Retry(max_attempts=2, initial=timedelta(0)))
    def second(ctx: StepContext, box: Annotated[list[str], Resource("box")]) -> dict[str, Any]:
        seen.append(ctx)
        ctx.log.warning("second at work")
        if ctx.attempt == 1:
            raise ValueError("again")
        return {**ctx.state, "box": box}

    squid = Squid(journal, workflow, resources={"box": ["a thing"]})
    run_id = squid.start("told", {"n": 4}).run_id
    with caplog.at_level(logging.WARNING, "squid_dagster.step"):
        squid.worker(until_idle=True)
    assert squid.inspect_run(run_id).outputs["second"] == {"n": 4, "first": 5, "box": ["a thing"]}
    once, again = seen
    assert (once.run_id, once.workflow, once.step) == (run_id, "told", "second")
    assert (once.attempt, again.attempt) == (1, 2)
    assert (once.fencing_token, again.fencing_token) == (1, 2), "it grows over retries"
    assert once.idempotency_key == again.idempotency_key == f"{run_id}:second:1"
    assert again.runnable_key == f"{run_id}:second:1:2"
    assert not again.cancelled
    assert [record.getMessage() for record in caplog.records if record.name == "squid_dagster.step"] == [
        "second at work"
    ] * 2


def test_an_input_that_does_not_fit_fails_with_the_parameter_and_never_the_value(journal: Storage) -> None:
    workflow = Workflow("misfit")

    @workflow.step
    def first() -> str:
        return "s3cret"

    @workflow.step(after=first, retry=Retry(max_attempts=9))
    def second(first: int) -> int:
        return first

    squid = Squid(journal, workflow)
    run_id = squid.start("misfit").run_id
    squid.worker(until_idle=True)
    snapshot = squid.inspect_run(run_id)
    assert snapshot.status == "failed"
    assert snapshot.error is not None
    assert snapshot.error["code"] == "invalid_input"
    assert "'first'" in snapshot.error["message"]
    assert "s3cret" not in snapshot.error["message"]


def test_execute_next_gives_none_when_nothing_is_due_and_the_run_otherwise(journal: Storage) -> None:
    workflow = Workflow("one")
    workflow.step(name="step")(lambda: "done")
    squid = Squid(journal, workflow)
    assert squid.execute_next() is None
    run_id = squid.start("one").run_id
    snapshot = squid.execute_next(owner_id="me")
    assert snapshot is not None
    assert (snapshot.run_id, snapshot.status, snapshot.outputs) == (run_id, "completed", {"step": "done"})
    assert facts_of(journal, run_id, "attempt_claimed")[0].owner_id == "me"
    assert squid.execute_next() is None


def test_execute_next_extends_its_lease_as_often_as_it_is_told(journal: Storage) -> None:
    workflow = Workflow("slow")

    @workflow.step
    def step(ctx: StepContext) -> int:
        return len(until(lambda: facts_of(journal, ctx.run_id, "attempt_heartbeat")[2:], "three heartbeats"))

    squid = Squid(journal, workflow)
    squid.start("slow")
    snapshot = squid.execute_next(lease=timedelta(hours=1), heartbeat=timedelta(milliseconds=20))
    assert snapshot is not None
    assert snapshot.status == "completed"


@pytest.mark.parametrize("options", [{"heartbeat": timedelta(0)}, {"heartbeat": MINUTE, "lease": MINUTE}], ids=str)
def test_execute_next_refuses_a_heartbeat_that_keeps_no_lease_before_it_claims(
    journal: Storage, options: dict[str, timedelta]
) -> None:
    workflow = Workflow("one")
    workflow.step(name="step")(lambda: "done")
    squid = Squid(journal, workflow)
    run_id = squid.start("one").run_id
    with pytest.raises(InvalidArgument, match="heartbeat"):
        squid.execute_next(**options)  # type: ignore[arg-type]
    assert facts_of(journal, run_id, "attempt_claimed") == []


async def _answers(ctx: StepContext) -> str:
    await asyncio.sleep(0)
    return asyncio.current_task().get_name()  # type: ignore[union-attr]  # it runs in a task


async def _fails_once(ctx: StepContext) -> str:
    await asyncio.sleep(0)
    if ctx.attempt == 1:
        raise ValueError("not yet")
    return "the second time"


@pytest.mark.parametrize("function", [_answers, _fails_once, lambda: "at once"], ids=["async", "retried", "sync"])
def test_execute_next_works_inside_a_running_event_loop(journal: Storage, function: Callable[..., Any]) -> None:
    workflow = Workflow("one")
    workflow.step(name="step", retry=Retry(2, initial=timedelta(0)))(function)
    squid = Squid(journal, workflow)
    run_id = squid.start("one").run_id

    async def main() -> None:
        while squid.execute_next() is not None:
            await asyncio.sleep(0)

    asyncio.run(main())
    assert squid.inspect_run(run_id).status == "completed"


def test_an_async_step_inside_a_running_loop_has_the_callers_context_and_leaves_no_thread(journal: Storage) -> None:
    mark = ContextVar("mark", default="none")
    workflow = Workflow("one")

    @workflow.step
    async def step() -> list[Any]:
        return [mark.get(), threading.get_ident()]

    squid = Squid(journal, workflow)
    run_id = squid.start("one").run_id

    async def main() -> None:
        mark.set("mine")
        squid.execute_next()

    asyncio.run(main())
    said, thread = squid.inspect_run(run_id).outputs["step"]
    assert said == "mine"
    assert thread != threading.get_ident()
    until(lambda: all(alive.ident != thread for alive in threading.enumerate()), "the end of its thread")
