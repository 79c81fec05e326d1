"""Our own calls inside a step while the database is away: they wait, and what they raise never fails the step."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import Answer, Claim, Completed, Failed, PostgresStorage
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Interrupted, Outcome
from squid_dagster.journal.network import NetworkBounds
from squid_dagster.protocol.errors import StorageUnavailable, ViewsMissing
from squid_dagster.runtime.execution.executor import Executor
from squid_dagster.runtime.execution.step_calls import infrastructure
from squid_dagster.workflow import Fail, StepContext, Workflow
from squid_dagster.workflow.authoring.step_context import Cancellation
from tests.journal.access import LONG
from tests.runtime.runs import MakeSquid
from tests.runtime.workers import all_done, facts_of, running_worker, until
from tests.servers.proxy import Proxy

SHORT = NetworkBounds(silence=0.3, confirmation=0.1, longest_pause=0.3, probe=5, connect=2)


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    """A proxy in front of the server."""
    with Proxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def far(postgres: PostgresStorage, proxy: Proxy, postgres_url: str) -> Iterator[PostgresStorage]:
    """The same journal, behind the proxy."""
    storage = PostgresStorage(proxy.url(postgres_url), postgres.schema, bounds=SHORT)
    yield storage
    storage.close()


# --- steps ----------------------------------------------------------------------------------------------------------

small = Workflow("small")


@small.step
def smile() -> str:
    return "child"


def _with_child(ctx: StepContext) -> Any:
    ctx.start_child_run("small", child_key="one")
    return "done"


def _with_state(ctx: StepContext) -> Any:
    return ctx.state.get("first", "done")


def _isolated(ctx: StepContext) -> Any:
    return ctx.state.get("first", "done")


def _transactional(connection: psycopg.Connection, ctx: StepContext) -> Any:
    connection.execute("SELECT 1")
    return "done"


def one_step(function: Callable[..., Any], **options: Any) -> Workflow:
    workflow = Workflow("one")
    workflow.step(name="only", **options)(function)
    return workflow


KINDS: dict[str, Workflow] = {
    "child": one_step(_with_child),
    "state": one_step(_with_state),
    "transactional": one_step(_transactional, transactional=True),
    "isolated": one_step(_isolated, isolate=True),
}


def claimed(squid: Squid) -> Claim:
    """Start a run and claim its step."""
    squid.start("one")
    (claim,) = squid.runtime.dispatch.claim("default", "test", definitions=squid.runtime.registry.keys)
    return claim


@contextmanager
def performing(squid: Squid, claim: Claim, cancelled: Cancellation | None = None) -> Iterator[Future[Outcome | Answer]]:
    """Run a claimed step in a thread of its own."""
    cancelled = Cancellation() if cancelled is None else cancelled
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(Executor(squid.runtime, asyncio.run).perform, claim, cancelled)
        finally:
            cancelled.set()  # a test that fails does not wait for it


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_meets_an_outage_waits_for_its_end(
    postgres: PostgresStorage, far: PostgresStorage, proxy: Proxy, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    # given a step that was claimed
    workflows = [KINDS[kind], small]
    claim = claimed(Squid(postgres, workflows))
    # when the database is away while it makes its call
    proxy.refuse()
    with performing(Squid(far, workflows), claim) as came:
        until(lambda: "and waits for the database" in caplog.text, "a word of the wait")
        assert not came.done()
        proxy.resume()
        outcome = came.result(LONG)
    # then it goes on, and nothing has failed
    assert outcome.error is None if isinstance(outcome, Answer) else outcome == Completed("done")
    assert len([message for message in caplog.messages if "waits for the database" in message]) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_has_waited_until_the_claim_is_lost_gives_the_attempt_back(
    postgres: PostgresStorage, far: PostgresStorage, proxy: Proxy, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    workflows = [KINDS[kind], small]
    claim = claimed(Squid(postgres, workflows))
    proxy.refuse()
    cancelled = Cancellation()
    with performing(Squid(far, workflows), claim, cancelled) as came:
        until(lambda: "and waits for the database" in caplog.text, "a word of the wait")
        cancelled.set()  # as heartbeats do when the lease is over
        outcome = came.exception(LONG) or came.result()
    assert isinstance(outcome, Interrupted | StorageUnavailable)


def test_where_heartbeats_go_through_a_call_waits_as_long_as_a_lease(
    postgres: PostgresStorage, far: PostgresStorage, proxy: Proxy
) -> None:
    workflows = [KINDS["state"]]
    claim = claimed(Squid(postgres, workflows))
    proxy.refuse()
    executor = Executor(Squid(far, workflows).runtime, asyncio.run, timedelta(seconds=0.3))
    began = time.monotonic()
    outcome = executor.perform(claim, Cancellation())
    assert time.monotonic() - began >= 0.3
    assert isinstance(outcome, Interrupted)
    assert "cannot reach Postgres" in outcome.reason


def test_an_event_loop_is_not_kept_waiting(
    postgres: PostgresStorage, far: PostgresStorage, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    async def look(ctx: StepContext) -> Any:
        return dict(ctx.state)

    workflows = [one_step(look)]
    claim = claimed(Squid(postgres, workflows))
    proxy.refuse()
    outcome = Executor(Squid(far, workflows).runtime, asyncio.run).perform(claim, Cancellation())
    assert isinstance(outcome, Interrupted)
    assert "waits for the database" not in caplog.text


# --- by a worker ----------------------------------------------------------------------------------------------------


class BlockedStep:
    """A step that says it has begun, and makes its call when it is told to."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()
        self.calls = 0

    def workflow(self, call: Callable[[StepContext], Any]) -> Workflow:
        def wait_and_call(ctx: StepContext) -> Any:
            self.calls += 1
            self.begun.set()
            self.released.wait(LONG)
            return call(ctx)

        return one_step(wait_and_call)


@pytest.mark.parametrize("call", [_with_child, _with_state])
def test_an_outage_while_a_step_makes_its_call_spends_no_attempt_and_no_delivery(
    postgres: PostgresStorage,
    far: PostgresStorage,
    proxy: Proxy,
    call: Callable[[StepContext], Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    blocked = BlockedStep()
    squid = Squid(far, [blocked.workflow(call), small])
    run_id = squid.start("one").run_id
    with running_worker(squid):
        until(blocked.begun.is_set, "the step")
        proxy.refuse()
        blocked.released.set()
        until(lambda: "and waits for the database" in caplog.text, "a word of the wait")
        proxy.resume()
        until(all_done(postgres, [run_id]), "the run")
    assert blocked.calls == 1
    assert [fact.status for fact in facts_of(postgres, run_id, "run_terminal")] == ["completed"]
    assert len(facts_of(postgres, run_id, "attempt_claimed")) == 1
    assert facts_of(postgres, run_id, "attempt_failed") == []
    if call is _with_child:
        assert len(facts_of(postgres, run_id, "child_run_started")) == 1


def test_after_an_outage_longer_than_the_lease_the_step_is_delivered_again_and_not_failed(
    postgres: PostgresStorage, far: PostgresStorage, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = BlockedStep()
    squid = Squid(far, [blocked.workflow(_with_child), small], lease=timedelta(seconds=1))
    run_id = squid.start("one").run_id
    with running_worker(squid):
        until(blocked.begun.is_set, "the step")
        proxy.refuse()
        blocked.released.set()
        until(lambda: "is lost: its result will be dropped" in caplog.text, "the end of the lease")
        proxy.resume()
        until(all_done(postgres, [run_id]), "the run")
    assert blocked.calls == 2
    assert [fact.status for fact in facts_of(postgres, run_id, "run_terminal")] == ["completed"]
    assert {fact.attempt_number for fact in facts_of(postgres, run_id, "attempt_scheduled")} == {1}
    assert facts_of(postgres, run_id, "attempt_failed") == []
    assert len(facts_of(postgres, run_id, "child_run_started")) == 1


# --- what is the database's failure, and what the step's ------------------------------------------------------------


def _raised(raise_: Callable[[], None]) -> BaseException:
    try:
        raise_()
    except BaseException as error:  # noqa: BLE001  whatever it is
        return error
    raise AssertionError


def _lost() -> None:
    raise StorageUnavailable("away")


def _from_it() -> None:
    try:
        _lost()
    except StorageUnavailable as error:
        raise RuntimeError("no child") from error


def _while_handling_it() -> None:
    try:
        _lost()
    except StorageUnavailable:
        raise RuntimeError("no child")  # noqa: B904  on purpose


def _instead_of_it() -> None:
    try:
        _lost()
    except StorageUnavailable:
        raise RuntimeError("no child") from None


def _in_a_group() -> None:
    raise BaseExceptionGroup("tasks", [ValueError("x"), BaseExceptionGroup("inner", [_raised(_from_it)])])


def _views_gone() -> None:
    raise ViewsMissing("gone")


def _its_own() -> None:
    raise ValueError("its own")


def _in_a_circle() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    raise first


@pytest.mark.parametrize("raise_", [_lost, _from_it, _while_handling_it, _in_a_group, _views_gone])
def test_what_came_from_the_database_gives_the_attempt_back(make_squid: MakeSquid, raise_: Callable[[], None]) -> None:
    assert infrastructure(_raised(raise_)) is not None
    squid = make_squid([one_step(raise_)])
    outcome = Executor(squid.runtime, asyncio.run).perform(claimed(squid), Cancellation())
    assert isinstance(outcome, Interrupted)


@pytest.mark.parametrize("raise_", [_instead_of_it, _its_own, _in_a_circle])
def test_what_is_the_steps_own_fails_it(make_squid: MakeSquid, raise_: Callable[[], None]) -> None:
    assert infrastructure(_raised(raise_)) is None
    squid = make_squid([one_step(raise_)])
    assert isinstance(Executor(squid.runtime, asyncio.run).perform(claimed(squid), Cancellation()), Failed)


def test_a_step_decides_itself_what_it_makes_of_it(make_squid: MakeSquid) -> None:
    def gives_up() -> None:
        try:
            _lost()
        except StorageUnavailable as error:
            raise Fail("no use") from error

    def goes_on() -> str:
        try:
            _lost()
        except StorageUnavailable:
            return "without"
        raise AssertionError

    for function, expected in ((gives_up, Failed), (goes_on, Completed)):
        squid = make_squid([one_step(function)])
        claim = claimed(squid)
        assert isinstance(Executor(squid.runtime, asyncio.run).perform(claim, Cancellation()), expected)
        squid.runtime.dispatch.release([claim.ref], "enough")


def test_giving_back_is_counted_and_ends(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid([one_step(_lost, max_deliveries=3)])
    run_id = squid.start("one").run_id
    for _ in range(10):
        squid.execute_next()
        clock.advance(timedelta(minutes=1))
    assert len(facts_of(squid.journal, run_id, "attempt_claimed")) == 3
    assert len(facts_of(squid.journal, run_id, "attempt_dead_lettered")) == 1
