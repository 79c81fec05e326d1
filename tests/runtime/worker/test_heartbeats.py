"""One loop keeps all claims of a process alive, in one append for all of them, for as long as their steps run."""

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import Answer, ClaimRef, Completed, PostgresDispatchStore, PostgresStorage, Settlement
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol.errors import ExpiredClaim, StaleClaim, StorageUnavailable
from squid_dagster.runtime.worker.heartbeats import Heartbeats
from squid_dagster.workflow import StepContext, Workflow
from tests.facts import T0
from tests.runtime.workers import PATIENCE, facts_of, queue_facts, running_worker, status_of, until

SHORT = timedelta(seconds=0.6)
LEASE = timedelta(minutes=1)


@pytest.fixture(params=["memory", "postgres"])
def journal(request: pytest.FixtureRequest) -> Storage:
    """A journal by the real time, in both adapters."""
    storage = MemoryStorage() if request.param == "memory" else request.getfixturevalue("postgres")
    assert isinstance(storage, MemoryStorage | PostgresStorage)
    return storage


def waiting(release: threading.Event, begun: list[StepContext], name: str = "slow") -> Workflow:
    workflow = Workflow(name)

    @workflow.step
    def step(ctx: StepContext) -> int:
        begun.append(ctx)
        release.wait(PATIENCE)
        return ctx.fencing_token

    return workflow


def test_a_step_that_takes_five_leases_is_delivered_once(journal: Storage) -> None:
    # given a worker with a short lease, and another one that would take over what is lost
    release, begun = threading.Event(), list[StepContext]()
    squid = Squid(journal, waiting(release, begun))
    run_id = squid.start("slow").run_id
    with running_worker(squid, lease=SHORT) as first, running_worker(squid, lease=SHORT) as second:
        (claimed,) = until(lambda: facts_of(journal, run_id, "attempt_claimed"), "the claim")
        # when its step takes several times as long as the lease
        until(lambda: journal.now() > claimed.occurred_at + 5 * SHORT, "five leases")
        release.set()
        until(lambda: status_of(journal, run_id) == "completed", "the run's end")
        reports = [first.stop(), second.stop()]
    # then it was kept by heartbeats alone, and its result counts
    assert len(facts_of(journal, run_id, "attempt_claimed")) == len(begun) == 1
    assert sum(report.completed for report in reports) == 1
    leases = [claimed.lease_until, *(fact.lease_until for fact in facts_of(journal, run_id, "attempt_heartbeat"))]
    assert len(leases) > 5
    assert leases == sorted(leases), "no heartbeat shortens a lease"


def test_execute_next_keeps_its_claim_alive_too(journal: Storage) -> None:
    workflow = Workflow("slow")

    @workflow.step
    def step(ctx: StepContext) -> int:
        until(lambda: len(facts_of(journal, ctx.run_id, "attempt_heartbeat")) >= 4, "heartbeats")
        return ctx.fencing_token

    squid = Squid(journal, workflow)
    run_id = squid.start("slow").run_id
    snapshot = squid.execute_next(lease=SHORT)
    assert snapshot is not None
    assert snapshot.status == "completed"
    assert len(facts_of(journal, run_id, "attempt_claimed")) == 1


def test_all_claims_of_a_worker_go_in_one_append(postgres: PostgresStorage) -> None:
    release, begun = threading.Event(), list[StepContext]()
    squid = Squid(postgres, waiting(release, begun))
    squid.start_many("slow", [None] * 12)
    lease = timedelta(seconds=2)
    with running_worker(squid, lease=lease, concurrency=12):
        until(lambda: len(begun) == 12, "all steps under way")
        before = len(queue_facts(postgres, "attempt_heartbeat"))
        until(lambda: len(queue_facts(postgres, "attempt_heartbeat")) >= before + 24, "two rounds of heartbeats")
        beats = queue_facts(postgres, "attempt_heartbeat")[before:]
        release.set()
    rounds = Counter(fact.occurred_at for fact in beats)
    assert set(list(rounds.values())[:2]) == {12}, "one time, and so one commit, for all of them"


def test_a_claim_that_was_lost_tells_its_step_and_its_result_is_refused(postgres: PostgresStorage) -> None:
    # given a step whose claim is taken away: the run is cancelled
    begun = list[StepContext]()
    workflow = Workflow("slow")

    @workflow.step
    def step(ctx: StepContext) -> str:
        begun.append(ctx)
        assert ctx.cancelled.wait(PATIENCE)
        return "too late"

    squid = Squid(postgres, workflow)
    run_id = squid.start("slow").run_id
    with running_worker(squid, lease=timedelta(seconds=1)) as working:
        until(lambda: begun, "the step")
        squid.cancel(run_id)
        # then its next heartbeat finds out, the step is told, and what it returns is dropped
        until(lambda: working.worker.report.refused == 1, "the refusal")
        report = working.stop()
    assert (report.completed, report.refused) == (0, 1)
    assert status_of(postgres, run_id) == "cancelled"
    assert not facts_of(postgres, run_id, "attempt_completed")


class _Unreachable(PostgresDispatchStore):
    """A dispatch store whose heartbeats get no answer while it is told so."""

    lost: BaseException | None = None
    tried = 0

    def heartbeat(self, refs: Sequence[ClaimRef], lease: timedelta = SHORT) -> list[Answer]:
        if self.lost is not None:
            self.tried += 1
            raise self.lost
        return super().heartbeat(refs, lease)


@pytest.mark.parametrize("error", [StorageUnavailable("gone"), RuntimeError("odd")], ids=["outage", "anything else"])
def test_heartbeats_that_fail_are_tried_again_more_often_and_the_step_goes_on(
    postgres: PostgresStorage, error: BaseException
) -> None:
    release, begun = threading.Event(), list[StepContext]()
    squid = Squid(postgres, waiting(release, begun))
    run_id = squid.start("slow").run_id
    store = _Unreachable(postgres)
    (claim,) = store.claim("default", "me", lease=timedelta(seconds=3))
    store.lost = error
    heartbeats = Heartbeats(store, timedelta(seconds=3))
    (cancelled,) = heartbeats.add([claim])
    until(lambda: store.tried >= 2, "two attempts at a heartbeat")
    store.lost = None
    until(lambda: facts_of(postgres, run_id, "attempt_heartbeat"), "a heartbeat that got through")
    heartbeats.close()
    assert not cancelled


def test_without_an_answer_for_a_whole_lease_the_step_is_told_that_it_works_in_vain(postgres: PostgresStorage) -> None:
    squid = Squid(postgres, waiting(threading.Event(), []))
    squid.start("slow")
    store = _Unreachable(postgres)
    (claim,) = store.claim("default", "me", lease=SHORT)
    store.lost = StorageUnavailable("gone")
    heartbeats = Heartbeats(store, SHORT)
    (cancelled,) = heartbeats.add([claim])
    assert cancelled.wait(PATIENCE)
    heartbeats.close()


@pytest.mark.parametrize("late", ["complete", "fail", "heartbeat", "release"])
def test_a_claim_whose_lease_ran_out_may_do_nothing_though_nobody_has_taken_over(journal: Storage, late: str) -> None:
    squid = Squid(journal, waiting(threading.Event(), []))
    run_id = squid.start("slow").run_id
    agent = squid.dispatch_agent()
    claim = agent.claim_next("me", lease=timedelta(milliseconds=20))
    assert claim is not None
    until(lambda: journal.now() > claim.lease_until, "the lease's end")
    before = journal.read_run(run_id)
    calls: dict[str, Any] = {
        "complete": lambda: agent.complete(claim, {"too": "late"}),
        "fail": lambda: agent.fail(claim, {"message": "too late"}),
        "heartbeat": lambda: agent.heartbeat(claim),
        "release": lambda: agent.release(claim),
    }
    with pytest.raises(ExpiredClaim, match="ran out"):
        calls[late]()
    assert journal.read_run(run_id) == before
    # and once another worker has it, it is not even the current one
    assert agent.claim_next("other") is not None
    with pytest.raises(StaleClaim):
        calls[late]()


def test_a_heartbeat_that_meets_a_settled_claim_warns_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    # given two claims, of which one is settled, and one was taken over by another worker
    workflow = Workflow("one")
    workflow.step(name="step")(lambda: None)
    clock = VirtualClock(T0)
    squid = Squid(MemoryStorage(clock=clock), workflow)
    squid.start_many("one", [None] * 2)
    dispatch = squid.runtime.dispatch
    settled, lost = dispatch.claim("default", "ada", limit=2, lease=LEASE)
    heartbeats = Heartbeats(dispatch, LEASE, every=LEASE / 2)
    cancelled = heartbeats.add([settled, lost])
    dispatch.settle([Settlement(settled.ref, Completed(None))])
    heartbeats.note_outcome(settled)
    clock.advance(2 * LEASE)
    dispatch.claim("default", "bob", limit=1, lease=LEASE)
    # when a heartbeat comes before the settled one was let go of
    with caplog.at_level(logging.WARNING):
        assert heartbeats.beat()
    heartbeats.close()
    # then only the other one is told of
    assert caplog.messages == [f"the claim on {lost.ref.runnable_key} is lost: its result will be dropped"]
    assert all(cancelled)
