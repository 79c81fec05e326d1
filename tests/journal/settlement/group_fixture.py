"""Groups of settlements whose members are of every kind, and other sessions that lock their rows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from squid_dagster.journal.contract.dispatch_store import (
    Answer,
    Claim,
    ClaimRef,
    Completed,
    Deferred,
    Failed,
    Interrupted,
    NextAttempt,
    Outcome,
    PlanRequest,
    Settlement,
)
from squid_dagster.journal.postgres.dispatch.dispatch_store import PostgresDispatchStore
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import Fact, RunUnit
from squid_dagster.protocol.errors import TerminalRun
from tests.facts import fenced, key, planned, quarantined, runnable, scheduled, terminal
from tests.journal.access import raw
from tests.journal.dispatch_fixture import MINUTE, DispatchFixture, Planner, claim, other_token, seconds, start

SMALL = 3_000  # bytes that a fact may have in these tests


class BadPlanner(Planner):
    """A planner that raises, or plans what cannot be written, for runs with such names."""

    def __call__(self, request: PlanRequest) -> list[Fact]:
        if "defect" in request.run_id:
            raise ZeroDivisionError("in the planner, of postgresql://bob:hunter2@db/x")
        if "held" in request.run_id:
            raise TerminalRun("whatever error of ours")
        if "nofact" in request.run_id:
            return ["a text"]  # type: ignore[list-item]
        facts = super().__call__(request)
        if "greedy" in request.run_id:
            huge = runnable(request.run_id, "huge", input={"x": "x" * SMALL}, visible_at=request.now)
            return [*facts, planned(huge, run=request.run_id, at=0).model_copy(update={"occurred_at": request.now})]
        return facts


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@dataclass
class GroupFixture:
    """A dispatch store with runs of every kind on it, each with a claim."""

    dispatch: DispatchFixture
    claims: dict[str, Claim]

    @classmethod
    def of(cls, dispatch: DispatchFixture, names: Sequence[str]) -> "GroupFixture":
        """Start a run for each name and claim all of them; then spoil those whose names say so."""
        dispatch.storage.max_fact_bytes = SMALL  # type: ignore[misc]
        for name in names:
            start(dispatch, name)
            if "sibling" in name:
                dispatch.put(planned(runnable(name, "twin"), run=name), scheduled(name, "twin"))
        late = {c.attempt.run_id: c for c in claim(dispatch, limit=1000, lease=seconds(1))}
        dispatch.wait(2)
        fresh = claim(dispatch, limit=1000, lease=MINUTE)
        by_step = {(c.attempt.run_id, c.attempt.step): c for c in fresh}
        claims = {name: late[name] if "stale" in name else by_step[name, "charge"] for name in names}
        claims |= {f"{name} twin": c for (name, step), c in by_step.items() if step == "twin"}
        for name in names:
            if "ended" in name:
                dispatch.put(fenced(name, at=10), terminal(name, at=10))
            if "quarantined" in name:
                dispatch.put(quarantined(name, at=10))
        return cls(dispatch, claims)

    def settlements(self, kinds: Sequence[tuple[str, str]]) -> list[Settlement]:
        """Return the settlement of the run of each name, as its kind says."""
        group: list[Settlement] = []
        for name, kind in kinds:
            own = self.claims[name]
            outcome = OUTCOMES[kind]
            if kind == "retried":
                outcome = Failed({"message": "declined"}, NextAttempt(key(name, attempt=2), seconds(1)))
            ref = BAD_REFS[kind](own.ref) if kind in BAD_REFS else own.ref
            group.append(Settlement(ref, outcome))
            if kind == "doubled":
                group.append(group[-1])
            if kind == "zombie":
                stale = ClaimRef(own.ref.queue, own.ref.run_id, own.ref.runnable_key, "an older claim", "its token")
                group.insert(len(group) - 1, Settlement(stale, Completed("of the older delivery")))
            if "sibling" in kind:
                twin = self.claims[f"{name} twin"]
                group.append(Settlement(twin.ref, Completed("of the sibling")))
        return group

    def statuses(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Return the status of every attempt by run, and of the run; assert that there is no anomaly."""
        by_run: dict[str, dict[str, str]] = {}
        for name in names:
            unit = RunUnit.fold(self.dispatch.storage.read_run(name))
            assert unit.anomalies == [], name
            by_run[name] = {k: a.status.value for k, a in unit.dispatch.attempts.items()}
            by_run[name]["applied"] = str(sorted(unit.run.applied))
        return by_run


OUTCOMES: dict[str, Outcome] = {
    "good": Completed({"ok": True}),
    "locked": Completed("of a run that another session holds"),
    "failed": Failed({"message": "declined"}),
    "retried": Failed({}),  # with a key of its own
    "deferred": Deferred("later", seconds(60)),
    "interrupted": Interrupted("the worker stopped"),
    "doubled": Completed("twice"),
    "zombie": Completed("of the newer delivery"),
    "stale": Completed("too late"),
    "wrongtoken": Completed("guessed"),
    "ended": Completed("after the end"),
    "quarantined": Completed("kept"),
    "nul": Completed("\0"),
    "surrogate": Completed("\ud800"),
    "nojson": Completed(object()),
    "nan": Completed(float("nan")),
    "deep": Completed(_nested(5_000)),
    "large": Completed("x" * SMALL),
    "badmessage": Failed({"message": object()}),
    "badretry": Failed({"message": "declined"}, NextAttempt("again", timedelta.max)),
    "badreason": Deferred("\0", seconds(1)),
    "forever": Deferred("never", timedelta.max),
    "defect": Completed("the planner raises"),
    "held": Completed("the planner refuses"),
    "nofact": Completed("the planner gives no fact"),
    "greedy": Completed("the plan is too large"),
    "oddrun": Completed("of a run that cannot be"),
    "oddkey": Completed("of an attempt that cannot be"),
    "unknown": Completed("of a run that is not there"),
    "badsibling": Completed("\0"),
    "sibling": Completed("of two"),
}
BAD_REFS: dict[str, Callable[[ClaimRef], ClaimRef]] = {
    "wrongtoken": other_token,
    "oddrun": lambda ref: ClaimRef(ref.queue, 'a"b\0', ref.runnable_key, ref.claim_id, ref.token),
    "oddkey": lambda ref: ClaimRef(ref.queue, ref.run_id, "x\ud800", ref.claim_id, ref.token),
    "unknown": lambda ref: ClaimRef(ref.queue, "nowhere", "nowhere:charge:1:1", ref.claim_id, ref.token),
}
ALWAYS_WRITTEN = {"good", "failed", "retried", "deferred", "interrupted", "doubled", "zombie", "sibling", "quarantined"}
ALWAYS_WRITTEN |= {"locked"}  # in the end


@contextmanager
def others_hold(dispatch: DispatchFixture, runs: Sequence[str], table: str = "runs") -> Iterator[list[str]]:
    """Lock the rows of runs in another session and yield the runs; none on a storage without locks."""
    if not isinstance(dispatch.store, PostgresDispatchStore) or not isinstance(dispatch.storage, PostgresStorage):
        yield []
        return
    with raw(dispatch.storage, autocommit=False) as connection:
        connection.execute(f"SELECT FROM {table} WHERE run_id = ANY (%s) FOR UPDATE", (list(runs),))
        yield list(runs)


def repeat_unavailable(answers: Sequence[Answer], write: Callable[[list[int]], Sequence[Answer]]) -> list[Answer]:
    """Return the answers; settle those again that were neither written nor refused."""
    left = [i for i, answer in enumerate(answers) if answer.unavailable]
    again = dict(zip(left, write(left), strict=True))
    return [again.get(i, answer) for i, answer in enumerate(answers)]


def errors_of(answers: Sequence[Answer]) -> list[str]:
    return [type(a.error).__name__ if a.error else a.unwrap().status.value for a in answers]
