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
from tests.inspection.reason_histories import damaged
from tests.inspection.run_histories import RUN, RunHistory, changed_order, fan, looping, order, saga, start_history


def _shown(history: RunHistory, at_revision: int | None = None, *, include_history: bool = False) -> RunSnapshot:
    return history.inspection().inspect_run(RUN, at_revision, include_history)


def test_a_snapshot_shows_who_and_what_the_run_is() -> None:
    history = RunHistory(order().freeze())
    parent = {"run_id": "parent-1", "runnable_key": "parent-1:a:1:1", "step": "a", "attempt": 1, "child_key": "k"}
    history.start(input={"order_id": "o-7"}, context={"parent": parent}, priority=5, replayed_from_run_id="run-0")
    history.write(child(child_run_id="c-2", child_key="b"), child(child_run_id="c-1", child_key="b"))

    shown = _shown(history)

    assert (shown.run_id, shown.workflow, shown.trigger, shown.queue) == (RUN, "orders", "manual", "default")
    assert (shown.definition_version, shown.definition_fingerprint) == ("1", history.definition.fingerprint)
    assert (shown.input, shown.priority, shown.replayed_from_run_id) == ({"order_id": "o-7"}, 5, "run-0")
    assert shown.parent_run == parent
    assert [child.child_run_id for child in shown.child_runs] == ["c-1", "c-2"]
    assert [(command.signal_type, command.actor) for command in shown.command_history] == [("start_run", "ada")]
    assert (shown.started_at, shown.ended_at) == (t(0), None)


def test_a_snapshot_sorts_attempts_into_what_can_be_done_about_them() -> None:
    history = start_history(fan()).claim("left", lease=10).advance(seconds=20).claim("middle")

    shown = _shown(history)

    assert [attempt.step for attempt in shown.visible_attempts] == ["right"]
    assert [attempt.step for attempt in shown.expired_claims] == ["left"]
    assert [attempt.step for attempt in shown.attempts] == ["left", "middle", "right"]
    assert [attempt.status for attempt in shown.attempts] == ["claimed", "claimed", "available"]
    assert shown.attempts[1].claimed_at == t(20)
    assert shown.attempts[1].owner_id == "worker-a"
    assert shown.scheduled_attempts == ()


def test_a_snapshot_tells_when_something_happens_next() -> None:
    history = start_history(order()).do("charge")

    shown = _shown(history)

    assert [attempt.step for attempt in shown.scheduled_attempts] == ["rest"]
    assert shown.next_visible_at == t(3605)
    assert (shown.status, shown.reason) == ("running", "wait_step")


def test_outputs_are_known_by_the_names_of_the_definition() -> None:
    history = start_history(order()).do("charge", {"paid": 5}).advance(hours=1).do("rest").do("check", {"amount": 500})
    history.decide("approved")

    shown = _shown(history)

    assert shown.outputs == {
        "charge": {"paid": 5},
        "check": {"amount": 500},
        "review": {"decision": "approved", "actor": "grace"},
    }
    unknown = snapshot(history.case(registry=Registry()))
    assert unknown.outputs == {**shown.outputs, "rest": None}
    assert (shown.status, shown.reason, shown.terminal, shown.ended_at) == ("completed", "terminal", True, history.now)


def test_a_failed_run_shows_its_error() -> None:
    history = start_history(saga()).claim("book").fail("book", error={"type": "ValueError", "message": "no room"})

    shown = _shown(history)

    assert shown.error == {"type": "ValueError", "message": "no room"}
    assert (shown.status, shown.terminal_status) == ("failed", "failed")
    assert shown.attempts[0].error == shown.error


def test_what_waits_for_recovery_is_shown() -> None:
    history = start_history(order()).claim("charge")
    history.write(history.completion("charge"), planned(at=0))

    shown = _shown(history)

    assert [attempt.runnable_key for attempt in shown.pending_results] == ["run-1:charge:1:1"]
    history = RunHistory(order().freeze())
    history.write(started(), planned())
    assert [runnable.step for runnable in _shown(history).pending_dispatches] == ["charge"]


def test_a_dead_letter_is_a_status_until_somebody_looks() -> None:
    history = start_history(saga()).do("book").do("pay").do("mail").die("ship")

    shown = _shown(history)

    assert (shown.status, shown.reason) == ("running", "dead_letter")
    assert [attempt.step for attempt in shown.dead_letters] == ["ship"]
    assert shown.dead_letters[0].error == {"code": "dead_letter", "message": "the lease ran out"}


@pytest.mark.parametrize(
    ("history", "status"),
    [
        (start_history(order()), "running"),
        (start_history(order()).end(), "cancelled"),
        (start_history(looping()).do("poll").do("look", {"tired": True}), "paused"),
        (damaged(), "running"),
    ],
)
def test_the_status_is_one_word(history: RunHistory, status: str) -> None:
    assert _shown(history).status == status


def test_a_run_whose_definition_changed_is_held() -> None:
    history = start_history(order())

    shown = history.inspection(changed_order().freeze(), workers=[]).inspect_run(RUN)

    assert (shown.status, shown.reason) == ("held", "held")


def test_anomalies_are_those_of_this_run_alone() -> None:
    history = start_history(order())
    history.write(completed("run-2"), claimed(attempt=9), indexed())

    shown = _shown(history)

    assert [(anomaly.reason, anomaly.type, anomaly.revision) for anomaly in shown.anomalies] == [
        ("unknown_runnable_intent", "attempt_claimed", 4)
    ]


def test_an_entry_that_cannot_be_read_shows() -> None:
    shown = _shown(damaged(), include_history=True)

    assert shown.reason == "unreadable_entry"
    assert [(anomaly.reason, anomaly.revision) for anomaly in shown.anomalies] == [("malformed_entry", 2)]
    assert shown.history is not None
    (bad,) = [entry for entry in shown.history if entry["unreadable"]]
    assert (bad["type"], bad["unreadable"], bad["data"]) == ("attempt_scheduled", "step: wrong", {})


def test_a_snapshot_is_json_with_the_same_keys_always() -> None:
    history = start_history(order())
    before = _shown(history).to_dict()
    history.do("charge").advance(hours=1).do("rest").do("check", {"amount": 5})

    after = _shown(history, include_history=True).to_dict()

    assert list(before) == list(after)
    assert json.loads(json.dumps(after)) == after
    assert before["visible_attempts"] == ["run-1:charge:1:1"]
    assert before["history"] is None


# --- history and earlier revisions ----------------------------------------------------------------------------------


def test_history_is_every_fact_with_its_place() -> None:
    history = start_history(order()).claim("charge")
    history.write(claimed(step="charge", claim="z", at=1))

    entries = _shown(history, include_history=True).history

    assert entries is not None
    assert [entry["type"] for entry in entries][-2:] == ["attempt_claimed", "attempt_claimed"]
    assert [entry["refused"] for entry in entries][-2:] == [None, "active_claim"]
    assert entries[0] == {
        "thread": "squid:run:run-1",
        "revision": 1,
        "position": entries[0]["position"],
        "type": "run_signal_received",
        "occurred_at": "2026-01-01T00:00:00+00:00",
        "refused": None,
        "unreadable": None,
        "data": entries[0]["data"],
    }
    assert "claim_token_hash" not in json.dumps(entries)


def test_a_run_can_be_seen_at_every_revision_that_it_had() -> None:
    history = (
        start_history(order()).do("charge").advance(hours=1).do("rest").do("check", {"amount": 500}).decide("approved")
    )
    entries = history.storage.read_run(RUN)
    own = [entry for entry in entries if entry.thread == "squid:run:run-1"]

    for entry, following in zip(own, [*own[1:], None], strict=True):
        shown = _shown(history, entry.seq)
        upto = [entry for entry in entries if following is None or entry.position < following.position]
        then = RunUnit.fold(upto)
        assert shown.thread_revisions["run"] == entry.seq
        assert shown.terminal_status == then.run.terminal_status
        assert {attempt.runnable_key: attempt.status for attempt in shown.attempts} == {
            key: attempt.status.value for key, attempt in then.dispatch.attempts.items()
        }
        assert shown.as_of == max(entry.fact.occurred_at for entry in upto)


def test_an_earlier_state_is_judged_by_its_own_time() -> None:
    history = start_history(order()).claim("charge", lease=30)
    history.advance(days=7)

    assert _shown(history).reason == "expired_claim"
    assert _shown(history, at_revision=3).reason == "attempt_claimed"


def test_the_last_revision_is_the_whole_run() -> None:
    history = start_history(order()).do("charge")

    assert _shown(history, at_revision=5) == _shown(history)


@pytest.mark.parametrize("revision", [10**30, True, "2", 1.0])
def test_a_revision_that_is_no_number_is_refused(revision: Any) -> None:
    history = start_history(order())

    with pytest.raises(InvalidArgument, match="at_revision must be a whole number"):
        history.inspection().inspect_run("run-1", at_revision=revision)


@pytest.mark.parametrize("revision", [0, -1, 4, 10**18])
def test_a_revision_that_the_run_never_had_is_refused_with_the_range(revision: int) -> None:
    history = start_history(order())

    with pytest.raises(InvalidArgument, match=r"has no revision .*: use a revision from 1 to 3"):
        _shown(history, revision)


def test_a_run_without_facts_of_its_own_has_no_revision() -> None:
    history = RunHistory(order().freeze())
    history.write(queued(), scheduled())

    assert _shown(history).status == "new"
    with pytest.raises(InvalidArgument, match="no facts of its own"):
        _shown(history, 1)


def test_an_unknown_run_is_not_found() -> None:
    history = start_history(order())

    with pytest.raises(NotFound, match=r"'run-2'.*list_runs"):
        history.inspection().inspect_run("run-2")
    for wrong in ("", "a b", "x\0", None):
        with pytest.raises(InvalidThread, match=r"run.id"):
            history.inspection().inspect_run(wrong)  # type: ignore[arg-type]


def test_looking_writes_nothing() -> None:
    history = start_history(order()).claim("charge")
    before: Storage = history.storage
    position = before.cut()

    _shown(history, include_history=True)
    _shown(history, at_revision=1)

    assert history.storage.cut() == position


def test_a_repeated_signal_is_a_command_too() -> None:
    history = start_history(order())
    history.write(signal(signal_type="cancel_run", comment="why not", payload={"cascade": True}, at=1))

    command = _shown(history).command_history[-1]

    assert (command.revision, command.comment, command.payload) == (4, "why not", {"cascade": True})
