"""Whatever history a run has, a command sees what the whole run says."""

from collections.abc import Callable
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.command_target import CommandedRun, CommandTarget, SignalKey
from squid_dagster.journal.contract.dispatch_store import DispatchStore
from squid_dagster.journal.fold_store.dispatch_store import FoldDispatchStore
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.dispatch.dispatch_store import PostgresDispatchStore
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import Entry, Fact, RunUnit, dispatch_thread, run_thread
from squid_dagster.protocol.entries import run_of
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.protocol.folds.plan_state import PlanState
from tests.facts import (
    CLAIMS,
    QUEUE,
    RUNS,
    T0,
    OnThread,
    claimed,
    dead_lettered,
    entries,
    fenced,
    key,
    planned,
    quarantined,
    runnable,
    scheduled,
    signal,
    started,
    terminal,
)
from tests.histories import histories, journals, renamed
from tests.journal.access import WITHOUT_SHRINKING, put
from tests.journal.dispatch.seen_runs import LONG
from tests.plan_states import assert_same_state

_numbers = count(1)


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
    mine = [renamed(fact, prefix) for fact in history]
    runs = sorted({fact.run_id for fact in mine if getattr(fact, "run_id", None) is not None})  # type: ignore[union-attr]
    warm = PostgresDispatchStore(postgres_shared)
    # when it is committed in pieces, then a store that has followed it, and one that has not, see the same
    for begin in range(0, len(mine), size):
        put(postgres_shared, *mine[begin : begin + size])
        for run_id in runs[:2]:
            _assert_seen(warm, postgres_shared, run_id)
    for run_id in runs:
        _assert_seen(warm, postgres_shared, run_id)
        _assert_seen(PostgresDispatchStore(postgres_shared), postgres_shared, run_id)
        _assert_visits_seen(warm, postgres_shared, run_id)


def _assert_visits_seen(store: PostgresDispatchStore, storage: PostgresStorage, run_id: str) -> None:
    """Assert that a command sees of a visit of an open run what all facts say of it, but for contents."""
    unit = RunUnit.fold(storage.read_run(run_id))
    visits = [] if unit.run.terminal else sorted({a.idempotency_key for a in unit.dispatch.attempts.values()})
    for visit in visits:
        seen: list[CommandedRun] = []
        store.command([CommandTarget(run_id, visit=visit)], lambda runs, now: seen.append(runs[run_id]) or [])  # type: ignore[func-returns-value]  # noqa: B023
        dispatches = [seen[0].dispatch, unit.dispatch]
        one, other = (
            {
                key: attempt._replace(input=None, result=None, error=None)
                for key, attempt in dispatch.attempts.items()
                if attempt.idempotency_key == visit
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
                expected = {a.runnable_key for a in whole.dead_letters if a.runnable_key in whole.state.planned}
                assert {attempt.runnable_key for attempt in run.dead_letters} == expected


class _ReadOnlyStorage(MemoryStorage):
    """A storage that returns these entries, unreadable ones among them."""

    def __init__(self) -> None:
        super().__init__(VirtualClock(T0))
        self.entries: list[Entry] = []

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        return [entry for entry in self.entries if entry.thread == thread and entry.seq > after][:limit]

    def revision(self, thread: str) -> int:
        return len(self.read(thread))

    def read_run(self, run_id: str, before: int | None = None) -> list[Entry]:
        return [entry for entry in self.entries if run_of(entry.fact) == run_id]


def _dead(run: str, step: str) -> list[Fact]:
    about: dict[str, Any] = {"run": run, "step": step}
    intent: dict[str, Any] = {"max_deliveries": 1, **about}
    plan = planned(runnable(run, step, max_deliveries=1), run=run)
    return [plan, scheduled(**intent), claimed(**about, at=1, lease=5), dead_lettered(**about, at=20)]


@st.composite
def _commanded_journals(draw: st.DrawFn) -> list[Entry]:
    """Generate any journal of runs that were started, with keyed commands, dead letters, and ends."""
    items = [OnThread(entry.thread, entry.fact) for entry in draw(journals()) if entry.fact.type != "run_started"]
    ends: list[Callable[[str], Fact]] = [terminal, quarantined, fenced]
    inserted: list[list[Fact]] = [
        [signal(run, at=n, idempotency_key=command_key)] for n, (_, run, _, command_key) in enumerate(draw(commands))
    ]
    inserted += [
        _dead(run, step)
        for run, step in draw(st.lists(st.tuples(st.sampled_from(RUNS), st.sampled_from(("mail", "bill"))), max_size=3))
    ]
    inserted += [[draw(st.sampled_from(ends))(run)] for run in draw(st.lists(st.sampled_from(RUNS), max_size=2))]
    for facts in inserted:
        place = draw(st.integers(0, len(items)))
        items[place:place] = [OnThread(fact.thread, fact) for fact in facts]
    first = [OnThread(run_thread(run), started(run)) for run in RUNS if draw(st.sampled_from((True,) * 5 + (False,)))]
    return entries([*first, *items])


@given(journal=_commanded_journals(), size=st.integers(1, 12))
@settings(max_examples=300)
def test_after_any_history_a_command_on_any_storage_sees_what_the_whole_run_says(
    journal: list[Entry], size: int
) -> None:
    storage = _ReadOnlyStorage()
    warm = FoldDispatchStore(storage)
    for end in range(size, len(journal) + size, size):
        storage.entries = journal[:end]
        warm.visible(QUEUE)  # deletes attempts of ended runs
        for run_id in RUNS:
            _assert_seen_by_key(warm, storage, run_id)
    for run_id in RUNS:
        _assert_seen_by_key(FoldDispatchStore(storage), storage, run_id)


def _assert_seen_by_key(store: DispatchStore, storage: _ReadOnlyStorage, run_id: str) -> None:
    unit = RunUnit.fold(storage.read_run(run_id))
    plain = PlanState.fold(storage.read(run_thread(run_id))).plain
    # No writer of the library puts a run on two queues: the queue is that of the start.
    queues = {entry.thread for entry in storage.read_run(run_id) if entry.thread.startswith(dispatch_thread(""))}
    elsewhere = len(queues) > 1
    targets = [
        CommandTarget(run_id, None, dead_letters=True, signal=SignalKey("start_run", name)) for name in CLAIMS[:2]
    ]
    targets += [CommandTarget(run_id, attempt_key) for attempt_key in (*unit.dispatch.attempts, key(run_id, attempt=9))]
    for target in targets:
        seen: list[CommandedRun] = []
        store.command([target], lambda runs, now: seen.append(runs[run_id]) or [])  # type: ignore[func-returns-value]  # noqa: B023
        (run,), whole = seen, CommandedRun.of(unit, target)
        assert run.first == whole.first
        if plain and unit.run.start is not None:
            assert_same_state(run.state, unit.run)
        else:
            assert run.state == whole.state
        if elsewhere:
            continue
        if target.dead_letters:
            waiting, actual = ({attempt.runnable_key for attempt in r.dead_letters} for r in (whole, run))
            assert waiting & set(whole.state.planned) <= actual <= waiting
        elif target.runnable_key not in unit.dispatch.attempts:
            assert target.runnable_key not in run.dispatch.attempts
        else:
            visit = unit.dispatch.attempts[target.runnable_key].idempotency_key
            assert _visit(run, visit) == _visit(whole, visit)
            assert (run.dispatch.queue, run.dispatch.fenced) == (unit.dispatch.queue, unit.dispatch.fenced)


def _visit(run: CommandedRun, visit: str) -> tuple[dict[str, Attempt], int | None]:
    """Return the attempts of a visit and how often it was claimed."""
    attempts = {k: attempt for k, attempt in run.dispatch.attempts.items() if attempt.idempotency_key == visit}
    return attempts, run.dispatch.tokens.get(visit)
