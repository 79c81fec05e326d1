"""Both versions of dispatch agree on any sequence of operations, and so do journal and views under load."""

from collections.abc import Collection, Sequence
from functools import partial
from itertools import count, pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Claim, DispatchStore, NextAttempt, PlanRequest, Suspects
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.fold_store.dispatch_store import FoldDispatchStore
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.dispatch.dispatch_store import PostgresDispatchStore
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import Fact, RunUnit, definition_key, run_thread
from squid_dagster.protocol.folds.attempt import Suspicion
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection
from tests.facts import (
    QUEUE,
    T0,
    applied,
    fenced,
    key,
    planned,
    quarantined,
    queue_paused,
    queue_resumed,
    runnable,
    scheduled,
    started,
    terminal,
)
from tests.journal.access import WITHOUT_SHRINKING, assert_views_agree_with_the_journal, at_once, facts_of, put
from tests.journal.dispatch_fixture import DispatchFixture, broke, done, seconds

_numbers = count(1)

_MOVES = (
    *("schedule",) * 4,
    *("claim",) * 6,
    *("complete",) * 3,
    "complete and plan",
    "complete and plan",
    *("fail",) * 2,
    "retry",
    "retry",
    "heartbeat",
    "heartbeat",
    "release",
    "dead letter",
    *("wait",) * 5,
    "pause",
    "resume",
    "resume",
    "end",
    "fence",
    "quarantine",
    "look",
)
_moves = st.lists(
    st.tuples(st.sampled_from(_MOVES), st.integers(0, 999), st.integers(0, 999)), min_size=18, max_size=40
)


class StoreDriver:
    """One dispatch store, driven by moves that mean the same on every other store."""

    def __init__(self, storage: Storage, store: DispatchStore, clock: VirtualClock, name: str) -> None:
        self.dispatch, self.clock, self.name = DispatchFixture(storage, store, clock), clock, name
        self.claims: list[Claim] = []
        self.runs = [f"{name}-{n}" for n in range(3)]
        self.visits = dict.fromkeys(self.runs, 0)
        self.ended: set[str] = set()

    @property
    def at(self) -> float:
        return (self.clock.now() - T0).total_seconds()

    def move(self, kind: str, a: int, b: int) -> Any:
        """Execute one move, and return its result without what differs by chance."""
        run = self.runs[a % 3]
        held = self.claims[-1 - a % min(4, len(self.claims))] if self.claims else None
        match kind:
            case "schedule" if run not in self.ended:
                return self._schedule(run, b)
            case "claim":
                return self._claim(a, b)
            case "wait":
                self.clock.advance(seconds((0, 1, 10, 30, 31, 30, -5, -20)[a % 8]))
            case "pause" | "resume":
                pause = queue_paused if kind == "pause" else queue_resumed
                self.dispatch.put(pause(self.name, at=self.at))
            case "end" | "fence" | "quarantine" if b % 3 == 0 and run not in self.ended and self.visits[run]:
                self._stop(kind, run)
            case "dead letter":
                return self.dispatch.store.dead_letter_expired(self.name)
            case "look":
                known = [None, [definition_key("billing", "f1")]][b % 2]
                looks = (self.dispatch.store.visible, self.dispatch.store.expired)
                return [[x.runnable_key for x in look(self.name, 1 + a, definitions=known)] for look in looks]
            case _ if held is not None:
                return self._act(kind, held, a, b)
        return None

    def _schedule(self, run: str, b: int) -> None:
        self.visits[run] += 1
        options: dict[str, Any] = {
            "visit": self.visits[run],
            "visible_at": self.clock.now() + seconds((0, 0, 0, 20)[b % 4]),
            "priority": (0, 0, 5, -5)[b % 4],
            "max_deliveries": (1, 1, 2, 5)[b % 4],
            "queue": self.name,
        }
        work_fact = scheduled(run, at=self.at, definition_fingerprint=("f1", "f2")[b % 2], **options)
        self.dispatch.put(planned(runnable(run, **options), run=run, at=self.at), work_fact)

    def _stop(self, kind: str, run: str) -> None:
        facts: dict[str, list[Fact]] = {
            "end": [fenced(run, at=self.at, queue=self.name), terminal(run, at=self.at)],
            "fence": [fenced(run, at=self.at, queue=self.name)],
            "quarantine": [quarantined(run, at=self.at)],
        }
        self.dispatch.put(*facts[kind])
        if kind != "quarantine":
            self.ended.add(run)

    def _claim(self, a: int, b: int) -> Any:
        known = [None, None, [definition_key("billing", "f1")], []][b % 4]
        suspects = [None, *(Suspects(worst, alone=b % 2 == 0) for worst in Suspicion)][b % 5 % 4]
        claims = self.dispatch.store.claim(
            self.name, "w", limit=1 + a % 3, lease=seconds((10, 30)[b % 2]), definitions=known, suspects=suspects
        )
        self.claims += claims
        shown = [
            (c.attempt.runnable_key, c.attempt.deliveries, c.attempt.fencing_token, c.lease_until, c.attempt.input)
            for c in claims
        ]
        return shown, suspects

    def _act(self, kind: str, held: Claim, a: int, b: int) -> Any:
        store = self.dispatch.store
        group = list({c.ref.runnable_key: c for c in [held, *self.claims[-1 - b % 3 :]]}.values())
        match kind:
            case "complete":
                answers = store.settle([done(c, {"n": b % 2}) for c in group])
            case "complete and plan":
                # In a group, what takes the fast way is written first, and so what follows from it comes first. A store
                # that has not claimed takes the general one.
                settles = store if len(group) == 1 else type(store)(self.dispatch.storage)  # type: ignore[call-arg]
                answers = settles.settle([done(c) for c in group], self._plan)
                self._look_at({c.ref.run_id for c in group})
            case "fail":
                answers = store.settle([broke(c) for c in group])
            case "retry":
                answers = store.settle([broke(c, self._retry(c, b)) for c in group])
            case "heartbeat":
                answers = store.heartbeat([c.ref for c in group], seconds((5, 30)[b % 2]))
            case "release":
                answers = store.release([c.ref for c in group])
            case _:
                return None
        return [
            type(answer.error).__name__
            if answer.attempt is None or answer.error
            else (
                answer.attempt.runnable_key,
                answer.attempt.status,
                answer.attempt.deliveries,
                answer.attempt.fencing_token,
                answer.attempt.settled_at or answer.attempt.lease_until,
            )
            for answer in answers
        ]

    def _look_at(self, runs: Collection[str]) -> None:
        """Collect what was planned and is written; a planner may be asked for other plans, too."""
        for run in runs:
            state = RunProjection.fold(self.dispatch.storage.read(run_thread(run)))
            self.visits[run] = max(self.visits[run], PlanState.of(state).visits("charge"))
            self.ended |= {run} if state.terminal else set()

    def _retry(self, c: Claim, b: int) -> NextAttempt:
        run, step, visit, number = c.ref.runnable_key.split(":")
        return NextAttempt(key(run, step, int(number) + 1, int(visit)), seconds((0, 15)[b % 2]))

    def _plan(self, request: PlanRequest) -> Sequence[Fact]:
        run, state = request.run_id, request.run
        if state.applied_visits >= 3:
            return [fenced(run, at=self.at, queue=self.name), terminal(run, at=self.at)]
        facts: list[Fact] = [
            applied(run, runnable_key=a.runnable_key, at=self.at)
            for a in request.settled
            if a.runnable_key in state.planned
        ]
        visit = state.visits("charge") + 1
        follow: dict[str, Any] = {"visit": visit, "visible_at": request.now, "queue": self.name}
        facts.append(planned(runnable(run, **follow), run=run, at=self.at))
        facts.append(scheduled(run, at=self.at, **follow))
        return facts


@given(moves=_moves)
@settings(max_examples=110, phases=WITHOUT_SHRINKING)
def test_statement_and_fold_agree_on_any_sequence_of_operations(
    postgres_shared: PostgresStorage, moves: list[tuple[str, int, int]]
) -> None:
    # given the same moves on the set-based store in Postgres and on the fold in memory
    name = f"agree{next(_numbers)}"
    clocks = VirtualClock(T0), VirtualClock(T0)
    postgres_shared.clock = clocks[0]
    memory = MemoryStorage(clocks[1])
    statement = StoreDriver(postgres_shared, PostgresDispatchStore(postgres_shared), clocks[0], name)
    fold = StoreDriver(memory, FoldDispatchStore(memory), clocks[1], name)
    for number, move in enumerate(moves):
        # when both make each move, then the same comes of it
        assert statement.move(*move) == fold.move(*move), f"move {number}, {move}, of {moves}"
    for run in statement.runs:
        mine, theirs = (driver.dispatch.storage.read_run(run) for driver in (statement, fold))
        # and both wrote the same facts, but for ids and hashes, without an anomaly
        assert [_comparable(f) for f in facts_of(mine)] == [_comparable(f) for f in facts_of(theirs)]
        assert RunUnit.fold(mine).anomalies == []
    # and the rows of the views are what the fold gives
    touched = [run for run in statement.runs if postgres_shared.read_run(run)]
    assert_views_agree_with_the_journal(postgres_shared, touched)


def _comparable(fact: Any) -> Any:
    return fact.model_dump(exclude={"claim_id", "claim_token_hash"})


def test_workers_at_full_speed_leave_no_anomaly_and_views_that_agree(postgres: PostgresStorage) -> None:
    # given twelve runs of three visits each, and four workers, one of which loses every second claim
    store = PostgresDispatchStore(postgres)
    runs = [f"run-{n}" for n in range(12)]
    for run in runs:
        put(postgres, started(run), planned(run=run), scheduled(run))

    def plan(request: PlanRequest) -> Sequence[Fact]:
        (attempt,) = request.settled
        visit = int(attempt.runnable_key.split(":")[2])
        at = (request.now - T0).total_seconds()
        facts: list[Fact] = [applied(request.run_id, visit=visit, at=at)]
        if visit == 3:
            return [*facts, terminal(request.run_id, at=at)]
        follow: dict[str, Any] = {"visit": visit + 1, "visible_at": request.now}
        facts.append(planned(runnable(request.run_id, **follow), run=request.run_id, at=at))
        return [*facts, scheduled(request.run_id, at=at, **follow)]

    def ended() -> bool:
        return all(f"{run}:charge:3:1" in RunUnit.fold(postgres.read_run(run)).run.applied for run in runs)

    def labour(number: int) -> None:
        turn = 0
        while True:
            claims = store.claim(QUEUE, f"worker-{number}", limit=2)
            turn += 1
            if claims and number == 0 and turn % 2:
                store.release([c.ref for c in claims])
            elif claims:
                for answer in store.settle([done(c) for c in claims], plan):
                    answer.unwrap()
            elif ended():
                return

    # when all work until everything is done
    at_once([partial(labour, n) for n in range(4)])
    # then every run has ended, nothing was done twice, and rows and journal agree
    for run in runs:
        unit = RunUnit.fold(postgres.read_run(run))
        assert (unit.run.status, unit.run.applied_visits, unit.anomalies) == ("completed", 3, [])
        facts = facts_of(postgres.read(run_thread(run)))
        assert [f.type for f in facts].count("runnable_applied") == 3
        assert all(before.position < after.position for before, after in pairwise(postgres.read_run(run)))
    assert_views_agree_with_the_journal(postgres)
