"""Claims: none is lost to a run that has ended, to a repeat or to a dead worker, and races have one winner.

The tests named after a defect provoke one of the fifteen defects of the original, by its number; it is absent here.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol import RunTerminal, run_thread
from squid_dagster.protocol.errors import (
    ConflictingCompletion,
    SquidError,
    TerminalRun,
)
from squid_dagster.workflow import Workflow
from tests.journal.access import at_once
from tests.runtime.linear_workflow import line
from tests.runtime.runs import MakeSquid
from tests.runtime.workers import facts_of, status_of

HOUR = timedelta(hours=1)


MINUTE = timedelta(minutes=1)


@pytest.mark.usefixtures("spoilt")
def test_defect_05_claims_give_nothing_although_others_are_claimable(
    make_squid: MakeSquid, storage: Storage, clock: VirtualClock
) -> None:
    # The original: when the run of the first candidate has just ended, a claim gives nothing; and conflicts go to the
    # worker.
    squid = make_squid(line())
    ended, other = squid.start("line").run_id, squid.start("line").run_id
    # given a run that has ended, of which the queue has not heard yet
    storage.append(run_thread(ended), [RunTerminal(run_id=ended, status="cancelled", occurred_at=clock.now())])
    snapshot = squid.execute_next()
    assert snapshot is not None
    assert snapshot.run_id == other
    # and many who claim at once
    runs = {receipt.run_id for receipt in squid.start_many("line", [{}] * 30)} | {other}
    with ThreadPoolExecutor(6) as pool:
        taken = [pool.submit(squid.runtime.dispatch.claim, "default", f"w-{n}", limit=10) for n in range(6)]
        claims = [claim.ref.run_id for future in taken for claim in future.result(60)]
    assert sorted(claims) == sorted(runs)


def test_defect_08_a_repeated_failure_is_stale(make_squid: MakeSquid, clock: VirtualClock) -> None:
    # The original: a failure that is reported twice, after a lost answer, is `stale_claim`. Here the repeat changes
    # nothing.
    squid = make_squid(line())
    run_id = squid.start("line").run_id
    agent = squid.dispatch_agent()
    claim = agent.claim_next("me")
    assert claim is not None
    agent.fail(claim, {"message": "no"}, retry_after=MINUTE)
    before = squid.journal.read_run(run_id)
    clock.advance(timedelta(seconds=1))
    assert agent.fail(claim, {"message": "no"}, retry_after=MINUTE).attempt.status == "failed"
    assert squid.journal.read_run(run_id) == before
    with pytest.raises(ConflictingCompletion):
        agent.fail(claim, {"message": "something else"}, retry_after=MINUTE)
    assert squid.journal.read_run(run_id) == before


def test_defect_11_redelivery_without_end(make_squid: MakeSquid, clock: VirtualClock) -> None:
    # The original: an attempt whose worker dies is delivered for ever, and always before newer work. Here it takes its
    # place by the end of its lease, and is parked after `max_deliveries`.
    workflow = Workflow("deadly")
    workflow.step(name="step", max_deliveries=3)(lambda: None)
    squid = make_squid(workflow)
    agent = squid.dispatch_agent()
    deadly = squid.start("deadly").run_id
    assert agent.claim_next("doomed", lease=10 * MINUTE) is not None
    clock.advance(5 * MINUTE)
    newer = squid.start("deadly").run_id
    clock.advance(6 * MINUTE)
    order = [claim.attempt.run_id for claim in agent.claim_many("doomed", 2, lease=MINUTE)]
    assert order == [newer, deadly], "by due time: the newer one has waited for longer"
    for _ in range(4):
        clock.advance(HOUR)
        agent.claim_many("doomed", 2, lease=MINUTE)
    assert agent.claim_next("doomed") is None
    assert {attempt.run_id for attempt in squid.dead_letters()} == {deadly, newer}
    assert [len(facts_of(squid.journal, run, "attempt_claimed")) for run in (deadly, newer)] == [3, 3]
    squid.retry_attempt(deadly)
    assert squid.execute_next() is not None
    assert squid.inspect_run(deadly).status == "completed"


def test_defect_12_races_between_the_end_of_a_run_and_its_results(make_squid: MakeSquid, storage: Storage) -> None:
    # The original: a cancel between check and append leaves facts of dead runs on the queue. Here one of the two wins,
    # wholly.
    squid = make_squid(line())
    agent = squid.dispatch_agent()
    outcomes = []
    for _ in range(10):
        run_id = squid.start("line").run_id
        claim = agent.claim_next("me")
        assert claim is not None

        def attempt(call: Any) -> str:
            try:
                call()
            except SquidError as error:
                return type(error).__name__
            return "done"

        completed, cancelled = at_once(
            [
                lambda claim=claim: attempt(lambda: agent.complete(claim, 1)),  # type: ignore[misc]
                lambda run_id=run_id: attempt(lambda: squid.cancel(run_id)),  # type: ignore[misc]
            ]
        )
        outcomes.append((completed, cancelled))
        assert status_of(storage, run_id) == "cancelled"
        types = [entry.fact.type for entry in storage.read_run(run_id)]
        assert ("attempt_completed" in types) == (completed == "done")
        assert squid.execute_next() is None, "nothing of it can be claimed"
    assert {completed for completed, _ in outcomes} <= {"done", "TerminalRun"}
    assert {cancelled for _, cancelled in outcomes} == {"done"}


def test_a_claim_of_a_run_that_has_ended_is_told_so(make_squid: MakeSquid) -> None:
    # The loser of a race of defect 12 gets the reason.
    squid = make_squid(line())
    run_id = squid.start("line").run_id
    agent = squid.dispatch_agent()
    claim = agent.claim_next("me")
    assert claim is not None
    squid.cancel(run_id)
    calls: list[Callable[[], object]] = [
        lambda: agent.complete(claim, 1),
        lambda: agent.fail(claim, {"message": "no"}),
        lambda: agent.heartbeat(claim),
        lambda: agent.release(claim),
    ]
    for call in calls:
        with pytest.raises(TerminalRun, match="has ended"):
            call()
