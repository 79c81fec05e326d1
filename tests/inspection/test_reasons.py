"""Every reason has a history that leads to it; every answer names the facts that prove it, and what to do."""

import json

import pytest

from squid_dagster.inspection import RunReason
from squid_dagster.inspection.explain.diagnosis import RULES
from tests.inspection.reason_histories import HISTORIES

_CALLS = {
    "approve": "squid.approve('run-1', actor=...)",
    "reject": "squid.reject('run-1', actor=...)",
    "resume": "squid.resume('run-1')",
    "cancel": "squid.cancel('run-1')",
    "recover": "squid.recover()",
    "resume_queue": "squid.resume_queue('default')",
    "start_worker": "squid.worker('default')",
    "start_sensor": None,
    "register_definition": "Squid.connect(workflows=[...])",
    "inspect_history": "squid.inspect_run('run-1', include_history=True)",
    "wait": None,
}


SUMMARIES = {
    RunReason.TERMINAL: "The run completed at 2026-01-01T01:00:15Z.",
    RunReason.QUARANTINED: (
        "The run is quarantined: entry 2 of thread 'squid:dispatch:default' cannot be read (input: Field required)."
    ),
    RunReason.UNREADABLE_ENTRY: (
        "Entry 2 of thread 'squid:dispatch:default' cannot be read (step: wrong): "
        "whoever meets it next will quarantine the run."
    ),
    RunReason.MANUAL_INTERVENTION_REQUIRED: (
        "Step 'review' waits for an approval since 2026-01-01T01:00:15Z, for 1 h 35 min."
    ),
    RunReason.DEAD_LETTER: (
        "Step 'ship' was handed out 2 times and never finished; "
        "it is a dead letter, and nobody tries again by themselves. "
        "It may have run beside others in its worker, one of which may have ended the process."
    ),
    RunReason.QUEUE_PAUSED: (
        "Queue 'default' is paused since 2026-01-01T00:00:05Z: nobody can claim step 'charge' until it is resumed."
    ),
    RunReason.NO_WORKER_FOR_QUEUE: (
        "Step 'charge' has been waiting for 5 min, but no live worker has announced itself for queue 'default'."
    ),
    RunReason.EXPIRED_CLAIM: (
        "Worker 'worker-a' let its lease on step 'charge' run out 10 s ago: "
        "with the next claim on the queue the attempt is handed to another worker."
    ),
    RunReason.COMPENSATING: (
        "The run has failed (ValueError: declined) and ends once everything is undone. "
        "The undoing of step 'pay' is next, and it waits for a worker."
    ),
    RunReason.ATTEMPT_CLAIMED: "Worker 'worker-a' works on step 'charge' for 35 s (lease until 2026-01-01T00:01:20Z).",
    RunReason.WAITING_EXTERNAL: (
        "Step 'train' was asked for as Dagster job 'train_model' 3 min ago, and no run of it was seen yet."
    ),
    RunReason.RETRY_SCHEDULED: (
        "Step 'charge' failed (ValueError: declined); attempt 2 of 3 begins at 2026-01-01T00:00:30Z, in 30 s."
    ),
    RunReason.DEFERRED_CONTINUATION: (
        "Step 'charge' has deferred itself (the bank is closed) and comes back at 2026-01-01T00:02:00Z, in 2 min."
    ),
    RunReason.WAIT_STEP: "The run rests in wait 'rest' and goes on at 2026-01-01T01:00:05Z, in 50 min.",
}


def test_every_reason_has_a_history_that_leads_to_it() -> None:
    assert set(HISTORIES) == set(RunReason)


@pytest.mark.parametrize("reason", RunReason)
def test_the_history_of_a_reason_is_explained_by_it(reason: RunReason) -> None:
    history, known = HISTORIES[reason]()

    explanation = history.explain(**known)

    assert explanation.reason == reason.value
    assert explanation.summary.endswith(".")
    assert "\n" not in explanation.summary
    assert explanation.as_of == history.now


@pytest.mark.parametrize("reason", RunReason)
def test_every_answer_names_the_facts_that_prove_it(reason: RunReason) -> None:
    history, known = HISTORIES[reason]()

    explanation = history.explain(**known)

    assert explanation.evidence
    for proof in explanation.evidence:
        (entry,) = history.storage.read(proof.thread, after=proof.revision - 1, limit=1)
        assert (entry.seq, entry.fact.type, entry.fact.occurred_at) == (proof.revision, proof.type, proof.occurred_at)


@pytest.mark.parametrize("reason", RunReason)
def test_actions_are_calls_that_can_be_copied(reason: RunReason) -> None:
    history, known = HISTORIES[reason]()

    for action in history.explain(**known).next_actions:
        if action.action in _CALLS:
            assert action.call == _CALLS[action.action]


@pytest.mark.parametrize("reason", RunReason)
def test_an_explanation_is_json_with_stable_keys(reason: RunReason) -> None:
    history, known = HISTORIES[reason]()

    explanation = json.loads(json.dumps(history.explain(**known).to_dict()))

    assert list(explanation) == [
        "run_id",
        "workflow",
        "definition_version",
        "queue",
        "status",
        "reason",
        "step",
        "summary",
        "details",
        "next_actions",
        "evidence",
        "as_of",
    ]
    assert all(list(proof) == ["thread", "revision", "type", "occurred_at"] for proof in explanation["evidence"])
    assert all(list(action) == ["action", "call", "note"] for action in explanation["next_actions"])


def test_rules_are_looked_at_in_the_order_of_the_reasons() -> None:
    order_of = list(RunReason)
    places = []
    for reason in RunReason:
        history, known = HISTORIES[reason]()
        case = history.case(**known)
        place = next((i for i, rule in enumerate(RULES) if rule(case) is not None), len(RULES))
        places.append((place, order_of.index(reason)))
    assert places == sorted(places)


@pytest.mark.parametrize("reason", SUMMARIES)
def test_the_summary_is_a_sentence_that_a_person_can_act_on(reason: RunReason) -> None:
    history, known = HISTORIES[reason]()

    assert history.explain(**known).summary == SUMMARIES[reason]
