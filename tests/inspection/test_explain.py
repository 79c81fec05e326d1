"""What explanations say beyond their reason: of definitions, workers, queues, commands and deadlines."""

import pytest

from squid_dagster.inspection import QueueState, RunReason
from squid_dagster.inspection.queue_state import read_queue_state
from squid_dagster.journal.fold_store.queries import FoldQueries
from squid_dagster.protocol.errors import InvalidThread, NotFound
from squid_dagster.workflow.registry import Registry
from tests.facts import fenced, queue_paused, queue_resumed, queued, signal, terminal
from tests.inspection.reasons import STORIES
from tests.inspection.scenes import RUN, Somebody, changed_order, fan, looping, order, saga, scene


def test_a_held_run_names_both_definitions() -> None:
    told, known = STORIES[RunReason.HELD]()

    found = told.explain(**known)

    assert found.status == "held"
    assert found.details["kind"] == "definition_changed"
    assert (found.details["persisted_version"], found.details["current_version"]) == ("1", "2")
    assert found.details["persisted_fingerprint"] == told.definition.fingerprint
    assert found.details["current_fingerprint"] == changed_order().freeze().fingerprint
    assert told.definition.fingerprint[:12] in found.summary
    assert [each.type for each in found.evidence] == ["run_started"]
    assert [each.action for each in found.next_actions] == ["register_definition", "cancel"]


def test_a_run_goes_on_when_its_version_is_registered_beside_the_new_one() -> None:
    told = scene(order())

    found = told.explain(registry=Registry([told.definition, changed_order().freeze()]))

    assert (found.status, found.reason) == ("running", "attempt_visible")


def test_a_live_worker_that_has_the_definition_means_that_nothing_is_held() -> None:
    told = scene(order())

    found = told.explain(
        registry=Registry([changed_order().freeze()]), workers=[Somebody("old", definitions=(told.definition.key,))]
    )

    assert (found.status, found.reason) == ("running", "attempt_visible")


def test_a_workflow_that_is_unknown_here_says_nothing_unless_it_is_known_who_else_works() -> None:
    told = scene(order())

    assert told.explain(registry=Registry([fan().freeze()])).reason == "attempt_visible"

    found = told.explain(registry=Registry([fan().freeze()]), workers=[])
    assert (found.reason, found.details["kind"]) == ("held", "definition_missing")
    assert "no live worker announces it" in found.summary


def test_a_paused_run_whose_definition_is_gone_says_that_a_decision_would_be_refused() -> None:
    told, _ = STORIES[RunReason.MANUAL_INTERVENTION_REQUIRED]()

    found = told.explain(registry=Registry([changed_order().freeze()]))

    assert (found.status, found.reason) == ("paused", "manual_intervention_required")
    assert "refused" in found.summary
    assert found.details["held"]["kind"] == "definition_changed"
    assert [each.action for each in found.next_actions] == ["register_definition", "approve", "reject", "cancel"]


def test_a_pause_is_resumed_and_an_approval_decided() -> None:
    told = scene(looping()).do("poll").do("look", {"tired": True})

    found = told.explain()

    assert [each.action for each in found.next_actions] == ["resume", "cancel"]
    assert found.summary.startswith("The run stands still at 'breathe' since")


def test_a_failed_run_says_in_which_step_and_why() -> None:
    told = scene(order()).claim("charge").fail("charge").do("mend")

    found = told.explain()

    assert found.summary.startswith("The run failed in step 'mend' at 2026-01-01T00:00:05Z: routed_to_fail:")
    assert [each.type for each in found.evidence] == ["runnable_applied", "run_terminal"]
    assert [each.call for each in found.next_actions] == ["squid.replay('run-1')"]


def test_a_replay_after_irreversible_steps_is_offered_with_a_warning() -> None:
    told = scene(saga()).do("book").do("pay").do("mail").claim("ship").fail("ship")
    told.do("compensate:pay").do("compensate:book")

    (replay,) = told.explain().next_actions

    assert replay.call == "squid.replay('run-1', allow_irreversible=True)"
    assert replay.note is not None
    assert "mail" in replay.note


def test_a_cancelled_run_says_by_whom() -> None:
    told = scene(order()).end(comment="wrong order")

    found = told.explain()

    assert found.summary == "The run was cancelled at 2026-01-01T00:00:00Z by grace: wrong order."
    assert [each.type for each in found.evidence] == ["run_signal_received", "run_terminal"]


def test_an_end_whose_queue_was_never_told_can_be_recovered() -> None:
    told = scene(order())
    told.write(terminal(status="cancelled", at=0))

    found = told.explain()

    assert found.details["unfenced"] is True
    assert found.next_actions[-1].action == "recover"
    told.write(fenced())
    assert "unfenced" not in told.explain().details


def test_a_dead_letter_can_be_retried_by_its_key() -> None:
    told, known = STORIES[RunReason.DEAD_LETTER]()

    found = told.explain(**known)

    assert (found.status, found.reason) == ("running", "dead_letter")
    assert found.next_actions[0].call == "squid.retry_attempt('run-1', 'run-1:ship:1:1')"
    assert [each.type for each in found.evidence] == ["attempt_claimed", "attempt_dead_lettered"]


def test_a_dead_letter_with_an_error_route_only_waits_to_be_taken_up() -> None:
    told = scene(order()).die("charge")

    found = told.explain()

    assert (found.status, found.reason) == ("running", "failure_pending_apply")
    assert found.next_actions[0].call == "squid.recover()"


def test_an_expired_claim_that_was_the_last_delivery_says_what_comes_next() -> None:
    told = scene(saga()).do("book").do("pay").do("mail")
    told.claim("ship", lease=10).advance(seconds=11).claim("ship", lease=10).advance(seconds=11)

    assert "becomes a dead letter" in told.explain().summary


def test_an_expired_claim_on_a_paused_queue_is_explained_by_the_pause() -> None:
    told = scene(order()).claim("charge", lease=30).advance(seconds=40)

    assert told.explain(queue_state=QueueState("default", True)).reason == "queue_paused"
    assert told.explain(queue_state=QueueState("default", False)).reason == "expired_claim"
    assert told.explain(queue_state=QueueState("slow", True)).reason == "expired_claim"


def test_a_claimed_attempt_goes_on_although_its_queue_is_paused() -> None:
    told = scene(order()).claim("charge")

    assert told.explain(queue_state=QueueState("default", True)).reason == "attempt_claimed"


def test_a_lease_is_proved_by_the_heartbeat_that_extended_it() -> None:
    told, known = STORIES[RunReason.ATTEMPT_CLAIMED]()

    assert [each.type for each in told.explain(**known).evidence] == ["attempt_claimed", "attempt_heartbeat"]

    told.advance(minutes=2).claim("charge", owner="worker-b")
    assert [each.type for each in told.explain().evidence] == ["attempt_claimed"]


def test_the_workers_that_could_take_it_are_named() -> None:
    told = scene(order())
    workers = [Somebody("w-2"), Somebody("w-1", definitions=(told.definition.key,)), Somebody("w-3", ("slow",))]

    assert told.explain(workers=workers).details["workers"] == ["w-1", "w-2"]
    assert "workers" not in told.explain().details


def test_siblings_at_work_are_told_beside_the_one_that_waits() -> None:
    told = scene(fan()).claim("left")

    found = told.explain()

    assert found.reason == "attempt_visible"
    assert found.details["runnable_keys"] == ["run-1:middle:1:1", "run-1:right:1:1"]
    assert "other attempts of the run are being worked on (1)" in found.summary


def test_workers_that_are_all_busy_are_told() -> None:
    told = scene(order())
    busy, free = Somebody("w-1", capacity=2, running=2), Somebody("w-2", capacity=2, running=1)

    found = told.explain(workers=[busy, Somebody("w-3", ("slow",))])

    assert found.summary.endswith("for 0 s; all live workers that could take it are busy (1).")
    assert [each.action for each in found.next_actions] == ["wait", "start_worker"]
    assert "busy" not in told.explain(workers=[busy, free]).summary


def test_commands_and_those_that_were_repeated_are_told() -> None:
    told = scene(order())
    for _ in range(2):
        told.write(signal(signal_type="cancel_run", idempotency_key="k"))
        told.write(signal(signal_type="resume_run", payload={"a": 1}))
        told.write(signal(signal_type="resume_run"))

    details = told.explain().details

    assert details["command_count"] == 7
    assert details["latest_command"]["signal_type"] == "resume_run"
    assert details["duplicate_commands"] == [
        {"signal_type": "cancel_run", "idempotency_key": "k", "count": 2},
        {"signal_type": "resume_run", "idempotency_key": None, "count": 2},
    ]


def test_an_overdue_deadline_is_told_with_any_reason() -> None:
    told = scene(order()).advance(minutes=6)

    deadline = told.explain().details["deadline"]

    assert (deadline["state"], deadline["step"]) == ("overdue", "charge")
    assert deadline["remaining_seconds"] == -60


# --- reading it -----------------------------------------------------------------------------------------------------


def test_a_run_is_explained_from_its_journal_with_the_pause_of_its_queue() -> None:
    told = scene(order())
    told.write(queue_paused(actor="ada"))

    found = told.inspection().explain_run(RUN)

    assert found.reason == "queue_paused"
    assert [(each.type, each.revision) for each in found.evidence] == [("attempt_scheduled", 2), ("queue_paused", 3)]

    told.write(queue_resumed())
    found = told.inspection().explain_run(RUN)
    assert found.reason == "attempt_visible"


def test_the_pause_is_found_behind_much_other_work() -> None:
    told = scene(order())
    told.write(queue_paused())
    for _ in range(1200):
        told.write(queued("run-2"))

    found = told.inspection().explain_run(RUN)

    assert "queue_paused" in [each.type for each in found.evidence]


def test_a_queue_that_was_resumed_meanwhile_is_told_without_a_fact() -> None:
    told, other = scene(order()), scene(order())
    other.write(queue_paused())

    for change in ((), (queue_paused(), queue_resumed())):
        told.write(*change)
        state = read_queue_state(told.storage, FoldQueries(other.storage), "default")
        assert state == QueueState("default", True)
        found = told.explain(queue_state=state)
        assert found.reason == "queue_paused"
        assert [each.type for each in found.evidence] == ["attempt_scheduled"]


def test_an_unknown_run_is_not_found() -> None:
    told = scene(order())

    with pytest.raises(NotFound, match="there is no run 'nobody'"):
        told.inspection().explain_run("nobody")
    with pytest.raises(InvalidThread, match="run id 'no body'"):
        told.inspection().explain_run("no body")
