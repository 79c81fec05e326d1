"""The dispatch fold, one test per rule; then what must hold of any history whatever."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squid_dagster.protocol import (
    CATALOG_THREAD,
    Attempt,
    AttemptClaimed,
    AttemptCompleted,
    AttemptFailed,
    AttemptHeartbeat,
    AttemptReleased,
    AttemptStatus,
    DispatchProjection,
    Entry,
    Fact,
    Reason,
    RunDispatch,
    definition_key,
    dispatch_thread,
    run_thread,
)
from squid_dagster.protocol.attempts import check_completion, check_failure, check_fence, claim_order
from squid_dagster.protocol.entries import by_run, digest
from tests.histories import (
    RUNS,
    T0,
    OnThread,
    cataloged,
    claimed,
    completed,
    dead_lettered,
    entries,
    failed,
    failed_with_retry,
    fenced,
    heartbeat,
    histories,
    indexed,
    journals,
    key,
    malformed,
    quarantined,
    queue_paused,
    queue_resumed,
    queued,
    released,
    scheduled,
    started,
    t,
    terminal,
    token_hash,
    unknown,
    wakeup,
)


def fold(*items: Fact | OnThread) -> DispatchProjection:
    return DispatchProjection.fold(entries(items))


def the_attempt(projection: DispatchProjection, attempt: int = 1) -> Attempt:
    return projection.attempts[key(attempt=attempt)]


def reasons(projection: DispatchProjection) -> list[Reason]:
    return [anomaly.reason for anomaly in projection.anomalies]


# --- scheduling -----------------------------------------------------------------------------------------------------


def test_a_scheduled_attempt_is_available_with_all_that_the_fact_says() -> None:
    fact = scheduled(
        priority=3, max_deliveries=2, definition_version="v1", definition_fingerprint="f1", visible_at=t(5)
    )

    found = the_attempt(fold(fact))

    assert found.status is AttemptStatus.AVAILABLE
    assert (found.run_id, found.step, found.attempt_number, found.queue) == ("run-1", "charge", 1, "default")
    assert (found.idempotency_key, found.input, found.visible_at) == ("run-1:charge:1", {"amount": 5}, t(5))
    assert (found.priority, found.max_deliveries, found.workflow) == (3, 2, "billing")
    assert (found.definition_version, found.definition_fingerprint) == ("v1", "f1")
    assert (found.deliveries, found.fencing_token, found.claim_id, found.lease_until) == (0, 0, None, None)


def test_scheduling_the_same_intent_again_changes_nothing() -> None:
    projection = fold(scheduled(), claimed(), scheduled(at=20))

    assert the_attempt(projection).status is AttemptStatus.CLAIMED
    assert reasons(projection) == []


@pytest.mark.parametrize(
    "other",
    [
        {"idempotency_key": "run-1:charge:2"},
        {"attempt_number": 2},
        {"step": "ship"},
        {"input": {"amount": 6}},
        {"visible_at": t(1)},
    ],
)
def test_another_intent_under_the_same_key_is_refused_and_the_first_stays(other: dict[str, Any]) -> None:
    projection = fold(scheduled(), scheduled(**{"runnable_key": key(), **other}))

    assert reasons(projection) == [Reason.CONFLICTING_RUNNABLE_INTENT]
    assert projection.attempts == fold(scheduled()).attempts


def test_facts_about_an_attempt_that_was_never_scheduled_are_refused() -> None:
    facts: list[Fact] = [claimed(), heartbeat(), released(), completed(), failed(), dead_lettered(), wakeup()]

    projection = fold(*facts)

    assert reasons(projection) == [Reason.UNKNOWN_RUNNABLE_INTENT] * len(facts)
    assert projection.attempts == {}


def test_a_run_stays_on_the_queue_that_it_was_put_on() -> None:
    projection = fold(queued(), scheduled(queue="slow"), queued(queue="slow"), scheduled())

    assert reasons(projection) == [Reason.WRONG_QUEUE, Reason.WRONG_QUEUE]
    assert projection.runs["run-1"].queue == "default"
    assert the_attempt(projection).queue == "default"


def test_the_first_scheduled_attempt_binds_the_run_to_its_queue() -> None:
    projection = fold(scheduled(), claimed(queue="slow"))

    assert reasons(projection) == [Reason.WRONG_QUEUE]
    assert the_attempt(projection).status is AttemptStatus.AVAILABLE


# --- claiming -------------------------------------------------------------------------------------------------------


def test_a_claim_holds_the_attempt_under_its_fence_until_the_lease_ends() -> None:
    found = the_attempt(fold(scheduled(), claimed(at=10, lease=60, claim="a")))

    assert found.status is AttemptStatus.CLAIMED
    assert (found.claim_id, found.claim_token_hash, found.owner_id) == ("a", token_hash("a"), "worker-a")
    assert (found.lease_until, found.deliveries, found.fencing_token) == (t(70), 1, 1)


def test_an_active_claim_is_not_taken_away_before_its_lease_ends() -> None:
    projection = fold(scheduled(), claimed(at=10, lease=60), claimed(at=69.999999, claim="b"))

    assert reasons(projection) == [Reason.ACTIVE_CLAIM]
    assert the_attempt(projection).claim_id == "a"


def test_a_claim_has_expired_exactly_at_the_end_of_its_lease_and_may_be_taken_over() -> None:
    projection = fold(scheduled(), claimed(at=10, lease=60), claimed(at=70, claim="b", lease=30))

    found = the_attempt(projection)
    assert reasons(projection) == []
    assert (found.claim_id, found.claim_token_hash, found.owner_id) == ("b", token_hash("b"), "worker-b")
    assert (found.lease_until, found.deliveries, found.fencing_token) == (t(100), 2, 2)


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

    found = the_attempt(projection)
    assert reasons(projection) == []
    assert (found.status, found.error, found.settled_at) == (AttemptStatus.DEAD_LETTERED, {"message": "lost"}, t(20))
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
    found = the_attempt(fold(scheduled(), claimed(), heartbeat()))

    assert (found.deliveries, found.fencing_token) == (1, 1)


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

    found = the_attempt(projection)
    assert found.status is AttemptStatus.AVAILABLE
    assert (found.claim_id, found.claim_token_hash, found.owner_id, found.lease_until) == (None, None, None, None)
    assert [attempt.runnable_key for attempt in projection.visible(t(30))] == [key()]


def test_a_release_counts_neither_as_failure_nor_towards_the_cap() -> None:
    given: list[Fact] = [scheduled(max_deliveries=1), claimed(at=10), released(at=20), claimed(at=30, claim="b")]

    projection = fold(*given)

    assert reasons(projection) == []
    found = the_attempt(projection)
    assert (found.status, found.deliveries, found.error) == (AttemptStatus.CLAIMED, 1, None)


def test_a_release_does_not_take_the_fencing_token_back() -> None:
    found = the_attempt(fold(scheduled(), claimed(at=10), released(at=20), claimed(at=30, claim="b")))

    assert found.fencing_token == 2


def test_whoever_released_an_attempt_holds_it_no_more() -> None:
    projection = fold(scheduled(), claimed(), released(at=20), completed(at=30), released(at=30))

    assert reasons(projection) == [Reason.STALE_CLAIM, Reason.STALE_CLAIM]


def test_an_expired_claim_cannot_be_released() -> None:
    projection = fold(scheduled(), claimed(at=10, lease=10), released(at=20))

    assert reasons(projection) == [Reason.EXPIRED_CLAIM]
    assert the_attempt(projection).deliveries == 1


# --- completion -----------------------------------------------------------------------------------------------------


def test_the_holder_completes_the_attempt() -> None:
    projection = fold(scheduled(), claimed(), completed(at=30, result={"paid": 5}))

    found = the_attempt(projection)
    assert (found.status, found.result, found.settled_at) == (AttemptStatus.COMPLETED, {"paid": 5}, t(30))
    assert projection.claimable(t(500)) == []
    assert reasons(projection) == []


def test_a_result_may_be_any_json_value_even_none() -> None:
    found = the_attempt(fold(scheduled(), claimed(), completed(result=None)))

    assert (found.status, found.result) == (AttemptStatus.COMPLETED, None)


def test_a_duplicate_completion_changes_nothing() -> None:
    once: list[Fact] = [scheduled(), claimed(), completed(at=30, result={"a": 1, "b": 2})]

    projection = fold(*once, completed(at=500, result={"b": 2, "a": 1}))

    assert reasons(projection) == []
    assert projection.attempts == fold(*once).attempts


def test_a_completion_with_another_result_conflicts_and_the_first_stays() -> None:
    projection = fold(scheduled(), claimed(), completed(result=1), completed(at=31, result=2))

    assert reasons(projection) == [Reason.CONFLICTING_COMPLETION]
    assert the_attempt(projection).result == 1


def test_a_completed_attempt_cannot_be_completed_by_another_claim() -> None:
    projection = fold(scheduled(), claimed(), completed(), completed(at=31, claim="b"))

    assert reasons(projection) == [Reason.STALE_CLAIM]


def test_a_zombie_cannot_complete_after_takeover() -> None:
    projection = fold(
        scheduled(), claimed(at=10, lease=10), claimed(at=20, claim="b"), completed(at=21, claim="a", result="zombie")
    )

    assert reasons(projection) == [Reason.STALE_CLAIM]
    found = the_attempt(projection)
    assert (found.status, found.claim_id, found.result) == (AttemptStatus.CLAIMED, "b", None)


def test_a_late_completion_is_refused_even_if_nobody_took_over() -> None:
    projection = fold(scheduled(), claimed(at=10, lease=10), completed(at=20))

    assert reasons(projection) == [Reason.EXPIRED_CLAIM]
    assert the_attempt(projection).status is AttemptStatus.CLAIMED


def test_a_completion_just_before_the_end_of_the_lease_counts() -> None:
    projection = fold(scheduled(), claimed(at=10, lease=10), completed(at=19.999999))

    assert the_attempt(projection).status is AttemptStatus.COMPLETED


def test_a_completed_attempt_cannot_fail_any_more() -> None:
    projection = fold(scheduled(), claimed(), completed(), failed_with_retry(at=31))

    assert reasons(projection) == [Reason.STALE_CLAIM]
    assert list(projection.attempts) == [key()]


# --- failure and retry ----------------------------------------------------------------------------------------------


def test_a_failure_without_retry_is_the_end_of_the_attempt() -> None:
    projection = fold(scheduled(), claimed(), failed(at=30, error={"message": "declined"}))

    found = the_attempt(projection)
    assert (found.status, found.error, found.settled_at) == (AttemptStatus.FAILED, {"message": "declined"}, t(30))
    assert list(projection.attempts) == [key()]
    assert projection.claimable(t(500)) == []


def test_a_failure_creates_its_retry() -> None:
    schedule = scheduled(priority=4, max_deliveries=3, definition_version="v1", definition_fingerprint="f1")

    projection = fold(schedule, claimed(), wakeup(at=20), failed_with_retry(at=30, delay=10))

    first, retry = the_attempt(projection), the_attempt(projection, 2)
    assert (first.status, first.attempt_number) == (AttemptStatus.FAILED, 1)
    assert (retry.status, retry.attempt_number, retry.visible_at) == (AttemptStatus.RETRY_SCHEDULED, 2, t(40))
    for name in ("run_id", "queue", "step", "input", "idempotency_key", "priority", "max_deliveries", "workflow"):
        assert getattr(retry, name) == getattr(first, name), name
    assert (retry.definition_version, retry.definition_fingerprint) == ("v1", "f1")
    assert (retry.claim_id, retry.claim_token_hash, retry.owner_id, retry.lease_until) == (None, None, None, None)
    assert (retry.deliveries, retry.error, retry.result, retry.settled_at) == (0, None, None, None)
    assert (retry.outcome_digest, retry.wakeup_emitted) == (None, False)


def test_a_retry_waits_for_its_time_and_is_claimed_like_any_attempt() -> None:
    failure: list[Fact] = [scheduled(), claimed(), failed_with_retry(at=30, delay=10)]

    early = fold(*failure, claimed(attempt=2, at=39, claim="b"))
    late = fold(*failure, claimed(attempt=2, at=40, claim="b"))

    assert reasons(early) == [Reason.ATTEMPT_NOT_VISIBLE]
    assert the_attempt(late, 2).status is AttemptStatus.CLAIMED


def test_a_retry_begins_with_all_its_deliveries() -> None:
    projection = fold(
        scheduled(max_deliveries=1), claimed(), failed_with_retry(at=30, delay=0), claimed(attempt=2, at=30, claim="b")
    )

    assert reasons(projection) == []
    assert the_attempt(projection, 2).deliveries == 1


def test_scheduling_the_retry_again_with_the_same_intent_changes_nothing() -> None:
    failure: list[Fact] = [scheduled(), claimed(), failed_with_retry(at=30, delay=10)]
    mirror = scheduled(attempt=2, idempotency_key="run-1:charge:1", visible_at=t(40), at=31)

    projection = fold(*failure, mirror)

    assert reasons(projection) == []
    assert projection.attempts == fold(*failure).attempts


def test_a_retry_under_a_key_that_means_something_else_conflicts_but_the_failure_counts() -> None:
    other = scheduled(attempt=2, input={"amount": 6})

    projection = fold(scheduled(), other, claimed(), failed_with_retry())

    assert [(a.reason, a.subject) for a in projection.anomalies] == [
        (Reason.CONFLICTING_RUNNABLE_INTENT, key(attempt=2))
    ]
    assert the_attempt(projection).status is AttemptStatus.FAILED
    assert the_attempt(projection, 2) == fold(scheduled(), other).attempts[key(attempt=2)]


def test_a_retry_that_was_scheduled_before_with_the_same_intent_stays_as_it_is() -> None:
    projection = fold(scheduled(), scheduled(attempt=2, visible_at=t(40)), claimed(), failed_with_retry(delay=10))

    assert reasons(projection) == []
    assert the_attempt(projection, 2).status is AttemptStatus.AVAILABLE


def test_a_duplicate_failure_changes_nothing() -> None:
    once: list[Fact] = [scheduled(), claimed(), failed_with_retry(at=30)]

    projection = fold(*once, failed_with_retry(at=30), failed(at=500))

    assert reasons(projection) == []
    assert projection.attempts == fold(*once).attempts


def test_a_failure_with_another_error_conflicts_and_creates_no_retry() -> None:
    projection = fold(scheduled(), claimed(), failed(), failed_with_retry(at=31, error={"message": "timeout"}))

    assert reasons(projection) == [Reason.CONFLICTING_FAILURE]
    assert list(projection.attempts) == [key()]
    assert the_attempt(projection).error == {"message": "declined"}


def test_a_failed_attempt_cannot_be_completed_any_more() -> None:
    projection = fold(scheduled(), claimed(), failed(), completed(at=31))

    assert reasons(projection) == [Reason.STALE_CLAIM]
    assert the_attempt(projection).status is AttemptStatus.FAILED


def test_a_late_failure_is_refused_and_creates_no_retry() -> None:
    projection = fold(scheduled(), claimed(at=10, lease=10), failed_with_retry(at=20))

    assert reasons(projection) == [Reason.EXPIRED_CLAIM]
    assert list(projection.attempts) == [key()]


def test_a_zombie_cannot_fail_an_attempt_after_takeover() -> None:
    projection = fold(
        scheduled(), claimed(at=10, lease=10), claimed(at=20, claim="b"), failed_with_retry(at=21, claim="a")
    )

    assert reasons(projection) == [Reason.STALE_CLAIM]
    assert list(projection.attempts) == [key()]


# --- fencing tokens -------------------------------------------------------------------------------------------------


def test_the_fencing_token_counts_claims_over_all_attempts_of_an_idempotency_key() -> None:
    projection = fold(
        scheduled(),
        claimed(at=10, lease=10, fencing_token=1),
        claimed(at=20, lease=10, claim="b", fencing_token=2),
        failed_with_retry(at=25, claim="b", delay=5),
        claimed(attempt=2, at=30, claim="c", fencing_token=3),
    )

    assert reasons(projection) == []
    assert the_attempt(projection, 2).fencing_token == 3
    assert projection.runs["run-1"].tokens == {"run-1:charge:1": 3}


def test_another_visit_of_the_step_counts_its_own_tokens() -> None:
    projection = fold(scheduled(), claimed(), scheduled(visit=2), claimed(visit=2, fencing_token=1))

    assert reasons(projection) == []
    assert projection.attempts[key(visit=2)].fencing_token == 1


@pytest.mark.parametrize("token", [1, 3])
def test_a_claim_with_a_wrong_fencing_token_is_refused(token: int) -> None:
    projection = fold(scheduled(), claimed(at=10, lease=10), claimed(at=20, claim="b", fencing_token=token))

    assert reasons(projection) == [Reason.WRONG_FENCING_TOKEN]
    assert the_attempt(projection).claim_id == "a"
    assert projection.runs["run-1"].tokens == {"run-1:charge:1": 1}


def test_a_claim_that_says_no_fencing_token_gets_the_next_one() -> None:
    found = the_attempt(fold(scheduled(), claimed(at=10, lease=10), claimed(at=20, claim="b", fencing_token=None)))

    assert found.fencing_token == 2


def test_a_refused_claim_uses_up_no_token() -> None:
    projection = fold(scheduled(), claimed(at=10, lease=10), claimed(at=15, claim="b"), claimed(at=20, claim="c"))

    assert the_attempt(projection).fencing_token == 2


# --- the end of a run, quarantine, wakeups --------------------------------------------------------------------------


@pytest.mark.parametrize("end", [fenced(), terminal()], ids=["on the queue's thread", "on the run's thread"])
def test_a_fenced_run_refuses_everything(end: Fact) -> None:
    before: list[Fact] = [scheduled(), claimed(at=10, lease=500), scheduled(step="ship"), end]
    late: list[Fact] = [
        queued(at=60),
        scheduled(step="mail", at=60),
        claimed(step="ship", at=60, claim="b"),
        heartbeat(at=60),
        released(at=60),
        completed(at=60),
        failed_with_retry(at=60),
        dead_lettered(at=900),
        wakeup(at=60),
    ]

    projection = fold(*before, *late)

    assert reasons(projection) == [Reason.TERMINAL_RUN] * len(late)
    assert projection.attempts == fold(*before).attempts


@pytest.mark.parametrize("end", [fenced(), terminal()], ids=["on the queue's thread", "on the run's thread"])
def test_a_fenced_run_shows_no_work(end: Fact) -> None:
    projection = fold(scheduled(), claimed(at=10, lease=10), scheduled(step="ship"), end)

    assert projection.runs["run-1"].fenced
    assert projection.claimable(t(500)) == projection.visible(t(500)) == projection.expired(t(500)) == []
    assert list(projection.runs["run-1"].open_attempts()) == []


def test_a_fence_may_be_written_twice() -> None:
    assert reasons(fold(scheduled(), fenced(), terminal(), fenced(at=60))) == []


def test_a_fence_of_one_run_leaves_the_others_alone() -> None:
    projection = fold(scheduled(), scheduled("run-2"), fenced())

    assert [attempt.run_id for attempt in projection.visible(t(0))] == ["run-2"]


def test_a_quarantined_run_gives_no_claims() -> None:
    projection = fold(scheduled(), quarantined(), claimed(at=30))

    assert reasons(projection) == [Reason.QUARANTINED_RUN]
    assert the_attempt(projection).status is AttemptStatus.AVAILABLE
    assert projection.claimable(t(500)) == projection.visible(t(500)) == projection.expired(t(500)) == []


def test_the_holder_of_a_claim_may_finish_although_the_run_was_quarantined() -> None:
    projection = fold(scheduled(), claimed(), quarantined(), heartbeat(at=25), completed(at=30))

    assert reasons(projection) == []
    assert the_attempt(projection).status is AttemptStatus.COMPLETED


def test_a_wakeup_is_noted_on_an_open_attempt() -> None:
    assert the_attempt(fold(scheduled(), wakeup())).wakeup_emitted


def test_a_wakeup_for_a_finished_attempt_is_dropped() -> None:
    projection = fold(scheduled(), claimed(), completed(), wakeup(at=40))

    assert reasons(projection) == []
    assert projection.attempts == fold(scheduled(), claimed(), completed()).attempts


# --- queues ---------------------------------------------------------------------------------------------------------


def test_a_paused_queue_gives_no_claims_but_still_shows_what_waits() -> None:
    projection = fold(scheduled(), scheduled(step="ship"), claimed(lease=10), queue_paused())

    assert projection.paused == {"default"}
    assert projection.claimable(t(100)) == []
    assert [attempt.step for attempt in projection.visible(t(100))] == ["ship"]
    assert [attempt.step for attempt in projection.expired(t(100))] == ["charge"]


def test_a_resumed_queue_gives_claims_again() -> None:
    projection = fold(scheduled(), queue_paused(), queue_paused(), queue_resumed())

    assert projection.paused == frozenset()
    assert len(projection.claimable(t(0))) == 1


def test_a_pause_stops_its_own_queue_only() -> None:
    projection = fold(scheduled(), scheduled("run-2", queue="slow"), queue_paused("slow"), queue_resumed("other"))

    assert [attempt.queue for attempt in projection.claimable(t(0))] == ["default"]


def test_a_holder_may_finish_while_the_queue_is_paused() -> None:
    projection = fold(scheduled(), claimed(), queue_paused(at=20), completed(at=30))

    assert the_attempt(projection).status is AttemptStatus.COMPLETED


# --- unreadable entries and entries of other threads ----------------------------------------------------------------


def test_an_unknown_fact_type_is_an_anomaly_with_thread_and_sequence() -> None:
    projection = fold(scheduled(), unknown())

    [found] = projection.anomalies
    assert (found.reason, found.entry_type, found.run_id) == (
        Reason.UNKNOWN_FACT_TYPE,
        "attempt_teleported",
        "run-1",
    )
    assert (found.thread, found.seq, found.position) == (dispatch_thread("default"), 2, 4)


def test_a_malformed_entry_is_an_anomaly_with_thread_and_sequence() -> None:
    projection = fold(scheduled(), scheduled("run-2"), malformed(run="run-2"))

    [found] = projection.anomalies
    assert (found.reason, found.entry_type, found.run_id) == (Reason.MALFORMED_ENTRY, "attempt_claimed", "run-2")
    assert (found.thread, found.seq, found.position) == (dispatch_thread("default"), 3, 6)
    assert projection.attempts == fold(scheduled(), scheduled("run-2")).attempts


def test_a_malformed_fence_is_an_anomaly_and_fences_nothing() -> None:
    projection = fold(scheduled(), malformed(type_name="run_fenced"), malformed(type_name="entry_quarantined"))

    assert reasons(projection) == [Reason.MALFORMED_ENTRY, Reason.MALFORMED_ENTRY]
    assert len(projection.claimable(t(0))) == 1


@pytest.mark.parametrize("lost", [unknown(run=None), malformed(run=None)])
def test_an_unreadable_entry_that_names_no_run_is_an_anomaly_of_the_queue(lost: OnThread) -> None:
    projection = fold(scheduled(), lost)

    [found] = projection.queue_anomalies
    assert (found.run_id, found.thread, found.seq) == (None, dispatch_thread("default"), 2)
    assert projection.anomalies == (found,)


@pytest.mark.parametrize("run", ["run-1", None])
def test_an_unreadable_entry_of_another_thread_is_not_the_queues_anomaly(run: str | None) -> None:
    projection = fold(scheduled(), malformed(CATALOG_THREAD, run), unknown(run_thread("run-1"), run))

    assert projection.anomalies == ()


def test_the_runs_other_facts_mean_nothing_to_the_dispatch_fold() -> None:
    projection = fold(scheduled(), started(), indexed(), cataloged())

    assert projection.runs == fold(scheduled()).runs


def test_an_anomaly_names_its_attempt_and_never_takes_an_unknown_field_for_one() -> None:
    projection = fold(claimed(), fenced(), queued(runnable_key={"not": "a key"}), queued(runnable_key=7))

    assert [anomaly.subject for anomaly in projection.anomalies] == [key(), None, None]


def test_anomalies_come_in_the_order_of_their_entries_over_all_runs() -> None:
    projection = fold(claimed("run-2"), claimed(), unknown(run=None), claimed("run-2"))

    assert [(a.run_id, a.seq) for a in projection.anomalies] == [("run-2", 1), ("run-1", 2), (None, 3), ("run-2", 4)]


# --- views ----------------------------------------------------------------------------------------------------------


def claim_steps(projection: DispatchProjection, seconds: float) -> list[str]:
    return [attempt.step for attempt in projection.claimable(t(seconds))]


def test_higher_priority_is_claimed_first() -> None:
    projection = fold(
        scheduled(step="low", priority=-10), scheduled(step="high", priority=10, visible_at=t(5)), scheduled(step="mid")
    )

    assert claim_steps(projection, 10) == ["high", "mid", "low"]


def test_of_equal_priority_the_one_due_longest_is_claimed_first() -> None:
    projection = fold(
        scheduled(step="new", visible_at=t(8)), scheduled(step="old", visible_at=t(2)), scheduled(step="not yet", at=0)
    )

    assert claim_steps(projection, 10) == ["not yet", "old", "new"]


def test_an_expired_claim_is_due_since_its_lease_ended_not_since_it_was_visible() -> None:
    projection = fold(
        scheduled(step="lost"),
        scheduled(step="fresh", visible_at=t(40)),
        scheduled(step="fresher", visible_at=t(60)),
        claimed(step="lost", at=10, lease=40),
    )

    assert claim_steps(projection, 100) == ["fresh", "lost", "fresher"]


def test_of_equal_due_time_the_one_written_first_is_claimed_first() -> None:
    projection = fold(scheduled(step="z"), scheduled("run-2", step="a"), scheduled(step="m"))

    assert claim_steps(projection, 0) == ["z", "a", "m"]


def test_a_retry_has_the_place_of_the_failure_that_created_it() -> None:
    projection = fold(
        scheduled(step="first"),
        claimed(step="first"),
        scheduled(step="second", visible_at=t(30)),
        failed_with_retry(step="first", at=30, delay=0),
        scheduled(step="third", visible_at=t(30)),
    )

    assert claim_steps(projection, 30) == ["second", "first", "third"]


def test_visible_and_expired_share_out_what_is_claimable_by_the_very_instant() -> None:
    projection = fold(scheduled(visible_at=t(30)), scheduled(step="ship"), claimed(step="ship", at=10, lease=20))

    assert [a.step for a in projection.visible(t(30))] == ["charge"]
    assert [a.step for a in projection.expired(t(30))] == ["ship"]
    assert projection.claimable(t(29.999999)) == []


def test_an_attempt_out_of_deliveries_is_claimable_so_that_a_claim_meets_and_dead_letters_it() -> None:
    projection = fold(scheduled(max_deliveries=1), claimed(at=10, lease=10))

    assert [a.runnable_key for a in projection.claimable(t(20))] == [key()]


def test_a_definition_key_says_workflow_and_fingerprint() -> None:
    assert definition_key("billing", "f1") == "billing/f1"
    assert definition_key(None, None) == "/"


def test_commands_ask_the_same_rules_before_they_write() -> None:
    claim = the_attempt(fold(scheduled(), claimed(at=10, lease=10)))
    done = the_attempt(fold(scheduled(), claimed(), completed(result=1)))
    lost = the_attempt(fold(scheduled(), claimed(), failed(error={"a": 1})))
    hash_a = token_hash("a")

    assert check_fence(claim, "a", hash_a, t(19)) is None
    assert check_fence(claim, "a", hash_a, t(20)) is Reason.EXPIRED_CLAIM
    assert check_fence(claim, "b", hash_a, t(19)) is Reason.STALE_CLAIM
    assert check_completion(claim, "a", hash_a, digest(1), t(19)) is True
    assert check_completion(done, "a", hash_a, digest(1), t(90)) is False
    assert check_completion(done, "a", hash_a, digest(2), t(90)) is Reason.CONFLICTING_COMPLETION
    assert check_failure(claim, "a", hash_a, digest({}), t(20)) is Reason.EXPIRED_CLAIM
    assert check_failure(lost, "a", hash_a, digest({"a": 1}), t(90)) is False
    assert check_failure(lost, "a", hash_a, digest({"a": 2}), t(90)) is Reason.CONFLICTING_FAILURE


# --- what must hold of any history ----------------------------------------------------------------------------------


def accepted(placed: list[Entry]) -> list[Entry]:
    """Entries with a readable fact that the fold found nothing wrong with."""
    refused = {(a.thread, a.seq) for a in DispatchProjection.fold(placed).anomalies}
    return [entry for entry in placed if (entry.thread, entry.seq) not in refused]


@settings(max_examples=120)
@given(journals())
def test_any_journal_folds_and_every_anomaly_names_its_entry(journal: list[Entry]) -> None:
    projection = DispatchProjection.fold(journal)

    places = {(entry.thread, entry.seq, entry.position) for entry in journal}
    for found in projection.anomalies:
        assert (found.thread, found.seq, found.position) in places
        assert found.subject is None or isinstance(found.subject, str)
    assert sorted(projection.claimable(t(500)), key=claim_order) == projection.claimable(t(500))


@settings(max_examples=100)
@given(journals(), st.data())
def test_folding_in_two_parts_equals_folding_at_once_and_leaves_the_first_part_alone(
    journal: list[Entry], data: st.DataObject
) -> None:
    split = data.draw(st.integers(0, len(journal)))
    first = DispatchProjection.fold(journal[:split])
    whole = DispatchProjection.fold(journal[split:], onto=first)

    assert whole == DispatchProjection.fold(journal)
    assert first == DispatchProjection.fold(journal[:split])


@settings(max_examples=120)
@given(histories())
def test_an_attempt_has_at_most_one_holder_at_any_time(history: list[Fact]) -> None:
    holds: dict[tuple[str, str], list[tuple[Any, Any]]] = {}

    for entry in accepted(entries(history)):
        fact = entry.fact
        match fact:
            case AttemptClaimed():
                holds.setdefault((fact.run_id, fact.runnable_key), []).append((fact.occurred_at, fact.lease_until))
            case AttemptHeartbeat():
                since, until = holds[fact.run_id, fact.runnable_key].pop()
                assert since <= fact.occurred_at < until
                holds[fact.run_id, fact.runnable_key].append((since, max(until, fact.lease_until)))
            case AttemptReleased() | AttemptCompleted() | AttemptFailed():
                since, until = holds[fact.run_id, fact.runnable_key].pop()
                # A repeat of an outcome may come at any later time; only the first one ends the hold.
                holds[fact.run_id, fact.runnable_key].append((since, min(until, fact.occurred_at)))

    for held in holds.values():
        assert all(until <= since for (_, until), (since, _) in pairwise(held))


@settings(max_examples=100)
@given(histories())
def test_a_settled_attempt_never_changes(history: list[Fact]) -> None:
    settled: dict[str, Attempt] = {}
    projection = DispatchProjection()
    over = {AttemptStatus.COMPLETED, AttemptStatus.FAILED, AttemptStatus.DEAD_LETTERED}

    for entry in entries(history):
        projection = DispatchProjection.fold([entry], onto=projection)
        now = {f"{r}/{k}": a for r, run in projection.runs.items() for k, a in run.attempts.items()}
        assert {name: now[name] for name in settled} == settled
        settled = {name: attempt for name, attempt in now.items() if attempt.status in over}


@settings(max_examples=100)
@given(histories())
def test_a_fenced_run_never_shows_work_and_its_attempts_never_change_again(history: list[Fact]) -> None:
    projection, frozen = DispatchProjection(), dict[str, dict[str, Attempt]]()

    for entry in entries(history):
        projection = DispatchProjection.fold([entry], onto=projection)
        for run_id, run in projection.runs.items():
            if run.fenced:
                assert run.attempts == frozen.setdefault(run_id, run.attempts)
                assert not list(run.open_attempts())
                assert not list(run.claimable(t(10_000)))
    shown = [*projection.visible(t(10_000)), *projection.expired(t(10_000)), *projection.claimable(t(10_000))]
    assert not {attempt.run_id for attempt in shown} & set(frozen)


@settings(max_examples=100)
@given(histories())
def test_the_fencing_token_of_an_idempotency_key_grows_by_one_with_every_accepted_claim(history: list[Fact]) -> None:
    placed = entries(history)
    kept = {(entry.thread, entry.seq) for entry in accepted(placed)}
    projection, last = DispatchProjection(), dict[tuple[str, str], int]()

    for entry in placed:
        projection = DispatchProjection.fold([entry], onto=projection)
        if isinstance(entry.fact, AttemptClaimed) and (entry.thread, entry.seq) in kept:
            attempt = projection.runs[entry.fact.run_id].attempts[entry.fact.runnable_key]
            visit = (attempt.run_id, attempt.idempotency_key)
            last[visit] = last.get(visit, 0) + 1
            assert attempt.fencing_token == last[visit]
    assert {(r, k): n for r, run in projection.runs.items() for k, n in run.tokens.items()} == last


@settings(max_examples=100)
@given(journals())
def test_each_run_folds_by_itself_to_its_part_of_the_whole(journal: list[Entry]) -> None:
    whole = DispatchProjection.fold(journal)

    for run_id, own in by_run(journal).items():
        if run_id is None:
            assert DispatchProjection.fold(own).paused == whole.paused
        else:
            assert DispatchProjection.fold(own).runs == {run_id: whole.runs[run_id]}


@settings(max_examples=60)
@given(histories(), st.sampled_from(RUNS))
def test_the_facts_of_one_run_never_change_another_runs_part(history: list[Fact], run_id: str) -> None:
    others = [entry for entry in entries(history) if getattr(entry.fact, "run_id", None) != run_id]

    with_it, without_it = DispatchProjection.fold(entries(history)), DispatchProjection.fold(others)

    empty = RunDispatch()
    for other in set(RUNS) - {run_id}:
        assert with_it.runs.get(other, empty) == without_it.runs.get(other, empty)


@settings(max_examples=60)
@given(histories())
def test_deliveries_stay_within_the_cap_and_leases_within_reason(history: list[Fact]) -> None:
    for attempt in DispatchProjection.fold(entries(history)).attempts.values():
        assert 0 <= attempt.deliveries <= attempt.max_deliveries
        assert (attempt.status is AttemptStatus.CLAIMED) <= (attempt.lease_until is not None)
        assert attempt.due_at is None or attempt.due_at >= T0
