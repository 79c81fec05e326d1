"""The dispatch fold: what a queue shows, and in which order."""

import pytest

from squid_dagster.protocol import (
    CATALOG_THREAD,
    AttemptStatus,
    DispatchProjection,
    Reason,
    definition_key,
    dispatch_thread,
    run_thread,
)
from squid_dagster.protocol.entries import digest
from squid_dagster.protocol.folds.attempt import check_completion, check_failure, check_fence
from tests.facts import (
    OnThread,
    cataloged,
    claimed,
    completed,
    failed,
    failed_with_retry,
    fenced,
    indexed,
    key,
    malformed,
    queue_paused,
    queue_resumed,
    queued,
    scheduled,
    started,
    t,
    token_hash,
    unknown,
)
from tests.protocol.fold_assertions import fold, reasons, the_attempt

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

    [anomaly] = projection.anomalies
    assert (anomaly.reason, anomaly.entry_type, anomaly.run_id) == (
        Reason.UNKNOWN_FACT_TYPE,
        "attempt_teleported",
        "run-1",
    )
    assert (anomaly.thread, anomaly.seq, anomaly.position) == (dispatch_thread("default"), 2, 4)


def test_a_malformed_entry_is_an_anomaly_with_thread_and_sequence() -> None:
    projection = fold(scheduled(), scheduled("run-2"), malformed(run="run-2"))

    [anomaly] = projection.anomalies
    assert (anomaly.reason, anomaly.entry_type, anomaly.run_id) == (Reason.MALFORMED_ENTRY, "attempt_claimed", "run-2")
    assert (anomaly.thread, anomaly.seq, anomaly.position) == (dispatch_thread("default"), 3, 6)
    assert projection.attempts == fold(scheduled(), scheduled("run-2")).attempts


def test_a_malformed_fence_is_an_anomaly_and_fences_nothing() -> None:
    projection = fold(scheduled(), malformed(type_name="run_fenced"), malformed(type_name="entry_quarantined"))

    assert reasons(projection) == [Reason.MALFORMED_ENTRY, Reason.MALFORMED_ENTRY]
    assert len(projection.claimable(t(0))) == 1


@pytest.mark.parametrize("lost", [unknown(run=None), malformed(run=None)])
def test_an_unreadable_entry_that_names_no_run_is_an_anomaly_of_the_queue(lost: OnThread) -> None:
    projection = fold(scheduled(), lost)

    [anomaly] = projection.queue_anomalies
    assert (anomaly.run_id, anomaly.thread, anomaly.seq) == (None, dispatch_thread("default"), 2)
    assert projection.anomalies == (anomaly,)


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
