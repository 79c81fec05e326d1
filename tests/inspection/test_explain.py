"""What explanations say beyond their reason: of definitions, workers, queues, commands and deadlines."""

import pytest

from squid_dagster.inspection import QueueState, RunReason
from squid_dagster.inspection.queue_state import read_queue_state
from squid_dagster.journal.fold_store.queries import FoldQueries
from squid_dagster.protocol.errors import InvalidThread, NotFound
from squid_dagster.workflow.registry import Registry
from tests.facts import fenced, queue_paused, queue_resumed, queued, signal, terminal
from tests.inspection.reason_histories import HISTORIES
from tests.inspection.run_histories import RUN, LiveWorker, changed_order, fan, looping, order, saga, start_history


def test_a_held_run_names_both_definitions() -> None:
    history, known = HISTORIES[RunReason.HELD]()

    explanation = history.explain(**known)

    assert explanation.status == "held"
    assert explanation.details["kind"] == "definition_changed"
    assert (explanation.details["persisted_version"], explanation.details["current_version"]) == ("1", "2")
    assert explanation.details["persisted_fingerprint"] == history.definition.fingerprint
    assert explanation.details["current_fingerprint"] == changed_order().freeze().fingerprint
    assert history.definition.fingerprint[:12] in explanation.summary
    assert [proof.type for proof in explanation.evidence] == ["run_started"]
    assert [action.action for action in explanation.next_actions] == ["register_definition", "cancel"]


def test_a_run_goes_on_when_its_version_is_registered_beside_the_new_one() -> None:
    history = start_history(order())

    explanation = history.explain(registry=Registry([history.definition, changed_order().freeze()]))

    assert (explanation.status, explanation.reason) == ("running", "attempt_visible")


def test_a_live_worker_that_has_the_definition_means_that_nothing_is_held() -> None:
    history = start_history(order())

    explanation = history.explain(
        registry=Registry([changed_order().freeze()]),
        workers=[LiveWorker("old", definitions=(history.definition.key,))],
    )

    assert (explanation.status, explanation.reason) == ("running", "attempt_visible")


def test_a_workflow_that_is_unknown_here_says_nothing_unless_it_is_known_who_else_works() -> None:
    history = start_history(order())

    assert history.explain(registry=Registry([fan().freeze()])).reason == "attempt_visible"

    explanation = history.explain(registry=Registry([fan().freeze()]), workers=[])
    assert (explanation.reason, explanation.details["kind"]) == ("held", "definition_missing")
    assert "no live worker announces it" in explanation.summary


def test_a_paused_run_whose_definition_is_gone_says_that_a_decision_would_be_refused() -> None:
    history, _ = HISTORIES[RunReason.MANUAL_INTERVENTION_REQUIRED]()

    explanation = history.explain(registry=Registry([changed_order().freeze()]))

    assert (explanation.status, explanation.reason) == ("paused", "manual_intervention_required")
    assert "refused" in explanation.summary
    assert explanation.details["held"]["kind"] == "definition_changed"
    assert [action.action for action in explanation.next_actions] == [
        "register_definition",
        "approve",
        "reject",
        "cancel",
    ]


def test_a_pause_is_resumed_and_an_approval_decided() -> None:
    history = start_history(looping()).do("poll").do("look", {"tired": True})

    explanation = history.explain()

    assert [action.action for action in explanation.next_actions] == ["resume", "cancel"]
    assert explanation.summary.startswith("The run stands still at 'breathe' since")


def test_a_failed_run_says_in_which_step_and_why() -> None:
    history = start_history(order()).claim("charge").fail("charge").do("mend")

    explanation = history.explain()

    assert explanation.summary.startswith("The run failed in step 'mend' at 2026-01-01T00:00:05Z: routed_to_fail:")
    assert [proof.type for proof in explanation.evidence] == ["runnable_applied", "run_terminal"]
    assert [action.call for action in explanation.next_actions] == ["squid.replay('run-1')"]


def test_a_replay_after_irreversible_steps_is_offered_with_a_warning() -> None:
    history = start_history(saga()).do("book").do("pay").do("mail").claim("ship").fail("ship")
    history.do("compensate:pay").do("compensate:book")

    (replay,) = history.explain().next_actions

    assert replay.call == "squid.replay('run-1', allow_irreversible=True)"
    assert replay.note is not None
    assert "mail" in replay.note


def test_a_cancelled_run_says_by_whom() -> None:
    history = start_history(order()).end(comment="wrong order")

    explanation = history.explain()

    assert explanation.summary == "The run was cancelled at 2026-01-01T00:00:00Z by grace: wrong order."
    assert [proof.type for proof in explanation.evidence] == ["run_signal_received", "run_terminal"]


def test_an_end_whose_queue_was_never_told_can_be_recovered() -> None:
    history = start_history(order())
    history.write(terminal(status="cancelled", at=0))

    explanation = history.explain()

    assert explanation.details["unfenced"] is True
    assert explanation.next_actions[-1].action == "recover"
    history.write(fenced())
    assert "unfenced" not in history.explain().details


def test_a_dead_letter_can_be_retried_by_its_key() -> None:
    history, known = HISTORIES[RunReason.DEAD_LETTER]()

    explanation = history.explain(**known)

    assert (explanation.status, explanation.reason) == ("running", "dead_letter")
    assert explanation.next_actions[0].call == "squid.retry_attempt('run-1', 'run-1:ship:1:1')"
    assert [proof.type for proof in explanation.evidence] == ["attempt_claimed", "attempt_dead_lettered"]


def test_a_dead_letter_with_an_error_route_only_waits_to_be_taken_up() -> None:
    history = start_history(order()).die("charge")

    explanation = history.explain()

    assert (explanation.status, explanation.reason) == ("running", "failure_pending_apply")
    assert explanation.next_actions[0].call == "squid.recover()"


def test_an_expired_claim_that_was_the_last_delivery_says_what_comes_next() -> None:
    history = start_history(saga()).do("book").do("pay").do("mail")
    history.claim("ship", lease=10).advance(seconds=11).claim("ship", lease=10).advance(seconds=11)

    assert "becomes a dead letter" in history.explain().summary


def test_an_expired_claim_on_a_paused_queue_is_explained_by_the_pause() -> None:
    history = start_history(order()).claim("charge", lease=30).advance(seconds=40)

    assert history.explain(queue_state=QueueState("default", True)).reason == "queue_paused"
    assert history.explain(queue_state=QueueState("default", False)).reason == "expired_claim"
    assert history.explain(queue_state=QueueState("slow", True)).reason == "expired_claim"


def test_a_claimed_attempt_goes_on_although_its_queue_is_paused() -> None:
    history = start_history(order()).claim("charge")

    assert history.explain(queue_state=QueueState("default", True)).reason == "attempt_claimed"


def test_a_lease_is_proved_by_the_heartbeat_that_extended_it() -> None:
    history, known = HISTORIES[RunReason.ATTEMPT_CLAIMED]()

    assert [proof.type for proof in history.explain(**known).evidence] == ["attempt_claimed", "attempt_heartbeat"]

    history.advance(minutes=2).claim("charge", owner="worker-b")
    assert [proof.type for proof in history.explain().evidence] == ["attempt_claimed"]


def test_the_workers_that_could_take_it_are_named() -> None:
    history = start_history(order())
    workers = [
        LiveWorker("w-2"),
        LiveWorker("w-1", definitions=(history.definition.key,)),
        LiveWorker("w-3", ("slow",)),
    ]

    assert history.explain(workers=workers).details["workers"] == ["w-1", "w-2"]
    assert "workers" not in history.explain().details


def test_siblings_at_work_are_told_beside_the_one_that_waits() -> None:
    history = start_history(fan()).claim("left")

    explanation = history.explain()

    assert explanation.reason == "attempt_visible"
    assert explanation.details["runnable_keys"] == ["run-1:middle:1:1", "run-1:right:1:1"]
    assert "other attempts of the run are being worked on (1)" in explanation.summary


def test_workers_that_are_all_busy_are_told() -> None:
    history = start_history(order())
    busy, free = LiveWorker("w-1", capacity=2, running=2), LiveWorker("w-2", capacity=2, running=1)

    explanation = history.explain(workers=[busy, LiveWorker("w-3", ("slow",))])

    assert explanation.summary.endswith("for 0 s; all live workers that could take it are busy (1).")
    assert [action.action for action in explanation.next_actions] == ["wait", "start_worker"]
    assert "busy" not in history.explain(workers=[busy, free]).summary


def test_commands_and_those_that_were_repeated_are_told() -> None:
    history = start_history(order())
    for _ in range(2):
        history.write(signal(signal_type="cancel_run", idempotency_key="k"))
        history.write(signal(signal_type="resume_run", payload={"a": 1}))
        history.write(signal(signal_type="resume_run"))

    details = history.explain().details

    assert details["command_count"] == 7
    assert details["latest_command"]["signal_type"] == "resume_run"
    assert details["duplicate_commands"] == [
        {"signal_type": "cancel_run", "idempotency_key": "k", "count": 2},
        {"signal_type": "resume_run", "idempotency_key": None, "count": 2},
    ]


def test_an_overdue_deadline_is_told_with_any_reason() -> None:
    history = start_history(order()).advance(minutes=6)

    deadline = history.explain().details["deadline"]

    assert (deadline["state"], deadline["step"]) == ("overdue", "charge")
    assert deadline["remaining_seconds"] == -60


# --- reading it -----------------------------------------------------------------------------------------------------


def test_a_run_is_explained_from_its_journal_with_the_pause_of_its_queue() -> None:
    history = start_history(order())
    history.write(queue_paused(actor="ada"))

    explanation = history.inspection().explain_run(RUN)

    assert explanation.reason == "queue_paused"
    assert [(proof.type, proof.revision) for proof in explanation.evidence] == [
        ("attempt_scheduled", 2),
        ("queue_paused", 3),
    ]

    history.write(queue_resumed())
    explanation = history.inspection().explain_run(RUN)
    assert explanation.reason == "attempt_visible"


def test_the_pause_is_found_behind_much_other_work() -> None:
    history = start_history(order())
    history.write(queue_paused())
    for _ in range(1200):
        history.write(queued("run-2"))

    explanation = history.inspection().explain_run(RUN)

    assert "queue_paused" in [proof.type for proof in explanation.evidence]


def test_a_queue_that_was_resumed_meanwhile_is_told_without_a_fact() -> None:
    history, other = start_history(order()), start_history(order())
    other.write(queue_paused())

    for change in ((), (queue_paused(), queue_resumed())):
        history.write(*change)
        state = read_queue_state(history.storage, FoldQueries(other.storage), "default")
        assert state == QueueState("default", True)
        explanation = history.explain(queue_state=state)
        assert explanation.reason == "queue_paused"
        assert [proof.type for proof in explanation.evidence] == ["attempt_scheduled"]


def test_an_unknown_run_is_not_found() -> None:
    history = start_history(order())

    with pytest.raises(NotFound, match="there is no run 'nobody'"):
        history.inspection().explain_run("nobody")
    with pytest.raises(InvalidThread, match="run id 'no body'"):
        history.inspection().explain_run("no body")
