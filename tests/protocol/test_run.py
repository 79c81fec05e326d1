"""The run fold, one test per rule; then what must hold of any history whatever."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squid_dagster.protocol import Entry, Fact, Reason, RunProjection, run_thread
from squid_dagster.protocol.folds.run import ManualState, Quarantine
from tests.facts import (
    RUNS,
    OnThread,
    applied,
    child,
    claimed,
    entries,
    key,
    malformed,
    planned,
    quarantined,
    runnable,
    scheduled,
    signal,
    started,
    step_paused,
    step_resolved,
    t,
    terminal,
    unknown,
)
from tests.histories import histories, journals
from tests.protocol.fold_assertions import assert_parts_make_the_whole, reasons


def fold(*items: Fact | OnThread) -> RunProjection:
    return RunProjection.fold(entries(items))


def on_thread(journal: list[Entry], run: str) -> list[Entry]:
    return [entry for entry in journal if entry.thread == run_thread(run)]


# --- start and commands ---------------------------------------------------------------------------------------------


def test_a_run_without_facts_is_new() -> None:
    assert (fold().status, fold().run_id, fold().terminal) == ("new", None, False)


def test_a_receipt_alone_does_not_start_a_run() -> None:
    assert fold(signal()).status == "new"


def test_a_started_run_knows_how_it_was_started() -> None:
    fact = started(trigger="api", input={"a": 1}, priority=3, definition_version="v1")

    projection = fold(fact)

    assert (projection.status, projection.run_id, projection.start) == ("started", "run-1", fact)


def test_the_same_start_at_another_time_changes_nothing() -> None:
    projection = fold(started(at=0), started(at=9))

    assert reasons(projection) == []
    assert projection.start == started(at=0)


@pytest.mark.parametrize("other", [{"workflow": "refund"}, {"input": {"a": 2}}, {"trigger": "cron"}, {"note": "new"}])
def test_another_start_conflicts_and_the_first_stays(other: dict[str, Any]) -> None:
    projection = fold(started(), started(**other))

    assert reasons(projection) == [Reason.CONFLICTING_RUN_START]
    assert projection.start == started()


def test_commands_are_kept_in_order_even_after_the_end() -> None:
    commands = [signal(signal_type="start_run"), signal(signal_type="cancel_run", actor="ann", comment="stop")]

    projection = fold(commands[0], terminal(status="cancelled"), commands[1], commands[1])

    assert projection.command_history == [commands[0], commands[1], commands[1]]
    assert reasons(projection) == []


# --- plans and results ----------------------------------------------------------------------------------------------


def test_a_planned_run_is_running_until_every_visit_is_applied() -> None:
    plan: list[Fact] = [started(), planned(runnable(), runnable(step="ship"))]

    assert fold(*plan).status == "running"
    assert fold(*plan, applied()).status == "running"
    assert fold(*plan, applied(), applied(step="ship")).status == "idle"


def test_a_retry_is_no_visit_of_its_own() -> None:
    plan: list[Fact] = [started(), planned(), planned(runnable(attempt=2))]

    assert fold(*plan).status == "running"
    assert fold(*plan, applied(attempt=2)).status == "idle"


def test_another_visit_of_the_step_is_one_more_to_apply() -> None:
    plan: list[Fact] = [started(), planned(), applied(), planned(runnable(visit=2))]

    assert fold(*plan).status == "running"
    assert fold(*plan, applied(visit=2)).status == "idle"


def test_planning_the_same_again_changes_nothing() -> None:
    projection = fold(planned(), planned(runnable(), runnable(step="ship"), at=9))

    assert reasons(projection) == []
    assert list(projection.planned) == [key(), key(step="ship")]
    assert projection.planned_visits == 2


@pytest.mark.parametrize(
    "other",
    [
        {"idempotency_key": "x"},
        {"attempt_number": 2},
        {"queue": "slow"},
        {"input": {"amount": 6}},
        {"visible_at": t(1)},
    ],
)
def test_another_plan_under_the_same_key_conflicts_and_the_first_stays(other: dict[str, Any]) -> None:
    projection = fold(planned(), planned(runnable(**other), runnable(step="ship")))

    assert [(a.reason, a.subject) for a in projection.anomalies] == [(Reason.CONFLICTING_RUNNABLE_INTENT, key())]
    assert projection.planned[key()].runnable == runnable()
    assert key(step="ship") in projection.planned


def test_two_plans_under_one_key_in_one_fact_conflict_too() -> None:
    assert reasons(fold(planned(runnable(), runnable(input={})))) == [Reason.CONFLICTING_RUNNABLE_INTENT]


def test_a_result_for_what_was_never_planned_is_refused() -> None:
    projection = fold(started(), applied())

    assert reasons(projection) == [Reason.UNKNOWN_RUNNABLE_INTENT]
    assert projection.applied == {}


def test_a_result_becomes_part_of_the_run() -> None:
    fact = applied(result={"paid": 5}, transition={"to": "ship"})

    assert fold(planned(), fact).applied[key()].fact == fact


def test_applying_the_same_result_again_changes_nothing() -> None:
    projection = fold(planned(), applied(result={"a": 1, "b": 2}), applied(at=99, result={"b": 2, "a": 1}))

    assert reasons(projection) == []
    assert projection.applied_visits == 1


@pytest.mark.parametrize("other", [{"result": 2}, {"transition": {"to": "ship"}}])
def test_another_result_conflicts_and_the_first_stays(other: dict[str, Any]) -> None:
    projection = fold(planned(), applied(), applied(at=41, **other))

    assert reasons(projection) == [Reason.CONFLICTING_RESULT]
    assert projection.applied[key()].fact == applied()


# --- children -------------------------------------------------------------------------------------------------------


def test_a_child_is_linked_once() -> None:
    other_origin = child(at=25, origin={"runnable_key": "k", "step": "s", "attempt": 2})

    projection = fold(child(), other_origin, child(child_run_id="child-2"))

    assert reasons(projection) == []
    assert {name: link.fact for name, link in projection.children.items()} == {
        "child-1": child(),
        "child-2": child(child_run_id="child-2"),
    }


@pytest.mark.parametrize(
    "other", [{"child_workflow": "w"}, {"child_trigger": "t"}, {"child_key": "k"}, {"metadata": {"a": 1}}]
)
def test_another_link_to_the_same_child_conflicts_and_the_first_stays(other: dict[str, Any]) -> None:
    projection = fold(child(), child(**other))

    assert [(a.reason, a.subject) for a in projection.anomalies] == [(Reason.CONFLICTING_CHILD_RUN, "child-1")]
    assert projection.children["child-1"].fact == child()


# --- manual steps ---------------------------------------------------------------------------------------------------


def test_a_manual_step_pauses_the_run_until_it_is_resolved() -> None:
    pause, answer = step_paused(at=20, metadata={"who": "ann"}), step_resolved(result={"note": "fine"})

    waiting, resolved = fold(started(), pause), fold(started(), pause, answer)

    assert waiting.status == "paused"
    assert waiting.manual_state == ManualState("review", "approval", t(20), {"who": "ann"})
    assert (resolved.status, resolved.manual_state, resolved.resolutions) == ("started", None, [answer])


def test_the_time_of_a_pause_is_the_one_that_the_fact_names() -> None:
    state = fold(step_paused(at=20, paused_at=t(15))).manual_state

    assert state is not None
    assert state.paused_at == t(15)


def test_the_same_pause_again_changes_nothing() -> None:
    assert reasons(fold(step_paused(), step_paused())) == []


@pytest.mark.parametrize("other", [{"step": "check"}, {"kind": "pause"}, {"at": 21}, {"metadata": {"a": 1}}])
def test_a_run_waits_for_one_decision_at_a_time(other: dict[str, Any]) -> None:
    projection = fold(step_paused(), step_paused(**other))

    assert reasons(projection) == [Reason.ACTIVE_MANUAL_STEP]
    assert projection.manual_state == fold(step_paused()).manual_state


@pytest.mark.parametrize(
    "before",
    [
        pytest.param([], id="nothing waits"),
        pytest.param([step_paused(step="check")], id="another step waits"),
        pytest.param([step_paused(kind="pause")], id="the action does not fit"),
        pytest.param([step_paused(), step_resolved(at=25)], id="resolved already"),
    ],
)
def test_a_resolution_that_fits_nothing_is_stale(before: list[Fact]) -> None:
    projection = fold(*before, step_resolved())

    assert [(a.reason, a.subject) for a in projection.anomalies] == [(Reason.STALE_MANUAL_RESOLUTION, "review")]
    assert projection.manual_state == fold(*before).manual_state


@pytest.mark.parametrize(("kind", "action"), [("pause", "resumed"), ("approval", "approved"), ("approval", "rejected")])
def test_each_kind_of_manual_step_has_its_own_actions(kind: str, action: str) -> None:
    projection = fold(step_paused(kind=kind), step_resolved(action=action))

    assert (reasons(projection), projection.manual_state) == ([], None)


@pytest.mark.parametrize(("kind", "action"), [("pause", "approved"), ("pause", "rejected"), ("approval", "resumed")])
def test_an_action_for_the_other_kind_is_stale(kind: str, action: str) -> None:
    assert reasons(fold(step_paused(kind=kind), step_resolved(action=action))) == [Reason.STALE_MANUAL_RESOLUTION]


def test_a_resolved_step_may_pause_again() -> None:
    projection = fold(step_paused(at=20), step_resolved(at=30), step_paused(at=40))

    assert (projection.status, reasons(projection)) == ("paused", [])


# --- the end and quarantine -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_a_terminal_fact_ends_the_run(status: str) -> None:
    projection = fold(started(), planned(), step_paused(), terminal(at=50, status=status, error={"message": "no"}))

    assert (projection.status, projection.terminal, projection.ended_at) == (status, True, t(50))
    assert (projection.terminal_error, projection.manual_state) == ({"message": "no"}, None)


def test_the_same_end_again_changes_nothing() -> None:
    projection = fold(terminal(at=50), terminal(at=60))

    assert (reasons(projection), projection.ended_at) == ([], t(50))


@pytest.mark.parametrize("other", [{"status": "failed"}, {"error": {"message": "no"}}])
def test_a_run_ends_once(other: dict[str, Any]) -> None:
    projection = fold(terminal(), terminal(at=60, **other))

    assert reasons(projection) == [Reason.TERMINAL_RUN]
    assert (projection.status, projection.terminal_error) == ("completed", None)


def test_an_ended_run_refuses_everything_but_receipts() -> None:
    before: list[Fact] = [started(), planned(), step_paused(), terminal()]
    late: list[Fact] = [
        started(),
        planned(runnable(step="ship")),
        applied(),
        child(),
        step_paused(),
        step_resolved(),
        quarantined(),
    ]

    projection = fold(*before, *late)

    assert reasons(projection) == [Reason.TERMINAL_RUN] * len(late)
    projection.anomalies.clear()
    assert projection == fold(*before)


def test_the_first_unreadable_entry_says_why_a_run_is_quarantined() -> None:
    projection = fold(started(), planned(), step_paused(), quarantined(reason="bad"), quarantined(reason="worse"))

    assert projection.status == "quarantined"
    assert projection.quarantine == Quarantine("squid:dispatch:default", 1, "bad")
    assert reasons(projection) == []


def test_a_quarantined_run_can_still_be_ended() -> None:
    assert fold(started(), quarantined(), terminal(status="cancelled")).status == "cancelled"


# --- unreadable entries and entries of other threads ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        (unknown(run_thread("run-1")), Reason.UNKNOWN_FACT_TYPE),
        (malformed(run_thread("run-1"), type_name="run_terminal"), Reason.MALFORMED_ENTRY),
    ],
)
def test_an_unreadable_entry_is_an_anomaly_with_thread_and_sequence(lost: OnThread, reason: Reason) -> None:
    projection = fold(started(), lost)

    [anomaly] = projection.anomalies
    assert (anomaly.reason, anomaly.run_id, anomaly.thread, anomaly.seq) == (reason, "run-1", run_thread("run-1"), 2)
    assert (anomaly.entry_type, projection.status) == (lost.fact.type, "started")


def test_a_fact_of_another_run_is_refused() -> None:
    projection = fold(started(), started("run-2"), terminal("run-2"), signal("run-2"))

    assert reasons(projection) == [Reason.WRONG_RUN] * 3
    assert (projection.run_id, projection.status, projection.command_history) == ("run-1", "started", [])


def test_facts_of_other_threads_mean_nothing_to_the_run_fold() -> None:
    assert fold(started(), scheduled(), claimed(), malformed(), unknown()) == fold(started())


def test_an_anomaly_never_takes_an_unknown_field_for_its_subject() -> None:
    projection = fold(terminal(), terminal(status="failed", step={"a": 1}), terminal(status="failed", child_run_id=[]))

    assert [anomaly.subject for anomaly in projection.anomalies] == [None, None]


# --- what must hold of any history ----------------------------------------------------------------------------------


@settings(max_examples=100)
@given(journals())
def test_any_journal_folds_and_every_anomaly_names_its_entry(journal: list[Entry]) -> None:
    places = {(entry.thread, entry.seq, entry.position) for entry in journal}

    for anomaly in RunProjection.fold(journal).anomalies:
        assert (anomaly.thread, anomaly.seq, anomaly.position) in places
        assert anomaly.subject is None or isinstance(anomaly.subject, str)


@settings(max_examples=60)
@given(journals(), st.sampled_from(RUNS[:2]), st.data())
def test_folding_in_two_parts_equals_folding_at_once_and_leaves_the_first_part_alone(
    journal: list[Entry], run: str, data: st.DataObject
) -> None:
    thread = on_thread(journal, run)
    assert_parts_make_the_whole(RunProjection, thread, data.draw(st.integers(0, len(thread))))


@settings(max_examples=60)
@given(histories())
def test_an_ended_run_never_changes_but_for_receipts_and_anomalies(history: list[Fact]) -> None:
    for run in RUNS[:2]:
        projection, end = RunProjection(), None
        for entry in on_thread(entries(history), run):
            projection = RunProjection.fold([entry], onto=projection)
            bare = projection.copy()
            bare.anomalies, bare.command_history = [], []
            if projection.terminal:
                end = end or bare
                assert bare == end
