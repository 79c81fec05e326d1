"""Whatever makes a step run again is counted and ends: as attempts of its retry policy, or as deliveries."""

import asyncio
import os
import select
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import text

from squid_dagster.api import Squid
from squid_dagster.journal import MemoryStorage, PostgresStorage, Storage
from squid_dagster.runtime.execution.interrupts import note_interrupts
from squid_dagster.workflow import Defer, Retry, StepContext, Workflow
from tests.runtime.workers import facts_of, running_worker, status_of, until

TWICE = Retry(max_attempts=2, initial=timedelta(0))


class _Odd(BaseException):
    """An error that is no Exception, of the step's own."""

    def __str__(self) -> str:
        raise RuntimeError("no words for it")


RAISED: list[Callable[[], BaseException]] = [
    KeyboardInterrupt,
    GeneratorExit,
    SystemExit,
    asyncio.CancelledError,
    _Odd,
    lambda: BaseExceptionGroup("many", [KeyboardInterrupt(), _Odd()]),
]


@pytest.fixture(params=["memory", "memory, thread by thread", "postgres"])
def journal(request: pytest.FixtureRequest) -> Storage:
    """An empty journal in real time, in every adapter."""
    if request.param == "postgres":
        postgres = request.getfixturevalue("postgres")
        assert isinstance(postgres, PostgresStorage)
        return postgres
    return MemoryStorage(atomic_across_threads=request.param == "memory")


@pytest.fixture(params=["worker", "execute_next"])
def work(request: pytest.FixtureRequest) -> Callable[[Squid], None]:
    """Work until nothing is due, in threads of a worker or in this one."""

    def in_threads(squid: Squid) -> None:
        squid.worker(until_idle=True)

    def in_this_thread(squid: Squid) -> None:
        while squid.execute_next() is not None:
            pass

    return in_threads if request.param == "worker" else in_this_thread


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("made", RAISED, ids=lambda made: getattr(made, "__name__", "group"))
def test_whatever_a_step_raises_is_its_failure_and_follows_its_retry_policy(
    made: Callable[[], BaseException], is_async: bool, work: Callable[[Squid], None]
) -> None:
    calls: list[int] = []
    workflow = Workflow("one")

    def plain(ctx: StepContext) -> None:
        calls.append(ctx.attempt)
        raise made()

    async def of_a_loop(ctx: StepContext) -> None:
        plain(ctx)

    workflow.step(name="step", retry=TWICE)(of_a_loop if is_async else plain)
    squid = Squid(MemoryStorage(), workflow)
    run_id = squid.start("one").run_id
    work(squid)
    assert calls == [1, 2]
    run = squid.inspect_run(run_id)
    assert (run.status, (run.error or {})["type"]) == ("failed", type(made()).__name__)


def test_a_worker_goes_on_after_a_step_that_raised_what_ends_a_thread() -> None:
    workflow = Workflow("one")

    @workflow.step
    def step(ctx: StepContext) -> None:
        raise GeneratorExit

    squid = Squid(MemoryStorage(), workflow)
    runs = [receipt.run_id for receipt in squid.start_many("one", [None] * 5)]
    assert squid.worker(until_idle=True, concurrency=1).failed == 5
    assert {squid.inspect_run(run).status for run in runs} == {"failed"}


# --- real interrupts ------------------------------------------------------------------------------------------------


def test_a_signal_in_the_main_thread_ends_execute_next_and_the_attempt_is_given_back_and_counted() -> None:
    assert threading.current_thread() is threading.main_thread()
    workflow = Workflow("one")

    @workflow.step
    def step(ctx: StepContext) -> int:
        if ctx.fencing_token == 1:
            signal.raise_signal(signal.SIGINT)
        return ctx.fencing_token

    journal = MemoryStorage()
    squid = Squid(journal, workflow)
    run_id = squid.start("one").run_id
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            squid.execute_next()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    released = facts_of(journal, run_id)[-1]
    assert (released.type, released.counted) == ("attempt_released", True)
    assert "KeyboardInterrupt" in released.reason
    assert squid.inspect_run(run_id).attempts[0].deliveries == 1
    squid.execute_next()
    assert squid.inspect_run(run_id).status == "completed"


def test_a_handler_that_a_step_has_set_stays() -> None:
    seen: list[int] = []
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, lambda *_: seen.append(1))
        with note_interrupts():
            os.kill(os.getpid(), signal.SIGHUP)
            until(lambda: seen == [1], "the handler that was there before")
            signal.signal(signal.SIGHUP, lambda *_: seen.append(2))
        os.kill(os.getpid(), signal.SIGHUP)
        until(lambda: seen == [1, 2], "the handler of the step")
    finally:
        signal.signal(signal.SIGHUP, before)


# --- deliveries -----------------------------------------------------------------------------------------------------


def _given_back(journal: Storage, run_id: str) -> list[Any]:
    return [fact for fact in facts_of(journal, run_id) if fact.type in ("attempt_released", "attempt_dead_lettered")]


def _transactional(step: Any, **options: Any) -> Workflow:
    workflow = Workflow("one")
    workflow.step(name="step", transactional=True, **options)(step)
    return workflow


def test_a_step_that_loses_its_connection_every_time_is_a_dead_letter_in_the_end(postgres: PostgresStorage) -> None:
    calls: list[int] = []

    def step(connection: sqlalchemy.Connection, ctx: StepContext) -> None:
        calls.append(ctx.fencing_token)
        connection.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    squid = Squid(postgres, _transactional(step, max_deliveries=2))
    run_id = squid.start("one").run_id
    report = squid.worker(until_idle=True)
    assert (report.claimed, report.released, report.failed) == (2, 2, 0)
    assert calls == [1, 2]
    first, last = _given_back(postgres, run_id)
    assert (first.type, first.counted) == ("attempt_released", True)
    assert "lost its connection" in first.reason
    assert (last.type, last.deliveries, last.error["code"]) == ("attempt_dead_lettered", 2, "interrupted")
    explained = squid.explain_run(run_id)
    assert explained.reason == "dead_letter"
    assert "lost its connection" in str(explained.details["error"])
    assert [attempt.runnable_key for attempt in squid.dead_letters()] == [f"{run_id}:step:1:1"]
    assert not squid.inspect_run(run_id).anomalies


def test_the_last_interruption_follows_an_error_route_in_the_same_commit(journal: Storage) -> None:
    workflow = Workflow("routed")
    done: list[str] = []

    @workflow.step(max_deliveries=1)
    def step(ctx: StepContext) -> None:
        signal.raise_signal(signal.SIGINT)

    @workflow.step
    def rescue() -> None:
        done.append("rescued")

    workflow.route("step", to="complete")
    workflow.route("step", on="error", to="rescue")
    workflow.route("rescue", to="complete")
    squid = Squid(journal, workflow)
    run_id = squid.start("routed").run_id
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            squid.execute_next()
    finally:
        signal.signal(signal.SIGINT, before)
    assert squid.worker(until_idle=True).completed == 1
    assert (done, squid.inspect_run(run_id).status) == (["rescued"], "completed")


def test_a_step_that_no_grace_is_long_enough_for_is_not_repeated_for_ever(journal: Storage) -> None:
    workflow, begun = Workflow("long"), threading.Semaphore(0)

    @workflow.step(max_deliveries=2)
    def step(ctx: StepContext) -> None:
        begun.release()
        ctx.cancelled.wait(60)

    squid = Squid(journal, workflow)
    run_id = squid.start("long").run_id
    for _ in range(2):
        with running_worker(squid, grace=timedelta(0)) as working:
            assert begun.acquire(timeout=60)
            working.stop()
    endings = _given_back(journal, run_id)
    assert [fact.type for fact in endings] == ["attempt_released", "attempt_dead_lettered"]
    assert endings[-1].error["message"] == "the worker stopped"
    assert squid.worker(until_idle=True).claimed == 0


def test_what_was_claimed_and_not_begun_is_given_back_uncounted(journal: Storage) -> None:
    workflow, begun = Workflow("long"), threading.Semaphore(0)

    @workflow.step(max_deliveries=1)
    def step(ctx: StepContext) -> None:
        raise AssertionError("never called")

    squid = Squid(journal, workflow)
    run_id = squid.start("long").run_id
    (claim,) = squid.runtime.dispatch.claim("default", "somebody")
    squid.runtime.dispatch.release([claim.ref], "not begun")
    assert squid.inspect_run(run_id).attempts[0].deliveries == 0
    assert not begun.acquire(blocking=False)


def test_a_deferral_that_the_step_asks_for_is_not_counted_however_often(journal: Storage) -> None:
    calls: list[int] = []
    workflow = Workflow("polling")

    @workflow.step(max_deliveries=2)
    def step(ctx: StepContext) -> None:
        calls.append(ctx.attempt)
        if len(calls) < 6:
            raise Defer("not yet", after=timedelta(microseconds=1))

    squid = Squid(journal, workflow)
    run_id = squid.start("polling").run_id
    until(lambda: (squid.worker(until_idle=True), status_of(journal, run_id) == "completed")[1], "the end")
    assert calls == [1] * 6


# --- limits of the database -----------------------------------------------------------------------------------------


def test_a_transactional_step_may_be_idle_for_longer_than_the_database_allows(
    postgres: PostgresStorage, postgres_url: str
) -> None:
    seen: list[str] = []

    def step(connection: sqlalchemy.Connection) -> None:
        seen.append(str(connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar()))

    url = sqlalchemy.make_url(postgres_url).update_query_dict(
        {"options": "-c idle_in_transaction_session_timeout=9000"}
    )
    storage = PostgresStorage(url.render_as_string(hide_password=False), postgres.schema)
    try:
        squid = Squid(storage, _transactional(step))
        run_id = squid.start("one").run_id
        assert squid.worker(until_idle=True).completed == 1
    finally:
        storage.close()
    assert seen == ["0"]
    assert status_of(postgres, run_id) == "completed"


def test_a_session_that_a_limit_has_ended_is_a_failure_of_the_step_that_names_the_limit(
    postgres: PostgresStorage,
) -> None:
    calls: list[int] = []

    def step(connection: sqlalchemy.Connection, ctx: StepContext) -> None:
        calls.append(ctx.attempt)
        connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 20"))
        line = select.poll()
        line.register(connection.connection.driver_connection.fileno(), select.POLLHUP)  # type: ignore[union-attr]
        until(lambda: line.poll(0), "that the database hangs up")

    squid = Squid(postgres, _transactional(step, retry=TWICE))
    run_id = squid.start("one").run_id
    report = squid.worker(until_idle=True)
    assert (report.retried, report.failed, report.released) == (1, 1, 0)
    assert calls == [1, 2]
    error = squid.inspect_run(run_id).error or {}
    assert error["code"] == "transaction_timeout"
    assert "idle_in_transaction_session_timeout" in str(error["message"])
