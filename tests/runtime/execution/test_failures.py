"""What a step raises: a failure with its type and message, and never the end of the worker."""

import asyncio
import sys
from collections.abc import Callable
from datetime import timedelta

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.workflow import Defer, Fail, Retry, StepContext, Workflow
from tests.runtime.execution.single_attempts import Item, do
from tests.runtime.linear_workflow import Order
from tests.runtime.runs import MakeSquid, drain
from tests.runtime.workers import status_of


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
    runs = [receipt.run_id for receipt in squid.start_many("exits", [{"n": n} for n in range(3)])]
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
    runs = [receipt.run_id for receipt in squid.start_many("exits", [{"n": n} for n in range(4)])]
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


def test_a_deferral_is_neither_a_failure_nor_a_delivery(journal: Storage) -> None:
    released = do(journal, _raiser(Defer("not yet", after=timedelta(hours=1))))
    assert (released.type, released.reason) == ("attempt_released", "not yet")
    assert released.visible_at - released.occurred_at == timedelta(hours=1)
    (attempt,) = RunUnit.fold(journal.read_run(released.run_id)).dispatch.attempts.values()
    assert (attempt.status, attempt.deliveries, attempt.attempt_number) == ("available", 0, 1)


def test_defect_14_errors_are_reduced_to_a_code(make_squid: MakeSquid) -> None:
    # The original: what failed is replaced by a fixed message. Here an operator sees type, message, place and details.
    workflow = Workflow("failing", payload=Order)

    @workflow.step
    def charge(order_id: str) -> None:
        if order_id == "final":
            raise Fail("card declined", details={"reason": "stolen", "card_token": "tok_1"})
        raise LookupError(f"no account for order {order_id}")

    squid = make_squid(workflow)
    plain, final = (
        squid.start("failing", {"order_id": "o-5"}).run_id,
        squid.start("failing", {"order_id": "final"}).run_id,
    )
    drain(squid)
    error = squid.inspect_run(plain).error
    assert error is not None
    assert (error["type"], error["message"]) == ("LookupError", "no account for order o-5")
    assert "test_failures.py" in error["traceback"]
    assert "in charge" in error["traceback"]
    assert squid.inspect_run(final).error == {
        "type": "Fail",
        "message": "card declined",
        "details": {"reason": "stolen", "card_token": "[REDACTED]"},
    }
    assert "no account for order o-5" in str(squid.explain_run(plain).to_dict())
