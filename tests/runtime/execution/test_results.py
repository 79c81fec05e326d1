"""One attempt: what a step is given, and what becomes of whatever it returns or raises."""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.workflow import Defer, Fail, Resource, Retry, StepContext, Workflow
from tests.runtime.workers import facts_of, status_of, until

MIB = 1024 * 1024
MINUTE = timedelta(minutes=1)


class Item(BaseModel):
    """A number."""

    n: int = 0


@dataclass
class Point:
    """Something that pydantic can turn into JSON."""

    x: int
    at: datetime


class Colour(Enum):
    """An enumeration of texts."""

    RED = "red"


@pytest.fixture(params=["memory", "postgres"])
def journal(request: pytest.FixtureRequest) -> Storage:
    """A journal by the real time, in both adapters."""
    found = MemoryStorage() if request.param == "memory" else request.getfixturevalue("postgres")
    assert isinstance(found, MemoryStorage | PostgresStorage)
    return found


def do(journal: Storage, function: Callable[..., Any], payload: dict[str, Any] | None = None, **options: Any) -> Any:
    """Execute one attempt of a function; give the last fact about it."""
    workflow = Workflow("one", payload=Item)
    workflow.step(name="step", **options)(function)
    squid = Squid(journal, workflow, resources={"box": ["a thing"]})
    run_id = squid.start("one", payload).run_id
    assert squid.execute_next() is not None
    assert status_of(journal, run_id) in ("completed", "failed", "running")
    settled = ("attempt_completed", "attempt_failed", "attempt_released")
    return next(fact for fact in reversed(facts_of(journal, run_id)) if fact.type in settled)


@pytest.mark.parametrize(
    ("returned", "journalled"),
    [
        (None, None),
        (True, True),
        (10**30, 10**30),
        (1.5, 1.5),
        ("ü 🦑 \u2028", "ü 🦑 \u2028"),
        ([1, "two", {"three": None}], [1, "two", {"three": None}]),
        ((1, 2), [1, 2]),
        ({3: "three"}, {"3": "three"}),
        (frozenset({7}), [7]),
        (datetime(2026, 11, 16, tzinfo=UTC), "2026-11-16T00:00:00Z"),
        (date(2026, 11, 16), "2026-11-16"),
        (timedelta(minutes=1), "PT1M"),
        (Item(n=4), {"n": 4}),
        (Point(1, datetime(2026, 11, 16, tzinfo=UTC)), {"x": 1, "at": "2026-11-16T00:00:00Z"}),
        (Colour.RED, "red"),
        (b"text", "text"),
    ],
    ids=repr,
)
def test_a_result_is_journalled_as_the_json_that_pydantic_makes_of_it(
    journal: Storage, returned: Any, journalled: Any
) -> None:
    completed = do(journal, lambda: returned)
    assert (completed.type, completed.result) == ("attempt_completed", journalled)


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (object, "object"),
        (lambda: {"f": open}, "dict"),
        (lambda: float("nan"), "float"),
        (lambda: [1, float("inf")], "list"),
        (lambda: "\ud800", "str"),
        (lambda: {"\udfff": 1}, "dict"),
        (lambda: b"\xff\xfe", "bytes"),
        (_circle, "list"),
        (_deep, "list"),
    ],
    ids=["object", "function", "nan", "infinity", "surrogate", "surrogate key", "bytes", "circle", "deep"],
)
def test_a_result_that_is_not_json_is_a_failure_that_says_so_and_is_not_tried_again(
    journal: Storage, make: Callable[[], Any], named: str
) -> None:
    failed = do(journal, lambda: make(), retry=Retry(max_attempts=5))
    assert failed.type == "attempt_failed"
    assert failed.error["code"] == "invalid_result"
    assert f"returned a {named} that is not JSON" in failed.error["message"]
    assert failed.retry_runnable_key is None


def test_a_text_that_postgres_cannot_hold_fails_the_attempt_in_words(journal: Storage) -> None:
    failed = do(journal, lambda: {"text": "a\0b"})
    assert failed.error["code"] == "unwritable_outcome"
    assert "NUL character" in failed.error["message"]


def test_a_result_of_more_than_a_mebibyte_is_refused_with_the_way_out(journal: Storage) -> None:
    failed = do(journal, lambda: "x" * MIB)  # with its quotes, two more
    assert failed.error["code"] == "result_too_large"
    assert "1,048,578 bytes" in failed.error["message"]
    assert "store it and return a reference" in failed.error["message"]


def test_a_result_of_almost_a_mebibyte_is_journalled_whole(journal: Storage) -> None:
    completed = do(journal, lambda: "x" * (MIB - 2000))
    assert completed.type == "attempt_completed"
    assert len(completed.result) == MIB - 2000


def test_a_result_that_just_fits_is_kept_whole(journal: Storage) -> None:
    kept = do(journal, lambda: "x" * (MIB - 2))
    assert (kept.type, len(kept.result)) == ("attempt_completed", MIB - 2)


def test_results_that_are_large_together_still_reach_the_step_that_takes_them(journal: Storage) -> None:
    workflow = Workflow("join")

    @workflow.step
    def left() -> str:
        return "l" * (MIB * 2 // 3)

    @workflow.step
    def right() -> str:
        return "r" * (MIB * 2 // 3)

    @workflow.step(after=[left, right])
    def both(left: str, right: str) -> int:
        return len(left) + len(right)

    squid = Squid(journal, workflow)
    run_id = squid.start("join").run_id
    while squid.execute_next() is not None:
        pass
    snapshot = squid.inspect_run(run_id)
    assert (snapshot.status, snapshot.outputs["both"]) == ("completed", 2 * (MIB * 2 // 3))


# --- what a step raises ---------------------------------------------------------------------------------------------


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _raiser(error: BaseException) -> Callable[[], None]:
    def step() -> None:
        raise error

    return step


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ValueError("no such order"), "ValueError", "no such order"),
        (KeyError("amount"), "KeyError", "'amount'"),
        (_Unprintable(), "_Unprintable", "(its message cannot be shown)"),
        (ValueError("bad \ud800 text \0"), "ValueError", "bad ? text \\0"),
        (ExceptionGroup("two", [ValueError("a"), KeyError("b")]), "ExceptionGroup", "two (2 sub-exceptions)"),
        (asyncio.CancelledError("gone"), "CancelledError", "gone"),
        (SystemExit(3), "SystemExit", "3"),
        (Fail("for good"), "Fail", "for good"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_a_step_raises_is_a_failure_with_its_type_and_message(
    journal: Storage, error: BaseException, kind: str, message: str
) -> None:
    failed = do(journal, _raiser(error))
    assert failed.type == "attempt_failed"
    assert (failed.error["type"], failed.error["message"]) == (kind, message)
    assert ("traceback" in failed.error) == (kind != "Fail")


def test_a_failure_is_bounded_however_long_its_message(journal: Storage) -> None:
    failed = do(journal, _raiser(ValueError("long " * 100_000)))
    assert len(failed.error["message"]) == 4_000
    assert len(failed.error["traceback"]) <= 8_000


def test_sys_exit_fails_the_attempt_and_not_the_worker(journal: Storage) -> None:
    workflow = Workflow("exits", payload=Item)

    @workflow.step
    def step(n: int) -> int:
        if n == 1:
            sys.exit("enough")
        return n

    squid = Squid(journal, workflow)
    runs = [each.run_id for each in squid.start_many("exits", [{"n": n} for n in range(3)])]
    report = squid.worker(until_idle=True, concurrency=1)
    assert (report.completed, report.failed) == (2, 1)
    assert [status_of(journal, run) for run in runs] == ["completed", "failed", "completed"]
    error = squid.inspect_run(runs[1]).error
    assert error is not None
    assert (error["type"], error["message"]) == ("SystemExit", "enough")


def test_sys_exit_of_an_async_step_does_not_end_the_loop_that_it_shares_with_others(journal: Storage) -> None:
    workflow = Workflow("exits", payload=Item)

    @workflow.step
    async def step(n: int) -> int:
        await asyncio.sleep(0)
        if n == 1:
            sys.exit("enough")
        await asyncio.sleep(0.02)
        return n

    squid = Squid(journal, workflow)
    runs = [each.run_id for each in squid.start_many("exits", [{"n": n} for n in range(4)])]
    report = squid.worker(until_idle=True, concurrency=4)
    assert (report.completed, report.failed) == (3, 1)
    assert [status_of(journal, run) for run in runs] == ["completed", "failed", "completed", "completed"]


def test_an_async_step_fails_and_is_tried_again_as_any_other(journal: Storage) -> None:
    workflow = Workflow("flaky")
    calls: list[int] = []

    @workflow.step(retry=Retry(max_attempts=3, initial=timedelta(0)))
    async def step(ctx: StepContext) -> int:
        await asyncio.sleep(0)
        calls.append(ctx.attempt)
        if ctx.attempt < 3:
            raise TimeoutError("slow")
        return ctx.attempt

    squid = Squid(journal, workflow)
    run_id = squid.start("flaky").run_id
    report = squid.worker(until_idle=True)
    assert calls == [1, 2, 3]
    assert (report.retried, report.completed) == (2, 1)
    assert status_of(journal, run_id) == "completed"


# --- what a step is given -------------------------------------------------------------------------------------------


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


def test_a_deferral_is_neither_a_failure_nor_a_delivery(journal: Storage) -> None:
    released = do(journal, _raiser(Defer("not yet", after=timedelta(hours=1))))
    assert (released.type, released.reason) == ("attempt_released", "not yet")
    assert released.visible_at - released.occurred_at == timedelta(hours=1)
    (attempt,) = RunUnit.fold(journal.read_run(released.run_id)).dispatch.attempts.values()
    assert (attempt.status, attempt.deliveries, attempt.attempt_number) == ("available", 0, 1)


def test_execute_next_gives_none_when_nothing_is_due_and_the_run_otherwise(journal: Storage) -> None:
    workflow = Workflow("one")
    workflow.step(name="step")(lambda: "done")
    squid = Squid(journal, workflow)
    assert squid.execute_next() is None
    run_id = squid.start("one").run_id
    found = squid.execute_next(owner_id="me")
    assert found is not None
    assert (found.run_id, found.status, found.outputs) == (run_id, "completed", {"step": "done"})
    assert facts_of(journal, run_id, "attempt_claimed")[0].owner_id == "me"
    assert squid.execute_next() is None


def test_execute_next_extends_its_lease_as_often_as_it_is_told(journal: Storage) -> None:
    workflow = Workflow("slow")

    @workflow.step
    def step(ctx: StepContext) -> int:
        return len(until(lambda: facts_of(journal, ctx.run_id, "attempt_heartbeat")[2:], "three heartbeats"))

    squid = Squid(journal, workflow)
    squid.start("slow")
    found = squid.execute_next(lease=timedelta(hours=1), heartbeat=timedelta(milliseconds=20))
    assert found is not None
    assert found.status == "completed"


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
    until(lambda: all(each.ident != thread for each in threading.enumerate()), "the end of its thread")
