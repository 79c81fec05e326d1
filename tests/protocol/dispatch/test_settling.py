"""The dispatch fold: how an attempt ends, and what comes of its failure."""

from squid_dagster.protocol import AttemptStatus, Fact, Reason
from tests.facts import claimed, completed, failed, failed_with_retry, key, scheduled, t, wakeup
from tests.protocol.fold_assertions import fold, reasons, the_attempt

# --- completion -----------------------------------------------------------------------------------------------------


def test_the_holder_completes_the_attempt() -> None:
    projection = fold(scheduled(), claimed(), completed(at=30, result={"paid": 5}))

    attempt = the_attempt(projection)
    assert (attempt.status, attempt.result, attempt.settled_at) == (AttemptStatus.COMPLETED, {"paid": 5}, t(30))
    assert projection.claimable(t(500)) == []
    assert reasons(projection) == []


def test_a_result_may_be_any_json_value_even_none() -> None:
    attempt = the_attempt(fold(scheduled(), claimed(), completed(result=None)))

    assert (attempt.status, attempt.result) == (AttemptStatus.COMPLETED, None)


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
    attempt = the_attempt(projection)
    assert (attempt.status, attempt.claim_id, attempt.result) == (AttemptStatus.CLAIMED, "b", None)


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

    attempt = the_attempt(projection)
    assert (attempt.status, attempt.error, attempt.settled_at) == (AttemptStatus.FAILED, {"message": "declined"}, t(30))
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
