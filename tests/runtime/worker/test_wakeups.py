"""Hints wake a worker that would not look for an hour; losing them costs latency, never work."""

import threading
import time
from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal import Listener, LocalNotifier, PostgresStorage
from squid_dagster.journal.contract import notifier as notifier_module
from squid_dagster.journal.contract.dispatch_store import Deferred, Settlement
from squid_dagster.journal.contract.notifier import GuardedNotifier
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.runtime.execution.settlement import settle
from squid_dagster.runtime.worker.due_times import DueTimes
from squid_dagster.workflow import Defer, Retry, StepContext, Workflow
from tests.journal.access import raw
from tests.processes import children
from tests.runtime.workers import (
    NEVER,
    PATIENCE,
    all_done,
    facts_of,
    file_wait,
    queue_facts,
    running_worker,
    status_of,
    until,
    wait_for_lines,
    worker_process,
)

OFTEN = timedelta(milliseconds=50)
_LISTENERS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'squid_dagster listener'"
_CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'squid_dagster listener'"


class Item(BaseModel):
    """A number."""

    n: int = 0


def chain() -> Workflow:
    workflow = Workflow("chain")

    @workflow.step
    def first() -> int:
        return 1

    @workflow.step(after=first)
    def second(first: int) -> int:
        return first + 1

    workflow.wait("rest", timedelta(milliseconds=100), after=second)

    @workflow.step(after="rest")
    def third(second: int) -> int:
        return second + 1

    return workflow


def listeners(storage: PostgresStorage) -> set[int]:
    with raw(storage) as connection:
        return {pid for (pid,) in connection.execute(_LISTENERS)}


@pytest.fixture(params=["memory", "postgres"])
def journal(request: pytest.FixtureRequest) -> Storage:
    """A journal by the real time, in both adapters."""
    storage = MemoryStorage() if request.param == "memory" else request.getfixturevalue("postgres")
    assert isinstance(storage, MemoryStorage | PostgresStorage)
    return storage


def test_a_start_wakes_a_worker_that_has_nothing_to_do(journal: Storage) -> None:
    squid = Squid(journal, chain())
    with running_worker(squid, poll=NEVER):
        for _ in range(3):
            until(all_done(journal, [squid.start("chain").run_id]), "a run that nobody polls for")


def test_a_start_in_another_process_wakes_a_worker(postgres: PostgresStorage) -> None:
    with children() as started:
        started.append(worker_process(postgres, poll=3600))
        wait_for_lines(started[0], "ready")
        with Squid(postgres, file_wait) as squid:
            for _ in range(3):
                until(all_done(postgres, [squid.start("file_wait").run_id]), "a run that nobody polls for")


def test_hints_that_make_no_sense_do_no_harm(postgres: PostgresStorage) -> None:
    squid = Squid(postgres, chain())
    with running_worker(squid, poll=NEVER), raw(postgres) as connection:
        until(lambda: listeners(postgres), "a listener")
        for payload in ("default:", "default:1", "DEFAULT", "", ":", "a:b:c"):
            connection.execute("SELECT pg_notify(%s, %s)", (postgres.channel, payload))
        until(all_done(postgres, [squid.start("chain").run_id]), "a run that nobody polls for")


def test_a_retry_a_deferral_and_a_wait_are_taken_up_when_they_are_due_though_nobody_polls(journal: Storage) -> None:
    # given steps that come back after different times, and a worker that remembers them all
    seen: dict[tuple[str, int], int] = {}
    workflow = Workflow("later", payload=Item)

    @workflow.step(retry=Retry(max_attempts=2, initial=timedelta(milliseconds=300)))
    def step(ctx: StepContext, n: int) -> int:
        key = (ctx.run_id, n)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] > 1:
            return n
        if n == 0:
            raise ValueError("once more")
        if n == 1:
            raise Defer("not yet", after=timedelta(milliseconds=600))
        raise Defer("not for long", after=timedelta(days=1))

    workflow.wait("rest", timedelta(milliseconds=100), after=step)
    squid = Squid(journal, workflow)
    with running_worker(squid, poll=NEVER):
        early, middle, late = (squid.start("later", {"n": n}).run_id for n in range(3))
        until(lambda: len(queue_facts(journal, "attempt_released")) == 2, "two deferrals")
        # when something else wakes it in between
        squid.start("later", {"n": 3})
        # then it still takes up each when its time has come, whatever was settled last
        until(all_done(journal, [early, middle]), "the retry and the short deferral")
    assert status_of(journal, late) == "running"


def test_a_listener_that_is_cut_off_connects_again_and_misses_nothing(postgres: PostgresStorage) -> None:
    squid = Squid(postgres, chain())
    with running_worker(squid, poll=NEVER), raw(postgres) as connection:
        for _ in range(3):
            cut: set[int] = until(lambda: listeners(postgres), "a listener")
            connection.execute(_CUT)
            run_id = squid.start("chain").run_id
            until(all_done(postgres, [run_id]), "a run started while nobody listened")
            until(lambda: listeners(postgres) - cut, "another listener")  # noqa: B023  called before the next round


def test_without_any_hint_work_is_found_by_polling(postgres: PostgresStorage) -> None:
    # given a worker whose listener never reaches the server
    nowhere = "postgresql://nobody@127.0.0.1:1/nothing"
    squid = Squid(postgres, chain(), listen_url=nowhere)
    with running_worker(squid, poll=OFTEN):
        run_id = squid.start("chain").run_id
        until(all_done(postgres, [run_id]), "a run that was found by polling")
        assert not listeners(postgres)


def test_an_attempt_that_is_given_back_wakes_another_worker(postgres: PostgresStorage) -> None:
    owners: list[str] = []
    begun = threading.Event()
    workflow = Workflow("slow")

    @workflow.step
    def step(ctx: StepContext) -> None:
        owners.append(ctx.run_id)
        begun.set()
        if len(owners) == 1:
            ctx.cancelled.wait(PATIENCE)

    first, second = Squid(postgres, workflow), Squid(postgres, workflow)
    run_id = first.start("slow").run_id
    with running_worker(first, poll=NEVER, grace=timedelta(0)) as leaving:
        assert begun.wait(PATIENCE)
        with running_worker(second, poll=NEVER):
            assert leaving.stop().released == 1
            until(all_done(postgres, [run_id]), "the run, done by the other worker")
    (released,) = facts_of(postgres, run_id, "attempt_released")
    assert released.reason == "the worker stopped"
    assert len(facts_of(postgres, run_id, "attempt_claimed")) == 2


def test_every_due_time_of_a_group_is_told_not_only_the_first(journal: Storage) -> None:
    workflow = Workflow("one", payload=Item)
    workflow.step(name="step")(lambda: None)
    squid = Squid(journal, workflow)
    squid.start_many("one", [{"n": n} for n in range(3)])
    claims = squid.runtime.dispatch.claim("default", "me", limit=3)
    after = [timedelta(seconds=n) for n in (9, 3, 6)]
    settled = settle(
        squid.runtime,
        [Settlement(claim.ref, Deferred(None, due)) for claim, due in zip(claims, after, strict=True)],
    )
    assert sorted(settled.delays) == sorted(after)


def test_a_worker_waits_for_the_next_due_time_and_looks_once_it_has_passed() -> None:
    now = 100.0
    dues = DueTimes(lambda: now)
    assert dues.next_within(60) == 60
    dues.add([timedelta(seconds=9), timedelta(seconds=3), timedelta(0), timedelta(days=1)])
    assert dues.next_within(60) == 3
    assert dues.next_within(2) == 2
    now = 103.5
    assert dues.next_within(60) == 0, "one has passed: look now"
    assert dues.next_within(60) == 5.5
    now = 110.0
    assert dues.next_within(60) == 0
    assert dues.next_within(60) == 60


class Broker:
    """A notifier of the host's: its listeners get the wakeups of the same object, and none of the storage."""

    def __init__(self) -> None:
        self._local = LocalNotifier(MemoryStorage())
        self.told: list[str] = []
        self.closed = False

    def notify(self, queues: Collection[str]) -> None:
        self.told += queues
        self._local.notify(queues)

    def listen(self, queues: Collection[str]) -> Listener:
        return self._local.listen(queues)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("keyed", [True, False], ids=["with a key", "without"])
def test_workers_hear_of_everything_by_the_notifier_that_was_handed_over(journal: Storage, keyed: bool) -> None:
    broker = Broker()
    squid = Squid(journal, chain(), notifier=broker)
    with running_worker(squid, poll=NEVER):
        for n in range(2):
            key = f"k{n}" if keyed else None
            until(all_done(journal, [squid.start("chain", idempotency_key=key).run_id]), "a run that nobody polls for")
        many = squid.start_many("chain", [None] * 3, actor="ada")
        until(all_done(journal, [receipt.run_id for receipt in many]), "the runs of many starts")
    assert set(broker.told) == {"default"}
    squid.close()
    assert not broker.closed, "it is the host's"
    if isinstance(journal, PostgresStorage):
        assert listeners(journal) == set()


def test_a_notifier_that_fails_fails_no_command(journal: Storage, caplog: pytest.LogCaptureFixture) -> None:
    class BrokenBroker(Broker):
        def notify(self, queues: Collection[str]) -> None:
            raise RuntimeError("the broker is away")

    squid = Squid(journal, chain(), notifier=BrokenBroker())
    run_id = squid.start("chain", actor="ada").run_id
    assert squid.execute_next() is not None
    with running_worker(squid, poll=OFTEN):
        until(all_done(journal, [run_id]), "a run that is found by polling")
    assert "the broker is away" in caplog.text


class FailingBroker(Broker):
    """A broker that is away: one call of it, or of its listeners, raises while it is."""

    def __init__(self, failing: str) -> None:
        super().__init__()
        self.failing: str | None = failing
        self.asked = 0
        self.opened: list[FailingListener] = []

    def refuse(self, call: str) -> None:
        if self.failing == call:
            raise ConnectionError(f"the broker is away: {call}")

    def listen(self, queues: Collection[str]) -> Listener:
        self.asked += 1
        self.refuse("listen")
        self.opened.append(FailingListener(self, super().listen(queues)))
        return self.opened[-1]


class FailingListener:
    """What such a broker gives."""

    def __init__(self, broker: FailingBroker, inner: Listener) -> None:
        self.broker, self.inner = broker, inner
        self.closed = False

    def wait(self, timeout: float) -> bool:
        self.broker.refuse("wait")
        return self.inner.wait(timeout)

    def wake(self) -> None:
        self.broker.refuse("wake")
        self.inner.wake()

    def close(self) -> None:
        self.closed = True
        self.broker.refuse("close")
        self.inner.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a broker that is away again soon."""
    monkeypatch.setattr(notifier_module, "_LISTEN_AGAIN_SECONDS", 0.05)


@pytest.mark.parametrize("call", ["listen", "wait", "wake", "close"])
@pytest.mark.usefixtures("impatient")
def test_a_broker_that_is_away_ends_no_worker_and_is_said_once(
    journal: Storage, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    # given a worker that listens to a broker of which one call fails
    broker = FailingBroker(call)
    squid = Squid(journal, chain(), notifier=broker)
    with running_worker(squid, poll=OFTEN) as working:
        for _ in range(3):  # then it goes on, by polling
            until(all_done(journal, [squid.start("chain").run_id]), "a run that is found by polling")
        # and ends as it should
        report = working.stop()
    assert (report.completed, report.failed, report.released) == (3 * 4, 0, 0)
    said = [record.getMessage() for record in caplog.records if "notifier" in record.getMessage()]
    assert len(said) == 1, said
    assert f"polling: {call}: " in said[0]
    assert all(listener.closed for listener in broker.opened)


@pytest.mark.parametrize("call", ["listen", "wait"])
@pytest.mark.usefixtures("impatient")
def test_a_broker_that_is_back_is_listened_to_again(journal: Storage, call: str) -> None:
    broker = FailingBroker(call)
    squid = Squid(journal, chain(), notifier=broker)
    with running_worker(squid, poll=NEVER):
        until(lambda: broker.asked >= 2, "another try to listen")
        broker.failing = None
        until(lambda: broker.opened and not broker.opened[-1].closed, "a listener")
        until(all_done(journal, [squid.start("chain").run_id]), "a run that nobody polls for")


@pytest.mark.usefixtures("impatient")
def test_a_listener_is_woken_and_closed_whatever_the_broker_does() -> None:
    # given a broker that is away: a wait lasts its time, and does not turn in circles
    for call in ("listen", "wait", "wake", "close"):
        broker = FailingBroker(call)
        listener = GuardedNotifier(broker).listen(["default"])
        began = time.monotonic()
        assert not listener.wait(0.2)
        assert time.monotonic() - began >= 0.19
        # then a wake from this process is heard by the next wait
        listener.wake()
        assert listener.wait(PATIENCE)
        # and by one under way, though not before its time if the listener cannot be woken
        answers: list[bool] = []
        waiting = threading.Thread(target=lambda: answers.append(listener.wait(PATIENCE)))  # noqa: B023  joined here
        if call != "wake":
            waiting.start()
            listener.wake()
            waiting.join(PATIENCE)
            assert answers == [True]
        # and one that is closed answers at once
        listener.close()
        listener.close()
        listener.wake()
        assert not listener.wait(PATIENCE)
    with pytest.raises(InvalidArgument, match="queues must be"):
        GuardedNotifier(FailingBroker("listen")).listen([])


def test_a_listener_that_answers_before_its_time_does_not_keep_its_caller_turning() -> None:
    class EarlyListener(FailingListener):
        def wait(self, timeout: float) -> bool:
            return False

    class EarlyBroker(FailingBroker):
        def listen(self, queues: Collection[str]) -> Listener:
            return EarlyListener(self, super().listen(queues))

    listener = GuardedNotifier(EarlyBroker("nothing")).listen(["default"])
    began = time.monotonic()
    assert not listener.wait(0.2)
    assert time.monotonic() - began >= 0.19


@pytest.mark.parametrize("given", [object(), "redis://"], ids=["object", "text"])
def test_what_is_no_notifier_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument, match="notifier must be a Notifier"):
        Squid(MemoryStorage(), notifier=given)
    with pytest.raises(InvalidArgument, match="listen_url"):
        Squid(MemoryStorage(), notifier=Broker(), listen_url="postgresql://elsewhere")
