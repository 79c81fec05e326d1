"""The dispatch fold: fences against late workers and ended runs."""

import pytest

from squid_dagster.protocol import AttemptStatus, Fact, Reason
from tests.facts import (
    claimed,
    completed,
    dead_lettered,
    failed_with_retry,
    fenced,
    heartbeat,
    key,
    quarantined,
    queued,
    released,
    scheduled,
    t,
    terminal,
    wakeup,
)
from tests.protocol.fold_assertions import fold, reasons, the_attempt

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
    attempt = the_attempt(fold(scheduled(), claimed(at=10, lease=10), claimed(at=20, claim="b", fencing_token=None)))

    assert attempt.fencing_token == 2


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


# --- deferrals, and ends without a fence ----------------------------------------------------------------------------


def test_a_deferred_attempt_is_hidden_until_its_time() -> None:
    projection = fold(scheduled(), claimed(), released(visible_at=t(90)))

    assert projection.claimable(t(89)) == []
    assert [attempt.deliveries for attempt in projection.claimable(t(90))] == [0]


@pytest.mark.parametrize(
    ("facts", "unfenced"),
    [
        pytest.param([scheduled(), terminal(at=20)], True, id="ended with open work"),
        pytest.param([scheduled(), terminal(at=20), terminal(at=21)], True, id="ended twice"),
        pytest.param([scheduled(), terminal(at=20), fenced(at=21)], False, id="fenced later"),
        pytest.param([scheduled(), fenced(at=19), terminal(at=20)], False, id="fenced before"),
        pytest.param([scheduled(), claimed(), completed(), terminal(at=40)], False, id="nothing open"),
        pytest.param([scheduled(), fenced(at=19)], False, id="only fenced"),
    ],
)
def test_an_end_while_attempts_are_open_wants_a_fence(facts: list[Fact], unfenced: bool) -> None:
    assert fold(*facts).runs["run-1"].unfenced is unfenced
