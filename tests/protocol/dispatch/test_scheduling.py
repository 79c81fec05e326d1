"""The dispatch fold: what is scheduled, and what is not."""

from typing import Any

import pytest

from squid_dagster.protocol import AttemptStatus, Fact, Reason
from tests.facts import (
    claimed,
    completed,
    dead_lettered,
    failed,
    heartbeat,
    key,
    queued,
    released,
    scheduled,
    t,
    wakeup,
)
from tests.protocol.fold_assertions import fold, reasons, the_attempt


def test_a_scheduled_attempt_is_available_with_all_that_the_fact_says() -> None:
    fact = scheduled(
        priority=3, max_deliveries=2, definition_version="v1", definition_fingerprint="f1", visible_at=t(5)
    )

    attempt = the_attempt(fold(fact))

    assert attempt.status is AttemptStatus.AVAILABLE
    assert (attempt.run_id, attempt.step, attempt.attempt_number, attempt.queue) == ("run-1", "charge", 1, "default")
    assert (attempt.idempotency_key, attempt.input, attempt.visible_at) == ("run-1:charge:1", {"amount": 5}, t(5))
    assert (attempt.priority, attempt.max_deliveries, attempt.workflow) == (3, 2, "billing")
    assert (attempt.definition_version, attempt.definition_fingerprint) == ("v1", "f1")
    assert (attempt.deliveries, attempt.fencing_token, attempt.claim_id, attempt.lease_until) == (0, 0, None, None)


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
