"""The planner's state of a run, one test per rule."""

from typing import Any

from squid_dagster.protocol import Fact, run_thread
from squid_dagster.protocol.folds.launches import Launch
from squid_dagster.protocol.folds.plan_state import StepState
from squid_dagster.protocol.folds.visits import COMPENSATE
from tests.facts import (
    RUN,
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
)
from tests.protocol.plan_state.facts import ERROR, OK, VISIT, fold, launch_of, undo

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


def test_the_latest_launch_of_an_open_attempt_is_kept() -> None:
    state = fold(started(), planned(), launch_of("external_requested"))
    assert state.launches == {key(): Launch("l", t(0), 1)}
    again = fold(
        started(), planned(), *[launch_of("external_requested")] * 2, launch_of("external_started", external_run_id="e")
    )
    assert again.launches == {key(): Launch("l", t(0), 2, "e")}


def test_launches_go_with_the_visit_that_they_are_about() -> None:
    retried: list[Fact] = [started(), planned(), launch_of("external_requested"), planned(runnable(attempt=2))]
    assert set(fold(*retried, launch_of("external_started", 2)).launches) == {key(), key(attempt=2)}
    assert fold(*retried, launch_of("external_started", 2), applied(attempt=2)).launches == {}


def test_a_launch_of_what_is_not_open_and_any_other_command_is_no_launch() -> None:
    assert fold(started(), planned(), applied(), launch_of("external_requested")).launches == {}
    assert fold(started(), planned(), launch_of("external_completed"), signal()).launches == {}


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
