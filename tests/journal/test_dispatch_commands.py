"""Dispatch, in every version on every storage: what a command sees of a run, and that it writes it as it stands."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squid_dagster.journal.commands import CommandedRun, CommandTarget, SignalKey
from squid_dagster.journal.postgres.dispatch import PostgresDispatchStore
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import Fact, RunUnit, run_thread
from squid_dagster.protocol.errors import InvalidTransition
from squid_dagster.protocol.facts.base import MAX_TEXT
from squid_dagster.protocol.plan_state import PlanState
from tests.facts import (
    RUN,
    RUNS,
    claimed,
    dead_lettered,
    failed,
    failed_with_retry,
    key,
    planned,
    runnable,
    scheduled,
    signal,
    started,
    terminal,
)
from tests.histories import histories
from tests.journal.contract import WITHOUT_SHRINKING, put, raw
from tests.journal.desk import Desk, Planner, done, one, start
from tests.journal.test_view_histories import _renamed
from tests.plan_states import assert_same_state

LONG = "ü" * (MAX_TEXT - 1)
_numbers = count(1)


def seen_by(desk: Desk, target: CommandTarget, *facts: Fact) -> CommandedRun:
    """What a command sees that writes these facts."""
    seen: list[CommandedRun] = []

    def decision(runs: Mapping[str, CommandedRun], now: datetime) -> Sequence[Fact]:
        seen.append(runs[target.run_id])
        return facts

    assert desk.store.command([target], decision) == list(facts)
    return seen[-1]


def test_a_command_sees_the_run_the_attempt_that_it_names_and_its_own_first_time(desk: Desk) -> None:
    start(desk, RUN)
    desk.put(
        signal(signal_type="cancel_run", idempotency_key="k"), planned(runnable(step="ship")), scheduled(step="ship")
    )
    one(desk)
    run = seen_by(desk, CommandTarget(RUN, key(), signal=SignalKey("cancel_run", "k")))
    assert set(run.state.planned) == {key(), key(step="ship")}
    assert run.dispatch.attempts[key()].status == "claimed"
    assert run.first is not None
    assert (run.first.signal_type, run.first.idempotency_key) == ("cancel_run", "k")


def test_a_command_sees_all_attempts_of_the_visit_that_it_is_about(desk: Desk) -> None:
    # given a visit that was tried three times, of which the last is not planned yet
    desk.put(started(), planned(runnable(), runnable(step="ship")), scheduled(), scheduled(step="ship"))
    desk.put(claimed(at=1), failed_with_retry(at=2, delay=1))
    desk.put(planned(runnable(attempt=2)), claimed(attempt=2, at=4), failed_with_retry(attempt=2, at=5, delay=1))
    for attempt in (1, 2, 3):
        run = seen_by(desk, CommandTarget(RUN, key(attempt=attempt)))
        visit = {k: each.status for k, each in run.dispatch.attempts.items() if each.step == "charge"}
        assert visit == {key(): "failed", key(attempt=2): "failed", key(attempt=3): "retry_scheduled"}


def test_a_command_sees_all_attempts_of_a_visit_however_they_are_named(desk: Desk) -> None:
    # given a visit of which one attempt is named otherwise, and the same visit of another run
    visit = runnable().idempotency_key
    desk.put(started(), scheduled(step="ship"), scheduled(), claimed(at=1), failed(at=2))
    desk.put(scheduled(runnable_key="mine", attempt_number=7), scheduled("run-2", idempotency_key=visit))
    run = seen_by(desk, CommandTarget(RUN, visit=visit))
    found = {name: each.status for name, each in run.dispatch.attempts.items() if each.idempotency_key == visit}
    assert found == {key(): "failed", "mine": "available"}
    assert run.dispatch.tokens[visit] == 1
    # and of a visit that is not there, none
    assert "none" not in seen_by(desk, CommandTarget(RUN, visit="none")).dispatch.tokens


def test_a_run_that_is_not_there_has_no_start(desk: Desk) -> None:
    run = seen_by(desk, CommandTarget("nowhere", "nothing", dead_letters=True, signal=SignalKey("a", "b")))
    assert (run.state.start, run.state.status, run.dispatch.attempts, run.first) == (None, "new", {}, None)


@pytest.mark.parametrize(
    ("wanted", "at"),
    [
        (SignalKey("start_run", "first"), 0),
        (SignalKey("cancel_run", "k"), 3),
        (SignalKey("approve_run", "k"), 2),
        (SignalKey("approve_run", LONG), 5),
        (SignalKey("approve_run", LONG + "y"), 6),
        (SignalKey("approve_run", "ключ ü\u2028"), 7),
        (SignalKey("approve_run", LONG + "z"), None),
        (SignalKey("reject_run", "k"), None),
        (SignalKey("approve_run", "theirs"), None),
        (SignalKey("approve_run", "K"), None),
        (None, None),
    ],
)
def test_the_first_command_of_a_key_is_found(desk: Desk, wanted: SignalKey | None, at: int | None) -> None:
    def said(at: int, signal_type: str, idempotency_key: str | None, run: str = RUN) -> Fact:
        return signal(run, at=at, signal_type=signal_type, idempotency_key=idempotency_key)

    desk.put(said(0, "start_run", "first"), started(), said(1, "approve_run", None))
    desk.put(said(0, "approve_run", "theirs", "run-2"), said(1, "approve_run", "k", "run-2"))
    desk.put(said(2, "approve_run", "k"), said(3, "cancel_run", "k"), said(4, "approve_run", "k"))
    desk.put(said(5, "approve_run", LONG), said(6, "approve_run", LONG + "y"), said(7, "approve_run", "ключ ü\u2028"))
    first = seen_by(desk, CommandTarget(RUN, signal=wanted)).first
    assert (None if first is None else int(first.occurred_at.timestamp()) % 60) == at


def test_dead_letters_that_the_run_has_not_gone_on_from_are_found_when_asked_for(desk: Desk) -> None:
    steps = ("charge", "ship", "mail")
    desk.put(started(), planned(*(runnable(step=step, max_deliveries=1) for step in steps)))
    desk.put(*(scheduled(step=step, max_deliveries=1) for step in steps))
    for step in steps[:2]:
        desk.put(claimed(step=step, at=1, lease=5), dead_lettered(step=step, at=20))
    desk.put(planned(runnable(step="ship", attempt=2)), scheduled(step="ship", attempt=2))
    run = seen_by(desk, CommandTarget(RUN, dead_letters=True))
    assert [attempt.runnable_key for attempt in run.dead_letters] == [key()]


def test_nothing_is_written_and_nothing_is_remembered_of_a_command_that_is_refused(desk: Desk) -> None:
    start(desk, RUN)
    before = desk.entries()

    def refuse(runs: Mapping[str, CommandedRun], now: datetime) -> Sequence[Fact]:
        runs[RUN].state.add_fact(terminal())
        raise InvalidTransition("no")

    with pytest.raises(InvalidTransition):
        desk.store.command([CommandTarget(RUN)], refuse)
    assert desk.entries() == before
    assert not seen_by(desk, CommandTarget(RUN)).state.terminal


@pytest.mark.parametrize("folds", [False, True])
def test_what_a_command_writes_is_known_to_the_next_one_whether_or_not_it_folds_that(desk: Desk, folds: bool) -> None:
    start(desk, RUN)
    fact = planned(runnable(step="ship"))

    def decision(runs: Mapping[str, CommandedRun], now: datetime) -> Sequence[Fact]:
        if folds:
            runs[RUN].state.add_fact(fact)
        return [signal(signal_type="approve_run"), fact]

    desk.store.command([CommandTarget(RUN)], decision)
    run = seen_by(desk, CommandTarget(RUN))
    assert_same_state(run.state, RunUnit.fold(desk.storage.read_run(RUN)).run)
    # and to the next settlement
    plan = Planner()
    assert desk.store.settle([done(one(desk))], plan)[0].unwrap().status == "completed"
    assert set(plan.asked[-1].run.planned) >= {key(step="ship")}


def test_several_runs_are_seen_and_written_at_once(desk: Desk) -> None:
    start(desk, "run-1", "run-2")

    def end_both(runs: Mapping[str, CommandedRun], now: datetime) -> Sequence[Fact]:
        return [terminal(run_id, status="cancelled") for run_id in runs]

    desk.store.command([CommandTarget("run-1"), CommandTarget("run-2")], end_both)
    for run_id in ("run-1", "run-2"):
        assert seen_by(desk, CommandTarget(run_id)).state.terminal_status == "cancelled"


def test_a_command_that_was_changed_behind_our_back_is_not_the_first(postgres_desk: Desk) -> None:
    storage = postgres_desk.storage
    assert isinstance(storage, PostgresStorage)
    for at in (1, 2):
        postgres_desk.put(signal(at=at, signal_type="approve_run", idempotency_key="k"))
    postgres_desk.put(started())
    with raw(storage) as connection:
        connection.execute("ALTER TABLE journal_entries DISABLE TRIGGER ALL")
        connection.execute("UPDATE journal_entries SET occurred_at = now() WHERE seq = 1")
    first = seen_by(postgres_desk, CommandTarget(RUN, signal=SignalKey("approve_run", "k"))).first
    assert first is not None
    assert first.occurred_at.second == 2


commands = st.lists(
    st.tuples(
        st.integers(0, 40),
        st.sampled_from(RUNS),
        st.sampled_from(("cancel_run", "approve_run")),
        st.sampled_from(("a", "b", LONG, LONG + "y")),
    ),
    max_size=6,
)


@given(history=histories(), commands=commands, size=st.integers(1, 12))
@settings(max_examples=60, phases=WITHOUT_SHRINKING)
def test_after_any_history_a_command_sees_what_the_whole_run_says(
    postgres_shared: PostgresStorage, history: list[Fact], commands: list[tuple[int, str, str, str]], size: int
) -> None:
    # given any history with keyed commands in it, about runs and queues of its own
    for place, run, signal_type, idempotency_key in commands:
        history.insert(place, signal(run, at=place, signal_type=signal_type, idempotency_key=idempotency_key))
    prefix = f"commanded{next(_numbers)}"
    mine = [_renamed(fact, prefix) for fact in history]
    runs = sorted({fact.run_id for fact in mine if getattr(fact, "run_id", None) is not None})  # type: ignore[union-attr]
    warm = PostgresDispatchStore(postgres_shared)
    # when it is committed in pieces, then whoever has followed it, and whoever has not, sees the same
    for begin in range(0, len(mine), size):
        put(postgres_shared, *mine[begin : begin + size])
        for run_id in runs[:2]:
            _assert_seen(warm, postgres_shared, run_id)
    for run_id in runs:
        _assert_seen(warm, postgres_shared, run_id)
        _assert_seen(PostgresDispatchStore(postgres_shared), postgres_shared, run_id)
        _assert_visits_seen(warm, postgres_shared, run_id)


def _assert_visits_seen(store: PostgresDispatchStore, storage: PostgresStorage, run_id: str) -> None:
    """What a command sees of a visit of an open run is what all facts say of it, but for contents."""
    unit = RunUnit.fold(storage.read_run(run_id))
    visits = [] if unit.run.terminal else sorted({each.idempotency_key for each in unit.dispatch.attempts.values()})
    for visit in visits:
        seen: list[CommandedRun] = []
        store.command([CommandTarget(run_id, visit=visit)], lambda runs, now: seen.append(runs[run_id]) or [])  # type: ignore[func-returns-value]  # noqa: B023
        dispatches = [seen[0].dispatch, unit.dispatch]
        one, other = (
            {
                key: each._replace(input=None, result=None, error=None)
                for key, each in dispatch.attempts.items()
                if each.idempotency_key == visit
            }
            for dispatch in dispatches
        )
        assert one == other
        assert seen[0].dispatch.tokens.get(visit, 0) == unit.dispatch.tokens.get(visit, 0)
        assert seen[0].state.stopped == unit.run.stopped


def _assert_seen(store: PostgresDispatchStore, storage: PostgresStorage, run_id: str) -> None:
    unit = RunUnit.fold(storage.read_run(run_id))
    for signal_type in ("cancel_run", "approve_run"):
        for idempotency_key in ("a", LONG):
            target = CommandTarget(run_id, None, dead_letters=True, signal=SignalKey(signal_type, idempotency_key))
            seen: list[CommandedRun] = []
            store.command([target], lambda runs, now: seen.append(runs[run_id]) or [])  # type: ignore[func-returns-value]  # noqa: B023
            (run,), whole = seen, CommandedRun.of(unit, target)
            assert run.first == whole.first
            if unit.run.start is None:
                assert run.state.start is None
            elif PlanState.fold(storage.read(run_thread(run_id))).plain:
                assert_same_state(run.state, unit.run)
            else:
                assert run.state == whole.state
            if not unit.run.terminal:  # else nothing is asked about attempts
                expected = {
                    each.runnable_key for each in whole.dead_letters if each.runnable_key in whole.state.planned
                }
                assert {each.runnable_key for each in run.dead_letters} == expected
