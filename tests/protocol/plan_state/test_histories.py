"""The planner's state: checkpoints, what is not plain, and that over any history it equals the whole run."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squid_dagster.protocol import Entry, Fact, run_thread
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.visits import COMPENSATE
from tests.facts import (
    RUN,
    RUNS,
    OnThread,
    applied,
    entries,
    key,
    malformed,
    planned,
    quarantined,
    runnable,
    signal,
    started,
    step_paused,
    step_resolved,
    terminal,
    unknown,
)
from tests.histories import journals, plausible_histories
from tests.plan_states import assert_same_state
from tests.protocol.plan_state.facts import ERROR, OK, fold, launch_of, undo

# --- checkpoints ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_gives_back_what_was_written() -> None:
    state = fold(
        signal(actor={"name": "ann"}),
        started(input={"a": [1, None], "n": -0.0, "big": 10**30, "f": 0.1}, note="kept"),
        planned(runnable(note="kept"), runnable(step="ship"), runnable(step="mail"), runnable(step="pack")),
        launch_of("external_requested"),
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
    early = entries([started(), planned(), launch_of("external_requested", 2), planned(runnable(attempt=2))])
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
