"""The dispatch fold: who holds an attempt, for how long and how often."""

from typing import Any

import pytest

from squid_dagster.protocol import AttemptStatus, Fact, Reason
from tests.facts import (
    claimed,
    completed,
    dead_lettered,
    failed,
    failed_with_retry,
    fence,
    heartbeat,
    key,
    released,
    scheduled,
    t,
    token_hash,
)
from tests.protocol.fold_assertions import fold, reasons, the_attempt

# --- claiming -------------------------------------------------------------------------------------------------------


def test_a_claim_holds_the_attempt_under_its_fence_until_the_lease_ends() -> None:
    attempt = the_attempt(fold(scheduled(), claimed(at=10, lease=60, claim="a")))

    assert attempt.status is AttemptStatus.CLAIMED
    assert (attempt.claim_id, attempt.claim_token_hash, attempt.owner_id) == ("a", token_hash("a"), "worker-a")
    assert (attempt.lease_until, attempt.deliveries, attempt.fencing_token) == (t(70), 1, 1)


def test_an_active_claim_is_not_taken_away_before_its_lease_ends() -> None:
    projection = fold(scheduled(), claimed(at=10, lease=60), claimed(at=69.999999, claim="b"))

    assert reasons(projection) == [Reason.ACTIVE_CLAIM]
    assert the_attempt(projection).claim_id == "a"


def test_a_claim_has_expired_exactly_at_the_end_of_its_lease_and_may_be_taken_over() -> None:
    projection = fold(scheduled(), claimed(at=10, lease=60), claimed(at=70, claim="b", lease=30))

    attempt = the_attempt(projection)
    assert reasons(projection) == []
    assert (attempt.claim_id, attempt.claim_token_hash, attempt.owner_id) == ("b", token_hash("b"), "worker-b")
    assert (attempt.lease_until, attempt.deliveries, attempt.fencing_token) == (t(100), 2, 2)


def test_an_attempt_that_is_not_visible_yet_cannot_be_claimed() -> None:
    projection = fold(scheduled(visible_at=t(30)), claimed(at=29.999999))

    assert reasons(projection) == [Reason.ATTEMPT_NOT_VISIBLE]
    assert the_attempt(projection).status is AttemptStatus.AVAILABLE


def test_an_attempt_can_be_claimed_from_the_very_instant_it_becomes_visible() -> None:
    assert the_attempt(fold(scheduled(visible_at=t(30)), claimed(at=30))).status is AttemptStatus.CLAIMED


@pytest.mark.parametrize("settle", [completed(), failed(), failed_with_retry()])
def test_a_settled_attempt_cannot_be_claimed_again(settle: Fact) -> None:
    projection = fold(scheduled(), claimed(), settle, claimed(at=100, claim="b"))

    assert reasons(projection) == [Reason.TERMINAL_ATTEMPT]
    assert the_attempt(projection) == the_attempt(fold(scheduled(), claimed(), settle))


def test_a_fact_before_the_last_one_of_its_attempt_is_out_of_order() -> None:
    projection = fold(scheduled(at=0), claimed(at=10), heartbeat(at=9.999999), completed(at=5), claimed(at=1))

    assert reasons(projection) == [Reason.OUT_OF_ORDER] * 3
    assert the_attempt(projection) == the_attempt(fold(scheduled(), claimed(at=10)))


def test_facts_at_the_same_instant_are_in_order() -> None:
    projection = fold(scheduled(at=10), claimed(at=10), heartbeat(at=10), completed(at=10))

    assert reasons(projection) == []


def test_times_of_one_attempt_do_not_bind_another() -> None:
    projection = fold(scheduled(), scheduled(step="ship"), claimed(at=50), claimed(step="ship", at=10))

    assert reasons(projection) == []


# --- deliveries and dead letters ------------------------------------------------------------------------------------


def test_an_attempt_is_delivered_at_most_max_deliveries_times() -> None:
    twice: list[Fact] = [scheduled(max_deliveries=2), claimed(at=10, lease=10), claimed(at=20, lease=10, claim="b")]

    projection = fold(*twice, claimed(at=30, claim="c"))

    assert reasons(fold(*twice)) == []
    assert the_attempt(fold(*twice)).deliveries == 2
    assert reasons(projection) == [Reason.DELIVERIES_EXHAUSTED]
    assert the_attempt(projection).claim_id == "b"


def test_an_attempt_out_of_deliveries_whose_lease_ran_out_is_dead_lettered() -> None:
    projection = fold(
        scheduled(max_deliveries=1), claimed(at=10, lease=10), dead_lettered(at=20, error={"message": "lost"})
    )

    attempt = the_attempt(projection)
    assert reasons(projection) == []
    assert (attempt.status, attempt.error, attempt.settled_at) == (
        AttemptStatus.DEAD_LETTERED,
        {"message": "lost"},
        t(20),
    )
    assert projection.claimable(t(500)) == []


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([scheduled(max_deliveries=1)], id="never claimed"),
        pytest.param([scheduled(max_deliveries=1), claimed(at=10, lease=91)], id="the lease still runs"),
        pytest.param([scheduled(max_deliveries=2), claimed(at=10, lease=10)], id="deliveries are left"),
        pytest.param([scheduled(max_deliveries=1), claimed(at=10), released(at=30)], id="given back"),
    ],
)
def test_a_premature_dead_letter_is_refused(before: list[Fact]) -> None:
    projection = fold(*before, dead_lettered(at=100))

    assert reasons(projection) == [Reason.PREMATURE_DEAD_LETTER]
    assert projection.attempts == fold(*before).attempts


def test_a_dead_letter_may_be_written_twice() -> None:
    once: list[Fact] = [scheduled(max_deliveries=1), claimed(at=10, lease=10), dead_lettered(at=20)]

    projection = fold(*once, dead_lettered(at=30))

    assert reasons(projection) == []
    assert projection.attempts == fold(*once).attempts


def test_a_dead_letter_is_final() -> None:
    dead: list[Fact] = [scheduled(max_deliveries=1), claimed(at=10, lease=10), dead_lettered(at=20)]

    projection = fold(*dead, claimed(at=30, claim="b"), completed(at=40), heartbeat(at=40))

    assert reasons(projection) == [Reason.TERMINAL_ATTEMPT, Reason.STALE_CLAIM, Reason.STALE_CLAIM]
    assert projection.attempts == fold(*dead).attempts


def test_a_settled_attempt_cannot_be_dead_lettered() -> None:
    projection = fold(scheduled(max_deliveries=1), claimed(), completed(), dead_lettered())

    assert reasons(projection) == [Reason.TERMINAL_ATTEMPT]
    assert the_attempt(projection).status is AttemptStatus.COMPLETED


# --- heartbeats -----------------------------------------------------------------------------------------------------


def test_a_heartbeat_extends_the_lease_of_the_holder() -> None:
    projection = fold(scheduled(), claimed(at=10, lease=60), heartbeat(at=20, lease=60), claimed(at=79, claim="b"))

    assert the_attempt(projection).lease_until == t(80)
    assert reasons(projection) == [Reason.ACTIVE_CLAIM]


def test_a_heartbeat_never_shortens_a_lease() -> None:
    projection = fold(scheduled(), claimed(at=10, lease=60), heartbeat(at=20, lease=5))

    assert the_attempt(projection).lease_until == t(70)
    assert reasons(projection) == []


def test_a_heartbeat_counts_as_no_delivery() -> None:
    attempt = the_attempt(fold(scheduled(), claimed(), heartbeat()))

    assert (attempt.deliveries, attempt.fencing_token) == (1, 1)


def test_a_heartbeat_at_the_end_of_the_lease_comes_too_late() -> None:
    projection = fold(scheduled(), claimed(at=10, lease=60), heartbeat(at=70))

    assert reasons(projection) == [Reason.EXPIRED_CLAIM]
    assert the_attempt(projection).lease_until == t(70)


@pytest.mark.parametrize(
    "wrong", [{"claim": "b"}, {"claim_id": "b"}, {"claim_token_hash": token_hash("b")}], ids=["both", "id", "token"]
)
def test_only_the_whole_fence_may_act_on_a_claim(wrong: dict[str, Any]) -> None:
    projection = fold(
        scheduled(), claimed(), heartbeat(**wrong), released(**wrong), completed(**wrong), failed(**wrong)
    )

    assert reasons(projection) == [Reason.STALE_CLAIM] * 4
    assert projection.attempts == fold(scheduled(), claimed()).attempts


def test_nobody_may_act_on_an_attempt_that_is_not_claimed() -> None:
    projection = fold(scheduled(), heartbeat(), released(), completed(), failed())

    assert reasons(projection) == [Reason.STALE_CLAIM] * 4
    assert projection.attempts == fold(scheduled()).attempts


# --- release --------------------------------------------------------------------------------------------------------


def test_a_released_attempt_is_available_at_once() -> None:
    projection = fold(scheduled(), claimed(at=10, lease=60), released(at=30))

    attempt = the_attempt(projection)
    assert attempt.status is AttemptStatus.AVAILABLE
    assert (attempt.claim_id, attempt.claim_token_hash, attempt.owner_id, attempt.lease_until) == (
        None,
        None,
        None,
        None,
    )
    assert [attempt.runnable_key for attempt in projection.visible(t(30))] == [key()]


def test_a_release_counts_neither_as_failure_nor_towards_the_cap() -> None:
    given: list[Fact] = [scheduled(max_deliveries=1), claimed(at=10), released(at=20), claimed(at=30, claim="b")]

    projection = fold(*given)

    assert reasons(projection) == []
    attempt = the_attempt(projection)
    assert (attempt.status, attempt.deliveries, attempt.error) == (AttemptStatus.CLAIMED, 1, None)


def test_an_interruption_stays_counted_as_a_delivery() -> None:
    given: list[Fact] = [scheduled(max_deliveries=1), claimed(at=10), released(at=20, counted=True)]

    projection = fold(*given, claimed(at=30, claim="b"))

    assert reasons(projection) == [Reason.DELIVERIES_EXHAUSTED]
    attempt = the_attempt(projection)
    assert (attempt.status, attempt.deliveries, attempt.claim_id) == (AttemptStatus.AVAILABLE, 1, None)


def test_its_holder_gives_up_a_spent_attempt_while_the_lease_lasts() -> None:
    given_up = dead_lettered(at=20, error={"message": "interrupted"}, **fence("a"))
    projection = fold(scheduled(max_deliveries=1), claimed(at=10, lease=60), given_up)

    assert reasons(projection) == []
    attempt = the_attempt(projection)
    assert (attempt.status, attempt.error) == (AttemptStatus.DEAD_LETTERED, {"message": "interrupted"})


@pytest.mark.parametrize(("cap", "claim"), [(1, "b"), (2, "a")], ids=["another claim", "deliveries left"])
def test_nothing_else_gives_up_an_attempt_that_is_held(cap: int, claim: str) -> None:
    given: list[Fact] = [scheduled(max_deliveries=cap), claimed(at=10, lease=60)]
    projection = fold(*given, dead_lettered(at=20, **fence(claim)))

    assert reasons(projection) == [Reason.PREMATURE_DEAD_LETTER]
    assert the_attempt(projection).status is AttemptStatus.CLAIMED


def test_a_release_does_not_take_the_fencing_token_back() -> None:
    attempt = the_attempt(fold(scheduled(), claimed(at=10), released(at=20), claimed(at=30, claim="b")))

    assert attempt.fencing_token == 2


def test_whoever_released_an_attempt_holds_it_no_more() -> None:
    projection = fold(scheduled(), claimed(), released(at=20), completed(at=30), released(at=30))

    assert reasons(projection) == [Reason.STALE_CLAIM, Reason.STALE_CLAIM]


def test_an_expired_claim_cannot_be_released() -> None:
    projection = fold(scheduled(), claimed(at=10, lease=10), released(at=20))

    assert reasons(projection) == [Reason.EXPIRED_CLAIM]
    assert the_attempt(projection).deliveries == 1
