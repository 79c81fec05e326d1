"""The planner's state of a run, one test per rule; then that it equals the whole run, or is not plain."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squid_dagster.protocol import Entry, Fact, run_thread
from squid_dagster.protocol.folds.launches import Launch
from squid_dagster.protocol.folds.plan_state import PlanState, StepState
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.visits import COMPENSATE
from tests.facts import (
    RUN,
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
from tests.histories import journals, plausible_histories
from tests.plan_states import assert_same_state

VISIT = f"{RUN}:charge:1"
OK: dict[str, Any] = {"transition": {"from": "charge", "on": "ok", "to": "ship"}}
ERROR: dict[str, Any] = {"transition": {"from": "charge", "on": "error", "to": "fail", "error": {"code": "no"}}}


def fold(*items: Fact | OnThread) -> PlanState:
    """Fold a run's thread, and compare it with the whole run wherever it is plain."""
    state, run = PlanState(), RunProjection()
    for entry in entries(items):
        state.add(entry)
        run = RunProjection.fold([entry], onto=run)
        if state.plain:
            assert_same_state(state, run)
    return state


def undo(visit: int = 1, **fields: Any) -> Fact:
    """Plan the compensation of a visit."""
    return planned(runnable(step=f"{COMPENSATE}charge", visit=visit, **fields))


# --- visits ---------------------------------------------------------------------------------------------------------


def test_a_run_without_facts_knows_nothing() -> None:
    state = fold()
    assert (state.status, state.plain, state.steps, state.facts) == ("new", True, {}, 0)


def test_a_started_run_knows_its_start() -> None:
    fact = started(input={"a": 1})
    assert fold(fact).start == fact


def test_a_planned_visit_is_open_and_was_entered_once() -> None:
    state = fold(started(), planned())
    assert set(state.planned) == {key()}
    assert state.open == {VISIT: 1}
    assert state.steps == {"charge": StepState(visits=1)}
    assert not state.is_closed(key(), VISIT, "charge")
    assert (state.status, state.is_done("charge")) == ("running", False)


def test_an_applied_visit_leaves_its_output_and_nothing_else() -> None:
    state = fold(started(), planned(), applied(result={"id": 1}, **OK))
    assert (state.planned, state.open) == ({}, {})
    assert state.steps["charge"] == StepState(visits=1, applied=1, output={"id": 1}, has_output=True)
    assert state.is_closed(key(), VISIT, "charge")
    assert (state.done, state.applied_visits, state.status) == (1, 1, "idle")


def test_a_loop_keeps_the_latest_output_and_one_record() -> None:
    facts: list[Fact] = [started()]
    for visit in range(1, 6):
        facts += [planned(runnable(visit=visit)), applied(visit=visit, result=visit, **OK)]
    state = fold(*facts)
    assert state.steps == {"charge": StepState(visits=5, applied=5, output=5, has_output=True)}
    assert (state.done, state.planned_visits, state.applied_visits) == (1, 5, 5)
    assert all(state.is_closed(key(visit=visit), f"{RUN}:charge:{visit}", "charge") for visit in range(1, 6))
    assert not state.is_closed(key(visit=6), f"{RUN}:charge:6", "charge")


def test_a_retry_is_another_attempt_at_the_same_visit_and_closes_all_of_them() -> None:
    state = fold(started(), planned(), planned(runnable(attempt=2)))
    assert state.open == {VISIT: 2}
    assert (state.visits("charge"), state.planned_visits) == (1, 1)
    closed = fold(started(), planned(), planned(runnable(attempt=2)), applied(attempt=2))
    assert (closed.planned, closed.open, closed.applied_visits) == ({}, {}, 1)
    assert closed.is_closed(key(), VISIT, "charge")


def test_a_failure_is_an_outcome_without_an_output() -> None:
    state = fold(started(), planned(), applied(result=None, **ERROR))
    assert state.steps["charge"] == StepState(visits=1, applied=1, output=None)
    assert state.failure == {"code": "no"}
    assert (state.to_undo, state.is_done("charge")) == ({}, True)


def test_a_failure_after_a_success_keeps_the_earlier_output() -> None:
    again: list[Fact] = [planned(runnable(visit=2)), applied(visit=2, result=None, **ERROR)]
    state = fold(started(), planned(), applied(result=1, **OK), *again)
    assert state.steps["charge"] == StepState(visits=2, applied=2, output=1, has_output=True)


def test_the_first_failure_is_the_one_that_the_run_fails_with() -> None:
    other: dict[str, Any] = {"transition": {**ERROR["transition"], "error": {"code": "other"}}}
    both: list[Fact] = [planned(runnable(), runnable(step="ship"))]
    assert fold(*both, applied(**ERROR), applied(step="ship", **other)).failure == {"code": "no"}


# --- compensations --------------------------------------------------------------------------------------------------


def test_what_succeeded_is_to_be_undone_newest_last() -> None:
    facts: list[Fact] = [planned(runnable(), runnable(step="ship"))]
    state = fold(*facts, applied(step="ship", result="s", **OK), applied(result="c", **OK))
    assert list(state.to_undo.items()) == [(("ship", 1), "s"), (("charge", 1), "c")]


def test_what_declares_no_compensation_is_not_kept_for_one() -> None:
    plain = planned(runnable(recovery={"compensated": False}))
    assert fold(plain, applied(result=1, **OK)).to_undo == {}
    assert set(fold(planned(runnable(recovery={"compensated": True})), applied(result=1, **OK)).to_undo) == {
        ("charge", 1)
    }


def test_a_planned_compensation_is_not_to_be_undone_any_more() -> None:
    state = fold(planned(), applied(**OK), undo())
    assert state.to_undo == {}
    assert state.open == {f"{RUN}:{COMPENSATE}charge:1": 1}
    assert not state.is_closed(key(step=f"{COMPENSATE}charge"), f"{RUN}:{COMPENSATE}charge:1", f"{COMPENSATE}charge")


def test_a_compensation_that_failed_is_kept_and_is_no_outcome_of_a_step() -> None:
    undone = applied(step=f"{COMPENSATE}charge", transition={"on": "error", "error": {"code": "stuck"}})
    state = fold(planned(), applied(**OK), undo(), undone)
    assert state.undo_failures == [{"step": "charge", "error": {"code": "stuck"}}]
    assert (state.done, state.failure) == (1, None)
    assert state.is_closed(key(step=f"{COMPENSATE}charge"), f"{RUN}:{COMPENSATE}charge:1", f"{COMPENSATE}charge")


# --- people, ends and what is not looked at -------------------------------------------------------------------------


def test_a_pause_enters_its_step_and_a_decision_gives_its_output() -> None:
    paused = fold(started(), step_paused())
    assert paused.manual_state is not None
    assert (paused.status, paused.steps) == ("paused", {"review": StepState(visits=1)})
    resolved = fold(started(), step_paused(), step_resolved(result={"by": "ann"}))
    assert resolved.manual_state is None
    assert resolved.steps == {"review": StepState(visits=1, applied=1, output={"by": "ann"}, has_output=True)}
    assert resolved.done == 1


def test_an_end_is_final() -> None:
    state = fold(started(), planned(), step_paused(), terminal())
    assert (state.terminal_status, state.terminal, state.stopped, state.manual_state) == ("completed", True, True, None)


def test_a_quarantined_run_is_stopped() -> None:
    state = fold(started(), quarantined())
    assert (state.quarantined, state.stopped, state.terminal, state.plain) == (True, True, False, True)


def test_commands_and_children_change_nothing_but_the_count_of_facts() -> None:
    state = fold(started(), planned())
    other = fold(started(), signal(), planned(), child(), child(child_run_id="child-2"))
    assert (state.facts, other.facts) == (2, 5)
    other.facts = 2
    assert state == other


def _launch(kind: str, attempt: int = 1, **payload: Any) -> Fact:
    return signal(signal_type=kind, payload={"runnable_key": key(attempt=attempt), "launcher": "l", **payload})


def test_the_latest_launch_of_an_open_attempt_is_kept() -> None:
    state = fold(started(), planned(), _launch("external_requested"))
    assert state.launches == {key(): Launch("l", t(0), 1)}
    again = fold(
        started(), planned(), *[_launch("external_requested")] * 2, _launch("external_started", external_run_id="e")
    )
    assert again.launches == {key(): Launch("l", t(0), 2, "e")}


def test_launches_go_with_the_visit_that_they_are_about() -> None:
    retried: list[Fact] = [started(), planned(), _launch("external_requested"), planned(runnable(attempt=2))]
    assert set(fold(*retried, _launch("external_started", 2)).launches) == {key(), key(attempt=2)}
    assert fold(*retried, _launch("external_started", 2), applied(attempt=2)).launches == {}


def test_a_launch_of_what_is_not_open_and_any_other_command_is_no_launch() -> None:
    assert fold(started(), planned(), applied(), _launch("external_requested")).launches == {}
    assert fold(started(), planned(), _launch("external_completed"), signal()).launches == {}


def test_a_command_after_the_end_is_no_surprise() -> None:
    assert fold(started(), terminal(), signal()).plain


def test_facts_of_queues_are_not_the_runs() -> None:
    assert fold(started(), scheduled(), claimed()).facts == 1


def test_a_copy_is_independent() -> None:
    state = fold(started(), planned(), planned(runnable(step="ship")), applied(step="ship", **OK))
    before, copy = repr(state), state.copy()
    for entry in entries([applied(**ERROR), undo(), planned(runnable(visit=2)), step_paused()]):
        copy.add(entry)
    assert repr(state) == before
    assert copy != state


def test_what_was_folded_since_the_beginning_is_taken_back() -> None:
    # given a run that has done two steps, of which the newer one is undone first
    both = planned(runnable(), runnable(step="ship"), runnable(step="pack"))
    facts: list[Fact] = [started(), both, applied(result="c", **OK), applied(step="ship", result="s", **OK)]
    state = fold(*facts)
    # when a failure, its compensations and a pause are folded, and taken back
    state.begin()
    for entry in entries([applied(step="pack", **ERROR), undo(), step_paused(), planned(runnable(visit=2))]):
        state.add(entry)
    assert state != fold(*facts)
    state.roll_back()
    # then it is what it was, in the same order
    assert state == fold(*facts)
    assert list(state.to_undo) == [("charge", 1), ("ship", 1)]


def test_what_is_not_plain_is_taken_back_too() -> None:
    state = fold(started(), planned())
    state.begin()
    for entry in entries([planned(), malformed(run_thread(RUN)), quarantined(), terminal()]):
        state.add(entry)
    assert not state.plain
    state.roll_back()
    assert state == fold(started(), planned())


# --- checkpoints ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_gives_back_what_was_written() -> None:
    state = fold(
        signal(actor={"name": "ann"}),
        started(input={"a": [1, None], "n": -0.0, "big": 10**30, "f": 0.1}, note="kept"),
        planned(runnable(note="kept"), runnable(step="ship"), runnable(step="mail"), runnable(step="pack")),
        _launch("external_requested"),
        applied(step="ship", result=[1, 2.5, "s"], **OK),
        applied(step="mail", result=None, **ERROR),
        planned(runnable(step=f"{COMPENSATE}ship")),
        applied(step=f"{COMPENSATE}ship", transition={"on": "error", "error": {"code": "stuck"}}),
        step_paused(metadata={"a": 1}),
        quarantined(),
    )
    assert state.plain

    loaded = PlanState.load(state.dump())

    assert loaded == state
    assert loaded.dump() == state.dump()


@pytest.mark.parametrize("text", ["", "5", "[]", "{}", '{"planned": 5}', '{"version": 1, "run": {}}', "not json"])
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"version|Expecting"):
        PlanState.load(text)


def test_a_damaged_checkpoint_is_refused() -> None:
    text = fold(started()).dump()
    with pytest.raises(ValueError, match="damaged"):
        PlanState.load(text.replace("billing", "refunds"))


def test_the_size_of_a_state_grows_with_what_is_open_and_what_it_holds_and_not_with_visits() -> None:
    visits: list[Fact] = [started()]
    for visit in range(1, 50):
        visits += [planned(runnable(visit=visit, recovery={"compensated": False})), applied(visit=visit, **OK)]
    assert fold(*visits).size == 1
    assert fold(started(), planned(*(runnable(step=f"s{n}", input={}) for n in range(100)))).size == 200
    assert fold(started(), planned(), applied(result="x" * 5000, **OK)).size >= 10


def test_a_state_weighs_what_it_holds_and_nothing_that_it_has_let_go() -> None:
    big = "x" * 5000
    begun: list[Fact] = [started(input={"a": big}), planned(runnable(input={"a": big}))]
    assert fold(*begun).size >= 20
    succeeded = [*begun, applied(result=big, **OK)]
    # the output and the result to undo, less the input of the step
    assert fold(*succeeded).weight == pytest.approx(fold(*begun).weight + 5000, abs=50)
    undone = fold(*succeeded, undo(input={}))
    assert undone.weight == pytest.approx(fold(*succeeded).weight - 5000, abs=50)


@given(journals(), st.sampled_from(RUNS[:2]), st.integers(0, 30))
def test_a_state_is_folded_on_from_its_checkpoint_as_from_the_beginning(
    journal: list[Entry], run_id: str, split: int
) -> None:
    thread = [entry for entry in journal if entry.thread == run_thread(run_id)]
    first = PlanState.fold(thread[:split])
    loaded = PlanState.load(first.dump())
    for state in (first, loaded):
        for entry in thread[split:]:
            state.add(entry)
    assert loaded == first
    assert list(loaded.to_undo.items()) == list(first.to_undo.items())


# --- what is not plain ----------------------------------------------------------------------------------------------

ODD: dict[str, list[Fact | OnThread]] = {
    "a start again": [started(), started()],
    "a plan again": [planned(), planned()],
    "a plan of a visit that is done": [planned(), applied(), planned()],
    "a visit that was skipped": [planned(runnable(visit=2))],
    "a retry of nothing": [planned(runnable(attempt=2))],
    "a retry that was skipped": [planned(), planned(runnable(attempt=3))],
    "a retry of a visit that is done": [planned(), applied(), planned(runnable(attempt=2))],
    "a key of another form": [planned(runnable(runnable_key="other"))],
    "a visit of another form": [planned(runnable(idempotency_key="other"))],
    "a compensation of nothing": [undo()],
    "a compensation again": [planned(), applied(**OK), undo(), undo()],
    "a compensation of what has failed": [planned(), applied(**ERROR), undo()],
    "an application again": [planned(), applied(), applied()],
    "an application of nothing": [applied()],
    "an application of an earlier attempt": [planned(), planned(runnable(attempt=2)), applied(attempt=2), applied()],
    "a launch of what is not planned yet": [
        planned(),
        signal(signal_type="external_requested", payload={"runnable_key": key(attempt=2), "launcher": "l"}),
    ],
    "a pause in a pause": [step_paused(), step_paused()],
    "a decision of nothing": [step_resolved()],
    "a decision about another step": [step_paused(), step_resolved(step="other")],
    "an end again": [terminal(), terminal()],
    "a plan after the end": [terminal(), planned()],
    "a quarantine after the end": [terminal(), quarantined()],
    "a fact of another run": [started(), OnThread(run_thread(RUN), started("run-2"))],
    "an entry that cannot be read": [malformed(run_thread(RUN))],
    "an entry of a type that is not known": [unknown(run_thread(RUN))],
}


@pytest.mark.parametrize("name", ODD)
def test_it_is_not_plain_after(name: str) -> None:
    items = ODD[name]
    assert fold(*items[:-1]).plain
    assert not fold(*items).plain
    assert not fold(*items, started(), signal()).plain, "nor ever after"


def test_an_entry_that_cannot_be_read_makes_the_run_unreadable() -> None:
    assert not fold(started(), malformed(run_thread(RUN))).readable
    assert not PlanState.of(RunProjection.fold(entries([started(), malformed(run_thread(RUN))]))).readable


def test_a_launch_that_came_before_its_plan_is_known_by_the_whole_run() -> None:
    early = entries([started(), planned(), _launch("external_requested", 2), planned(runnable(attempt=2))])
    for upto in (3, 4):
        assert set(PlanState.of(RunProjection.fold(early[:upto])).launches) == {key(attempt=2)}
    done = [*early, *entries([applied(attempt=2)])]
    assert PlanState.of(RunProjection.fold(done)).launches == {}


def test_a_link_of_a_child_that_cannot_be_read_changes_nothing() -> None:
    state = fold(started(), planned(), malformed(run_thread(RUN), type_name="child_run_started"))
    assert (state.readable, state.plain, state.facts) == (True, True, 3)


# --- any history ----------------------------------------------------------------------------------------------------


@given(journals())
@settings(max_examples=300)
def test_over_any_history_it_equals_the_whole_run_or_is_not_plain(journal: list[Entry]) -> None:
    for run_id in RUNS:
        state, run = PlanState(), RunProjection()
        for entry in (entry for entry in journal if entry.thread == run_thread(run_id)):
            state.add(entry)
            run = RunProjection.fold([entry], onto=run)
            if not state.plain:
                break
            assert_same_state(state, run)
            assert state == PlanState.fold([e for e in journal if e.thread == entry.thread and e.seq <= entry.seq])


@given(plausible_histories(60))
@settings(max_examples=300)
def test_over_what_careful_writers_do_it_equals_the_whole_run_or_is_not_plain(facts: list[Fact]) -> None:
    for run_id in RUNS:
        fold(*(fact for fact in facts if fact.thread == run_thread(run_id)))


@given(journals(), st.integers(0, 30))
def test_a_state_is_folded_on_from_a_copy_as_from_the_beginning_and_back(journal: list[Entry], split: int) -> None:
    thread = [entry for entry in journal if entry.thread == run_thread(RUN)]
    first = PlanState.fold(thread[:split])
    rest = first.copy()
    for entry in thread[split:]:
        rest.add(entry)
    assert first == PlanState.fold(thread[:split])
    if rest.plain:
        assert rest == PlanState.fold(thread)
    # and what was folded is taken back
    same = first.copy()
    same.begin()
    for entry in thread[split:]:
        same.add(entry)
    same.roll_back()
    assert same == first
    assert list(same.to_undo) == list(first.to_undo)


def test_the_state_of_a_whole_run_knows_which_attempts_are_closed_whatever_is_on_record() -> None:
    # given visits out of order, one of which is applied
    facts: list[Fact] = [planned(runnable(visit=visit)) for visit in (3, 1, 9)]
    facts.append(applied(visit=3))
    whole = PlanState.of(RunProjection.fold(entries(facts)))
    closed = {visit: whole.is_closed(key(visit=visit), f"{RUN}:charge:{visit}", "charge") for visit in (1, 3, 9)}
    assert closed == {1: False, 3: True, 9: False}
