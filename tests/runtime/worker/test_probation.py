"""When a worker may begin what was lost before, by a clock that a test moves."""

import pytest

from squid_dagster.journal.contract.dispatch_store import Claim, ClaimRef, Suspects
from squid_dagster.protocol.folds.attempt import Suspicion
from squid_dagster.runtime.worker.probation import LONGEST_WAIT_SECONDS, QUIET_SECONDS, Probation
from tests.facts import QUEUE, claimed, scheduled
from tests.protocol.fold_assertions import fold, the_attempt

NONE, LOST, LAST = Suspicion
ANYTHING, BESIDE = Suspects(LAST, alone=True), Suspects(NONE)
A_MOMENT = 0.001


def delivery(number: int = 1) -> Claim:
    """Return the claim of an attempt."""
    attempt = the_attempt(fold(scheduled(), claimed()))
    return Claim(ClaimRef(QUEUE, attempt.run_id, attempt.runnable_key, f"claim-{number}", "token"), attempt)


@pytest.fixture
def probation() -> Probation:
    return Probation(lease_seconds=300)


def rule(probation: Probation, now: float, *held: Claim) -> Suspects | None:
    return probation.rule({claim.ref.claim_id for claim in held}, bool(held), now)


def test_a_worker_that_holds_nothing_may_take_any_suspect(probation: Probation) -> None:
    assert rule(probation, 0) == ANYTHING


def test_a_worker_that_holds_something_takes_what_was_never_lost(probation: Probation) -> None:
    fresh = delivery(1)
    probation.observe([fresh], NONE, NONE, 0)
    assert rule(probation, 0, fresh) == BESIDE
    assert not probation.waits


def test_nothing_begins_right_after_a_suspect_unless_it_has_ended(probation: Probation) -> None:
    suspect = delivery(2)
    probation.observe([suspect], LOST, NONE, 10)
    assert rule(probation, 10 + QUIET_SECONDS - A_MOMENT, suspect) is None
    assert rule(probation, 10 + QUIET_SECONDS, suspect) == BESIDE
    probation.observe([suspect], LOST, NONE, 20)
    assert rule(probation, 20) == ANYTHING


def test_a_suspect_begins_when_nothing_else_began_for_a_moment(probation: Probation) -> None:
    fresh = delivery(1)
    probation.observe([fresh], NONE, LOST, 10)
    assert probation.waits
    assert rule(probation, 10 + QUIET_SECONDS - A_MOMENT, fresh) is None
    assert rule(probation, 10 + QUIET_SECONDS, fresh) == Suspects(LOST)
    assert rule(probation, 10) == ANYTHING


def test_nothing_begins_beside_a_last_delivery(probation: Probation) -> None:
    last = delivery(2)
    probation.observe([last], LAST, NONE, 0)
    assert rule(probation, 1e9, last) is None
    assert rule(probation, 1e9) == ANYTHING


def test_a_last_delivery_waits_for_an_empty_worker_but_not_for_ever(probation: Probation) -> None:
    fresh = delivery(1)
    probation.observe([fresh], NONE, LAST, 10)
    for now in (10.0, 10 + LONGEST_WAIT_SECONDS - A_MOMENT):
        assert rule(probation, now, fresh) is None
        assert rule(probation, now) == ANYTHING
    assert rule(probation, 10 + LONGEST_WAIT_SECONDS, fresh) == Suspects(LAST)
    # and goes on waiting from its first day on, whatever else is claimed meanwhile
    probation.observe([fresh], NONE, LAST, 10 + LONGEST_WAIT_SECONDS)
    assert rule(probation, 10 + LONGEST_WAIT_SECONDS, fresh) == Suspects(LAST)
    # and once there is none, the next one waits anew
    probation.observe([], NONE, NONE, 200)
    probation.observe([], NONE, LAST, 300)
    assert rule(probation, 300, fresh) is None


def test_with_a_short_lease_it_waits_no_longer_than_that() -> None:
    probation, fresh = Probation(lease_seconds=3), delivery(1)
    probation.observe([fresh], NONE, LAST, 0)
    assert rule(probation, 3, fresh) == Suspects(LAST)
