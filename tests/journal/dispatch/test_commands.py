"""Dispatch, in every version on every storage: what a command sees of a run, and that it writes it as it stands."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.command_target import CommandedRun, CommandTarget, SignalKey
from squid_dagster.journal.fold_store.dispatch_store import FoldDispatchStore
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import Entry, Fact, RunUnit, dispatch_thread, run_thread
from squid_dagster.protocol.errors import InvalidTransition
from tests.facts import (
    QUEUE,
    RUN,
    applied,
    claimed,
    completed,
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
from tests.journal.access import raw
from tests.journal.dispatch.seen_runs import LONG, seen_by
from tests.journal.dispatch_fixture import DispatchFixture, Planner, done, one, start
from tests.plan_states import assert_same_state


def test_a_command_sees_the_run_the_attempt_that_it_names_and_its_own_first_time(dispatch: DispatchFixture) -> None:
    start(dispatch, RUN)
    dispatch.put(
        signal(signal_type="cancel_run", idempotency_key="k"), planned(runnable(step="ship")), scheduled(step="ship")
    )
    one(dispatch)
    run = seen_by(dispatch, CommandTarget(RUN, key(), signal=SignalKey("cancel_run", "k")))
    assert set(run.state.planned) == {key(), key(step="ship")}
    assert run.dispatch.attempts[key()].status == "claimed"
    assert run.first is not None
    assert (run.first.signal_type, run.first.idempotency_key) == ("cancel_run", "k")


def test_a_command_sees_all_attempts_of_the_visit_that_it_is_about(dispatch: DispatchFixture) -> None:
    # given a visit that was tried three times, of which the last is not planned yet
    dispatch.put(started(), planned(runnable(), runnable(step="ship")), scheduled(), scheduled(step="ship"))
    dispatch.put(claimed(at=1), failed_with_retry(at=2, delay=1))
    dispatch.put(planned(runnable(attempt=2)), claimed(attempt=2, at=4), failed_with_retry(attempt=2, at=5, delay=1))
    for attempt in (1, 2, 3):
        run = seen_by(dispatch, CommandTarget(RUN, key(attempt=attempt)))
        visit = {k: attempt.status for k, attempt in run.dispatch.attempts.items() if attempt.step == "charge"}
        assert visit == {key(): "failed", key(attempt=2): "failed", key(attempt=3): "retry_scheduled"}


def test_a_command_sees_all_attempts_of_a_visit_however_they_are_named(dispatch: DispatchFixture) -> None:
    # given a visit of which one attempt is named otherwise, and the same visit of another run
    visit = runnable().idempotency_key
    dispatch.put(started(), scheduled(step="ship"), scheduled(), claimed(at=1), failed(at=2))
    dispatch.put(scheduled(runnable_key="mine", attempt_number=7), scheduled("run-2", idempotency_key=visit))
    run = seen_by(dispatch, CommandTarget(RUN, visit=visit))
    attempts = run.dispatch.attempts.items()
    statuses = {name: attempt.status for name, attempt in attempts if attempt.idempotency_key == visit}
    assert statuses == {key(): "failed", "mine": "available"}
    assert run.dispatch.tokens[visit] == 1
    # and of a visit that is not there, none
    assert "none" not in seen_by(dispatch, CommandTarget(RUN, visit="none")).dispatch.tokens


def test_a_command_sees_the_visit_that_it_names_of_a_step_with_several(dispatch: DispatchFixture) -> None:
    # given a step whose first visit has its outcome, and whose second is tried again
    dispatch.put(started(), planned(), scheduled(), claimed(at=1), completed(at=2), applied(at=2))
    dispatch.put(planned(runnable(visit=2), at=2), scheduled(visit=2, at=2), claimed(visit=2, at=3))
    dispatch.put(failed_with_retry(visit=2, at=4, delay=1), planned(runnable(visit=2, attempt=2), at=4))
    # then either is seen whole
    first = seen_by(dispatch, CommandTarget(RUN, key())).dispatch.attempts
    second = seen_by(dispatch, CommandTarget(RUN, key(visit=2, attempt=2))).dispatch.attempts
    assert first[key()].status == "completed"
    assert {k: second[k].status for k in (key(visit=2), key(visit=2, attempt=2))} == {
        key(visit=2): "failed",
        key(visit=2, attempt=2): "retry_scheduled",
    }


def test_the_first_command_of_a_key_is_found_after_hundreds_of_visits(dispatch: DispatchFixture) -> None:
    wanted = CommandTarget(RUN, signal=SignalKey("approve_run", "k"))
    dispatch.put(started(), signal(at=1, signal_type="approve_run", idempotency_key="k"))
    for visit in range(1, 301):
        dispatch.put(planned(runnable(visit=visit), at=2), applied(visit=visit, at=2))
        if visit in (1, 150, 300):
            run = seen_by(dispatch, wanted)
            assert run.first is not None
            assert (run.first.occurred_at.second, run.state.visits("charge")) == (1, visit)
    dispatch.put(signal(at=3, signal_type="approve_run", idempotency_key="k"))
    assert seen_by(dispatch, wanted).first == run.first


def test_a_dead_letter_of_a_visit_that_was_retried_and_done_is_not_waited_for(dispatch: DispatchFixture) -> None:
    dead: dict[str, Any] = {"max_deliveries": 1}
    dispatch.put(started(), planned(runnable(**dead)), scheduled(**dead), claimed(at=1, lease=5), dead_lettered(at=20))
    assert [a.runnable_key for a in seen_by(dispatch, CommandTarget(RUN, dead_letters=True)).dead_letters] == [key()]
    dispatch.put(planned(runnable(attempt=2), at=20), scheduled(attempt=2, at=20), claimed(attempt=2, at=20))
    dispatch.put(completed(attempt=2, at=21), applied(attempt=2, at=21))
    dispatch.put(planned(runnable(visit=2, **dead), at=21), scheduled(visit=2, at=21, **dead))
    assert not seen_by(dispatch, CommandTarget(RUN, dead_letters=True)).dead_letters
    dispatch.put(claimed(visit=2, at=22, lease=5), dead_lettered(visit=2, at=40))
    run = seen_by(dispatch, CommandTarget(RUN, dead_letters=True))
    assert [attempt.runnable_key for attempt in run.dead_letters] == [key(visit=2)]


def test_an_attempt_on_another_queue_than_that_of_the_start_is_seen(dispatch: DispatchFixture) -> None:
    dispatch.put(started(), planned(runnable(queue="slow")), scheduled(queue="slow"))
    assert seen_by(dispatch, CommandTarget(RUN, key())).dispatch.attempts[key()].queue == "slow"


def test_attempts_of_a_run_that_has_ended_are_seen(dispatch: DispatchFixture) -> None:
    start(dispatch, RUN)
    one(dispatch)
    dispatch.put(terminal(at=60))
    one_more = scheduled("run-2")
    dispatch.put(one_more)
    assert one(dispatch).attempt.run_id == "run-2"  # what is cached of the ended run has been read
    run = seen_by(dispatch, CommandTarget(RUN, key()))
    assert run.state.terminal
    if isinstance(dispatch.store, FoldDispatchStore):
        assert run.dispatch.attempts[key()].status == "claimed"


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize(
    "meanwhile",
    [signal(signal_type="approve_run", idempotency_key="k"), planned(runnable(step="ship")), terminal()],
    ids=lambda fact: fact.type,
)
def test_a_command_is_decided_again_when_a_fact_of_its_run_came_in_between(
    clock: VirtualClock, atomic: bool, meanwhile: Fact
) -> None:
    storage = MemoryStorage(clock, atomic_across_threads=atomic)
    dispatch = DispatchFixture(storage, FoldDispatchStore(storage), clock)
    start(dispatch, RUN)
    others, seen = [meanwhile], list[CommandedRun]()

    def decision(runs: Mapping[str, CommandedRun], now: datetime) -> Sequence[Fact]:
        seen.append(CommandedRun(runs[RUN].state.copy(), runs[RUN].dispatch, runs[RUN].first))
        while others:
            dispatch.put(others.pop())
        return [signal(signal_type="approve_run", idempotency_key="k"), scheduled(step="ship")]

    target = CommandTarget(RUN, key(), signal=SignalKey("approve_run", "k"))
    dispatch.store.command([target], decision)
    # then nothing of the first decision is there, and the second one has seen the fact
    assert [entry.fact.type for entry in storage.read_run(RUN)].count("run_signal_received") == (
        2 if meanwhile.type == "run_signal_received" else 1
    )
    before, after = seen
    assert (before.first, before.state.terminal, len(before.state.planned)) == (None, False, 1)
    whole = CommandedRun.of(RunUnit.fold(storage.read_run(RUN)[:-2]), target)
    assert after.first == (whole.first if meanwhile.type == "run_signal_received" else None)
    assert (after.state.terminal, set(after.state.planned)) == (whole.state.terminal, set(whole.state.planned))


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("plain", [True, False])
def test_what_a_command_writes_to_a_queue_alone_is_compared_with_the_queue(
    clock: VirtualClock, atomic: bool, plain: bool
) -> None:
    storage = MemoryStorage(clock, atomic_across_threads=atomic)
    dispatch = DispatchFixture(storage, FoldDispatchStore(storage), clock)
    start(dispatch, RUN)
    if not plain:
        dispatch.put(started(trigger="another"))
    others, seen = [claimed(at=60)], list[str]()

    def decision(runs: Mapping[str, CommandedRun], now: datetime) -> Sequence[Fact]:
        seen.append(runs[RUN].dispatch.attempts[key()].status)
        while others:
            dispatch.put(others.pop())
        return [claimed(at=60, claim="b")] if seen[-1] == "available" else []

    assert dispatch.store.command([CommandTarget(RUN, key())], decision) == []
    assert seen == ["available", "claimed"]


def test_where_commits_do_not_span_threads_a_queue_that_moved_on_stops_no_command_that_is_on_record(
    clock: VirtualClock,
) -> None:
    storage = MemoryStorage(clock, atomic_across_threads=False)
    dispatch = DispatchFixture(storage, FoldDispatchStore(storage), clock)
    start(dispatch, RUN)
    others = [claimed(at=60)]

    def decision(runs: Mapping[str, CommandedRun], now: datetime) -> Sequence[Fact]:
        while others:
            dispatch.put(others.pop())
        return [signal(signal_type="retry_attempt"), planned(runnable(step="ship")), scheduled(step="ship")]

    assert len(dispatch.store.command([CommandTarget(RUN, key())], decision)) == 3
    assert [entry.fact.type for entry in storage.read_run(RUN)].count("run_signal_received") == 1
    assert set(RunUnit.fold(storage.read_run(RUN)).dispatch.attempts) == {key(), key(step="ship")}


class _Interrupted(MemoryStorage):
    """A storage that others write to right before a thread is read."""

    meanwhile: tuple[str, Fact] | None = None

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        if self.meanwhile is not None and self.meanwhile[0] == thread:
            _, fact = self.meanwhile
            self.meanwhile = None
            self.append(fact.thread, [fact])
        return super().read(thread, after, limit)


def test_what_a_command_sees_is_of_one_time(clock: VirtualClock) -> None:
    storage = _Interrupted(clock)
    dispatch = DispatchFixture(storage, FoldDispatchStore(storage), clock)
    start(dispatch, RUN)
    # when the run ends after its state was read, and before its queue is
    storage.meanwhile = dispatch_thread(QUEUE), terminal()
    assert seen_by(dispatch, CommandTarget(RUN, key())).state.terminal


def test_of_two_looks_at_a_queue_the_earlier_one_counts(clock: VirtualClock) -> None:
    storage = _Interrupted(clock)
    dispatch = DispatchFixture(storage, FoldDispatchStore(storage), clock)
    start(dispatch, RUN, "run-2")
    storage.meanwhile = run_thread("run-2"), claimed(at=60)
    seen = list[str]()

    def decision(runs: Mapping[str, CommandedRun], now: datetime) -> Sequence[Fact]:
        seen.append(runs[RUN].dispatch.attempts[key()].status)
        return [claimed(at=60, claim="b")] if seen[-1] == "available" else []

    targets = [CommandTarget(RUN, key()), CommandTarget("run-2", key("run-2"))]
    assert dispatch.store.command(targets, decision) == []
    assert seen == ["available", "claimed"]


def test_a_command_goes_on_after_its_run_was_deleted(clock: VirtualClock) -> None:
    storage = MemoryStorage(clock)
    dispatch = DispatchFixture(storage, FoldDispatchStore(storage), clock)
    start(dispatch, RUN)
    dispatch.put(signal(signal_type="approve_run", idempotency_key="k"))
    target = CommandTarget(RUN, key(), signal=SignalKey("approve_run", "k"))
    assert seen_by(dispatch, target).first is not None
    storage.delete_thread(run_thread(RUN))
    assert (seen_by(dispatch, target).first, seen_by(dispatch, target).state.start) == (None, None)


def test_a_run_that_is_not_there_has_no_start(dispatch: DispatchFixture) -> None:
    run = seen_by(dispatch, CommandTarget("nowhere", "nothing", dead_letters=True, signal=SignalKey("a", "b")))
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
def test_the_first_command_of_a_key_is_found(
    dispatch: DispatchFixture, wanted: SignalKey | None, at: int | None
) -> None:
    def said(at: int, signal_type: str, idempotency_key: str | None, run: str = RUN) -> Fact:
        return signal(run, at=at, signal_type=signal_type, idempotency_key=idempotency_key)

    dispatch.put(said(0, "start_run", "first"), started(), said(1, "approve_run", None))
    dispatch.put(said(0, "approve_run", "theirs", "run-2"), said(1, "approve_run", "k", "run-2"))
    dispatch.put(said(2, "approve_run", "k"), said(3, "cancel_run", "k"), said(4, "approve_run", "k"))
    dispatch.put(
        said(5, "approve_run", LONG), said(6, "approve_run", LONG + "y"), said(7, "approve_run", "ключ ü\u2028")
    )
    first = seen_by(dispatch, CommandTarget(RUN, signal=wanted)).first
    assert (None if first is None else int(first.occurred_at.timestamp()) % 60) == at


def test_dead_letters_that_the_run_has_not_gone_on_from_are_found_when_asked_for(dispatch: DispatchFixture) -> None:
    steps = ("charge", "ship", "mail")
    dispatch.put(started(), planned(*(runnable(step=step, max_deliveries=1) for step in steps)))
    dispatch.put(*(scheduled(step=step, max_deliveries=1) for step in steps))
    for step in steps[:2]:
        dispatch.put(claimed(step=step, at=1, lease=5), dead_lettered(step=step, at=20))
    dispatch.put(planned(runnable(step="ship", attempt=2)), scheduled(step="ship", attempt=2))
    run = seen_by(dispatch, CommandTarget(RUN, dead_letters=True))
    assert [attempt.runnable_key for attempt in run.dead_letters] == [key()]


def test_nothing_is_written_and_nothing_is_remembered_of_a_command_that_is_refused(dispatch: DispatchFixture) -> None:
    start(dispatch, RUN)
    before = dispatch.entries()

    def refuse(runs: Mapping[str, CommandedRun], now: datetime) -> Sequence[Fact]:
        runs[RUN].state.add_fact(terminal())
        raise InvalidTransition("no")

    with pytest.raises(InvalidTransition):
        dispatch.store.command([CommandTarget(RUN)], refuse)
    assert dispatch.entries() == before
    assert not seen_by(dispatch, CommandTarget(RUN)).state.terminal


@pytest.mark.parametrize("folds", [False, True])
def test_what_a_command_writes_is_known_to_the_next_one_whether_or_not_it_folds_that(
    dispatch: DispatchFixture, folds: bool
) -> None:
    start(dispatch, RUN)
    fact = planned(runnable(step="ship"))

    def decision(runs: Mapping[str, CommandedRun], now: datetime) -> Sequence[Fact]:
        if folds:
            runs[RUN].state.add_fact(fact)
        return [signal(signal_type="approve_run"), fact]

    dispatch.store.command([CommandTarget(RUN)], decision)
    run = seen_by(dispatch, CommandTarget(RUN))
    assert_same_state(run.state, RunUnit.fold(dispatch.storage.read_run(RUN)).run)
    # and to the next settlement
    plan = Planner()
    assert dispatch.store.settle([done(one(dispatch))], plan)[0].unwrap().status == "completed"
    assert set(plan.asked[-1].run.planned) >= {key(step="ship")}


def test_several_runs_are_seen_and_written_at_once(dispatch: DispatchFixture) -> None:
    start(dispatch, "run-1", "run-2")

    def end_both(runs: Mapping[str, CommandedRun], now: datetime) -> Sequence[Fact]:
        return [terminal(run_id, status="cancelled") for run_id in runs]

    dispatch.store.command([CommandTarget("run-1"), CommandTarget("run-2")], end_both)
    for run_id in ("run-1", "run-2"):
        assert seen_by(dispatch, CommandTarget(run_id)).state.terminal_status == "cancelled"


def test_a_command_that_was_changed_behind_our_back_is_not_the_first(postgres_dispatch: DispatchFixture) -> None:
    storage = postgres_dispatch.storage
    assert isinstance(storage, PostgresStorage)
    for at in (1, 2):
        postgres_dispatch.put(signal(at=at, signal_type="approve_run", idempotency_key="k"))
    postgres_dispatch.put(started())
    with raw(storage) as connection:
        connection.execute("ALTER TABLE journal_entries DISABLE TRIGGER ALL")
        connection.execute("UPDATE journal_entries SET occurred_at = now() WHERE seq = 1")
    first = seen_by(postgres_dispatch, CommandTarget(RUN, signal=SignalKey("approve_run", "k"))).first
    assert first is not None
    assert first.occurred_at.second == 2
