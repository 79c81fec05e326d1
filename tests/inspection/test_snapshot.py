"""A run as it is, and as it was: what a snapshot shows, at which time, and what it refuses."""

import json
from typing import Any

import pytest

from squid_dagster.inspection import RunSnapshot
from squid_dagster.inspection.snapshot.snapshot import snapshot
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol import RunUnit
from squid_dagster.protocol.errors import InvalidArgument, InvalidThread, NotFound
from squid_dagster.workflow.registry import Registry
from tests.facts import child, claimed, completed, indexed, planned, queued, scheduled, signal, started, t
from tests.inspection.reasons import damaged
from tests.inspection.scenes import RUN, Scene, changed_order, fan, looping, order, saga, scene


def _shown(told: Scene, at_revision: int | None = None, *, include_history: bool = False) -> RunSnapshot:
    return told.inspection().inspect_run(RUN, at_revision, include_history)


def test_a_snapshot_shows_who_and_what_the_run_is() -> None:
    told = Scene(order().freeze())
    parent = {"run_id": "parent-1", "runnable_key": "parent-1:a:1:1", "step": "a", "attempt": 1, "child_key": "k"}
    told.start(input={"order_id": "o-7"}, context={"parent": parent}, priority=5, replayed_from_run_id="run-0")
    told.write(child(child_run_id="c-2", child_key="b"), child(child_run_id="c-1", child_key="b"))

    shown = _shown(told)

    assert (shown.run_id, shown.workflow, shown.trigger, shown.queue) == (RUN, "orders", "manual", "default")
    assert (shown.definition_version, shown.definition_fingerprint) == ("1", told.definition.fingerprint)
    assert (shown.input, shown.priority, shown.replayed_from_run_id) == ({"order_id": "o-7"}, 5, "run-0")
    assert shown.parent_run == parent
    assert [each.child_run_id for each in shown.child_runs] == ["c-1", "c-2"]
    assert [(each.signal_type, each.actor) for each in shown.command_history] == [("start_run", "ada")]
    assert (shown.started_at, shown.ended_at) == (t(0), None)


def test_a_snapshot_sorts_attempts_into_what_can_be_done_about_them() -> None:
    told = scene(fan()).claim("left", lease=10).advance(seconds=20).claim("middle")

    shown = _shown(told)

    assert [each.step for each in shown.visible_attempts] == ["right"]
    assert [each.step for each in shown.expired_claims] == ["left"]
    assert [each.step for each in shown.attempts] == ["left", "middle", "right"]
    assert [each.status for each in shown.attempts] == ["claimed", "claimed", "available"]
    assert shown.attempts[1].claimed_at == t(20)
    assert shown.attempts[1].owner_id == "worker-a"
    assert shown.scheduled_attempts == ()


def test_a_snapshot_tells_when_something_happens_next() -> None:
    told = scene(order()).do("charge")

    shown = _shown(told)

    assert [each.step for each in shown.scheduled_attempts] == ["rest"]
    assert shown.next_visible_at == t(3605)
    assert (shown.status, shown.reason) == ("running", "wait_step")


def test_outputs_are_known_by_the_names_of_the_definition() -> None:
    told = scene(order()).do("charge", {"paid": 5}).advance(hours=1).do("rest").do("check", {"amount": 500})
    told.decide("approved")

    shown = _shown(told)

    assert shown.outputs == {
        "charge": {"paid": 5},
        "check": {"amount": 500},
        "review": {"decision": "approved", "actor": "grace"},
    }
    unknown = snapshot(told.case(registry=Registry()))
    assert unknown.outputs == {**shown.outputs, "rest": None}
    assert (shown.status, shown.reason, shown.terminal, shown.ended_at) == ("completed", "terminal", True, told.now)


def test_a_failed_run_shows_its_error() -> None:
    told = scene(saga()).claim("book").fail("book", error={"type": "ValueError", "message": "no room"})

    shown = _shown(told)

    assert shown.error == {"type": "ValueError", "message": "no room"}
    assert (shown.status, shown.terminal_status) == ("failed", "failed")
    assert shown.attempts[0].error == shown.error


def test_what_waits_for_recovery_is_shown() -> None:
    told = scene(order()).claim("charge")
    told.write(told.completion("charge"), planned(at=0))

    shown = _shown(told)

    assert [each.runnable_key for each in shown.pending_results] == ["run-1:charge:1:1"]
    told = Scene(order().freeze())
    told.write(started(), planned())
    assert [each.step for each in _shown(told).pending_dispatches] == ["charge"]


def test_a_dead_letter_is_a_status_until_somebody_looks() -> None:
    told = scene(saga()).do("book").do("pay").do("mail").die("ship")

    shown = _shown(told)

    assert (shown.status, shown.reason) == ("running", "dead_letter")
    assert [each.step for each in shown.dead_letters] == ["ship"]
    assert shown.dead_letters[0].error == {"code": "dead_letter", "message": "the lease ran out"}


@pytest.mark.parametrize(
    ("told", "status"),
    [
        (scene(order()), "running"),
        (scene(order()).end(), "cancelled"),
        (scene(looping()).do("poll").do("look", {"tired": True}), "paused"),
        (damaged(), "running"),
    ],
)
def test_the_status_is_one_word(told: Scene, status: str) -> None:
    assert _shown(told).status == status


def test_a_run_whose_definition_changed_is_held() -> None:
    told = scene(order())

    shown = told.inspection(changed_order().freeze(), workers=[]).inspect_run(RUN)

    assert (shown.status, shown.reason) == ("held", "held")


def test_anomalies_are_those_of_this_run_alone() -> None:
    told = scene(order())
    told.write(completed("run-2"), claimed(attempt=9), indexed())

    shown = _shown(told)

    assert [(each.reason, each.type, each.revision) for each in shown.anomalies] == [
        ("unknown_runnable_intent", "attempt_claimed", 4)
    ]


def test_an_entry_that_cannot_be_read_shows() -> None:
    shown = _shown(damaged(), include_history=True)

    assert shown.reason == "unreadable_entry"
    assert [(each.reason, each.revision) for each in shown.anomalies] == [("malformed_entry", 2)]
    assert shown.history is not None
    (bad,) = [each for each in shown.history if each["unreadable"]]
    assert (bad["type"], bad["unreadable"], bad["data"]) == ("attempt_scheduled", "step: wrong", {})


def test_a_snapshot_is_json_with_the_same_keys_always() -> None:
    told = scene(order())
    before = _shown(told).to_dict()
    told.do("charge").advance(hours=1).do("rest").do("check", {"amount": 5})

    after = _shown(told, include_history=True).to_dict()

    assert list(before) == list(after)
    assert json.loads(json.dumps(after)) == after
    assert before["visible_attempts"] == ["run-1:charge:1:1"]
    assert before["history"] is None


# --- history and earlier revisions ----------------------------------------------------------------------------------


def test_history_is_every_fact_with_its_place() -> None:
    told = scene(order()).claim("charge")
    told.write(claimed(step="charge", claim="z", at=1))

    history = _shown(told, include_history=True).history

    assert history is not None
    assert [each["type"] for each in history][-2:] == ["attempt_claimed", "attempt_claimed"]
    assert [each["refused"] for each in history][-2:] == [None, "active_claim"]
    assert history[0] == {
        "thread": "squid:run:run-1",
        "revision": 1,
        "position": history[0]["position"],
        "type": "run_signal_received",
        "occurred_at": "2026-01-01T00:00:00+00:00",
        "refused": None,
        "unreadable": None,
        "data": history[0]["data"],
    }
    assert "claim_token_hash" not in json.dumps(history)


def test_a_run_can_be_seen_at_every_revision_that_it_had() -> None:
    told = scene(order()).do("charge").advance(hours=1).do("rest").do("check", {"amount": 500}).decide("approved")
    entries = told.storage.read_run(RUN)
    own = [each for each in entries if each.thread == "squid:run:run-1"]

    for entry, following in zip(own, [*own[1:], None], strict=True):
        shown = _shown(told, entry.seq)
        upto = [each for each in entries if following is None or each.position < following.position]
        then = RunUnit.fold(upto)
        assert shown.thread_revisions["run"] == entry.seq
        assert shown.terminal_status == then.run.terminal_status
        assert {each.runnable_key: each.status for each in shown.attempts} == {
            key: attempt.status.value for key, attempt in then.dispatch.attempts.items()
        }
        assert shown.as_of == max(each.fact.occurred_at for each in upto)


def test_an_earlier_state_is_judged_by_its_own_time() -> None:
    told = scene(order()).claim("charge", lease=30)
    told.advance(days=7)

    assert _shown(told).reason == "expired_claim"
    assert _shown(told, at_revision=3).reason == "attempt_claimed"


def test_the_last_revision_is_the_whole_run() -> None:
    told = scene(order()).do("charge")

    assert _shown(told, at_revision=5) == _shown(told)


@pytest.mark.parametrize("revision", [10**30, True, "2", 1.0])
def test_a_revision_that_is_no_number_is_refused(revision: Any) -> None:
    told = scene(order())

    with pytest.raises(InvalidArgument, match="at_revision must be a whole number"):
        told.inspection().inspect_run("run-1", at_revision=revision)


@pytest.mark.parametrize("revision", [0, -1, 4, 10**18])
def test_a_revision_that_the_run_never_had_is_refused_with_the_range(revision: int) -> None:
    told = scene(order())

    with pytest.raises(InvalidArgument, match=r"has no revision .*: use a revision from 1 to 3"):
        _shown(told, revision)


def test_a_run_without_facts_of_its_own_has_no_revision() -> None:
    told = Scene(order().freeze())
    told.write(queued(), scheduled())

    assert _shown(told).status == "new"
    with pytest.raises(InvalidArgument, match="no facts of its own"):
        _shown(told, 1)


def test_an_unknown_run_is_not_found() -> None:
    told = scene(order())

    with pytest.raises(NotFound, match=r"'run-2'.*list_runs"):
        told.inspection().inspect_run("run-2")
    for wrong in ("", "a b", "x\0", None):
        with pytest.raises(InvalidThread, match=r"run.id"):
            told.inspection().inspect_run(wrong)  # type: ignore[arg-type]


def test_looking_writes_nothing() -> None:
    told = scene(order()).claim("charge")
    before: Storage = told.storage
    position = before.cut()

    _shown(told, include_history=True)
    _shown(told, at_revision=1)

    assert told.storage.cut() == position


def test_a_repeated_signal_is_a_command_too() -> None:
    told = scene(order())
    told.write(signal(signal_type="cancel_run", comment="why not", payload={"cascade": True}, at=1))

    command = _shown(told).command_history[-1]

    assert (command.revision, command.comment, command.payload) == (4, "why not", {"cascade": True})
