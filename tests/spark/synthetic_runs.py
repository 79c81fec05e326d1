"""Synthetic runs: the facts that they write, commit by commit. Pure: the same seed gives the same facts.

A moment is what one commit holds of a run. The queue's facts come before the run's own in it, as they do in a commit,
so that a run's end does not fence what it ends with.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from random import Random
from typing import Any

from squid_dagster.protocol import (
    AttemptClaimed,
    AttemptCompleted,
    AttemptFailed,
    AttemptScheduled,
    ChildRunStarted,
    Fact,
    ManualStepPaused,
    ManualStepResolved,
    Origin,
    RunCataloged,
    RunIndexed,
    Runnable,
    RunnableApplied,
    RunnablesPlanned,
    RunQueued,
    RunSignalReceived,
    RunStarted,
    RunTerminal,
    idempotency_key,
    runnable_key,
)
from squid_dagster.protocol.errors import InvalidArgument

Moment = list[Fact]

_LEASE = timedelta(seconds=60)
_REVIEW = "review"


@dataclass(frozen=True, slots=True)
class EventRates:
    """How often what happens, each from 0 to 1: of steps the first two, of runs the others."""

    retries: float = 0.10  # the first attempt fails, the second one succeeds
    expiries: float = 0.05  # the first holder goes quiet, another one takes over
    approvals: float = 0.05
    children: float = 0.05
    anomalies: float = 0.01  # one fact that the fold refuses
    unfinished: float = 0.02  # the last step is claimed and never settled

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for a share that is none."""
        for one in fields(self):
            if not 0 <= getattr(self, one.name) <= 1:
                raise InvalidArgument(f"{one.name} is {getattr(self, one.name)!r}: give a share from 0 to 1")


@dataclass(slots=True)
class SyntheticRun:
    """One run's facts by moment, and what happened in it."""

    run_id: str
    moments: list[Moment] = field(default_factory=list)
    retries: int = 0
    expiries: int = 0
    approvals: int = 0
    children: int = 0
    anomalies: int = 0
    unfinished: int = 0


def make_run(
    run_id: str, *, random: Random, mix: EventRates, start: datetime, workflow: str, queue: str, steps: int
) -> Iterator[SyntheticRun]:
    """Yield a run that starts then, and then its children."""
    maker = _Maker(SyntheticRun(run_id), random, start, workflow, queue)
    child = f"{run_id}-child" if random.random() < mix.children else None
    approval = random.random() < mix.approvals
    maker.begin(parent=None)
    for number in range(1, steps + 1):
        last = number == steps
        if last and random.random() < mix.unfinished:
            maker.leave_open(f"step{number}")
            break
        maker.step(
            f"step{number}",
            fails=random.random() < mix.retries,
            expires=random.random() < mix.expiries,
            child=child if number == 1 else None,
            approval=approval and number == 1,
            then=None if last else f"step{number + 1}",
        )
    if random.random() < mix.anomalies:
        maker.odd()
    yield maker.synthetic_run
    if child is not None:
        born = _Maker(SyntheticRun(child), random, start + timedelta(seconds=5), workflow, queue)
        born.begin(parent=run_id)
        born.step("step1", fails=False, expires=False, child=None, approval=False, then=None)
        yield born.synthetic_run


class _Maker:
    """The builder of one run, with a clock of its own that only moves forward."""

    def __init__(self, synthetic_run: SyntheticRun, random: Random, start: datetime, workflow: str, queue: str) -> None:
        self.synthetic_run = synthetic_run
        self._random = random
        self._now = start
        self._workflow = workflow
        self._queue = queue
        self._claims = 0
        self._fence: dict[str, Any] = {}

    def begin(self, parent: str | None) -> None:
        """Start the run and schedule its first step."""
        context: dict[str, Any] = {"parent": {"run_id": parent}} if parent else {}
        listed = {**self._run(), "workflow": self._workflow, "queue": self._queue}
        self.synthetic_run.moments.append(
            [
                RunQueued(**self._run(), queue=self._queue),
                self._scheduled("step1", 1),
                RunSignalReceived(**self._run(), signal_type="start_run", payload={}, metadata={}),
                RunStarted(**listed, trigger="synthetic", input=self._payload(), context=context),
                RunnablesPlanned(**self._run(), runnables=[self._runnable("step1", 1)]),
                RunIndexed(**listed),
                RunCataloged(**listed),
            ]
        )

    def step(
        self, step: str, *, fails: bool, expires: bool, child: str | None, approval: bool, then: str | None
    ) -> None:
        """Append the facts of a step that is claimed and completed, with those in between."""
        attempt = 1
        self._claim(step, attempt)
        if expires:
            self._tick(_LEASE + timedelta(seconds=self._random.randint(1, 30)))
            self._claim(step, attempt)
            self.synthetic_run.expiries += 1
        if fails:
            self._fail(step)
            attempt = 2
            self._claim(step, attempt)
            self.synthetic_run.retries += 1
        self._complete(step, attempt, child, approval, then)

    def leave_open(self, step: str) -> None:
        """Append the claim of a step, and nothing after it."""
        self._claim(step, 1)
        self.synthetic_run.unfinished += 1

    def odd(self) -> None:
        """Write one fact that the fold refuses: a zombie's completion, or another start or place for the run."""
        self._tick()
        run = self._run()
        choices: list[Fact] = [
            AttemptCompleted(
                **self._about("step1", 1), claim_id="zombie", claim_token_hash=_hash("zombie"), result={"late": True}
            ),
            RunStarted(**run, workflow=f"{self._workflow}-other"),
            RunIndexed(**run, workflow=f"{self._workflow}-other", queue=self._queue),
            RunCataloged(**run, workflow=f"{self._workflow}-other", queue=self._queue),
        ]
        self.synthetic_run.moments.append([self._random.choice(choices)])
        self.synthetic_run.anomalies += 1

    def _claim(self, step: str, attempt: int) -> None:
        self._tick()
        self._claims += 1
        claim = f"{self.synthetic_run.run_id}-claim-{self._claims}"
        self._fence = {"claim_id": claim, "claim_token_hash": _hash(claim)}
        owner = f"worker-{self._random.randint(1, 8)}"
        about = self._about(step, attempt)
        self.synthetic_run.moments.append(
            [AttemptClaimed(**about, **self._fence, owner_id=owner, lease_until=self._now + _LEASE)]
        )

    def _fail(self, step: str) -> None:
        self._tick()
        again: dict[str, Any] = {
            "retry_runnable_key": runnable_key(self.synthetic_run.run_id, step, 1, 2),
            "retry_visible_at": self._now,
        }
        self.synthetic_run.moments.append(
            [
                AttemptFailed(**self._about(step, 1), **self._fence, error={"message": "declined"}, **again),
                RunnablesPlanned(**self._run(), runnables=[self._runnable(step, 2)]),
            ]
        )

    def _complete(self, step: str, attempt: int, child: str | None, approval: bool, then: str | None) -> None:
        self._tick()
        about, result = self._about(step, attempt), self._payload()
        moment: Moment = [AttemptCompleted(**about, **self._fence, result=result)]
        own: Moment = [RunnableApplied(**self._run(), runnable_key=about["runnable_key"], result=result)]
        if child is not None:
            own.append(self._child(child, step, about["runnable_key"], attempt))
        if approval:
            own.append(ManualStepPaused(**self._run(), step=_REVIEW, kind="approval"))
            self.synthetic_run.moments.append([*moment, *own])
            self._tick()
            moment, own = [], [ManualStepResolved(**self._run(), step=_REVIEW, action="approved")]
            self.synthetic_run.approvals += 1
        if then is not None:
            moment.append(self._scheduled(then, 1))
            own.append(RunnablesPlanned(**self._run(), runnables=[self._runnable(then, 1)]))
        else:
            own.append(RunTerminal(**self._run(), status="completed"))
        self.synthetic_run.moments.append([*moment, *own])

    def _child(self, child: str, step: str, key: str, attempt: int) -> ChildRunStarted:
        self.synthetic_run.children += 1
        return ChildRunStarted(
            **self._run(),
            child_run_id=child,
            child_workflow=self._workflow,
            child_trigger="synthetic",
            child_key=child,
            origin=Origin(runnable_key=key, step=step, attempt=attempt),
        )

    def _tick(self, by: timedelta | None = None) -> None:
        self._now += by or timedelta(milliseconds=self._random.randint(5, 5_000))

    def _run(self) -> dict[str, Any]:
        return {"run_id": self.synthetic_run.run_id, "occurred_at": self._now}

    def _about(self, step: str, attempt: int) -> dict[str, Any]:
        return {
            **self._run(),
            "queue": self._queue,
            "runnable_key": runnable_key(self.synthetic_run.run_id, step, 1, attempt),
        }

    def _intent(self, step: str, attempt: int) -> dict[str, Any]:
        key = {"idempotency_key": idempotency_key(self.synthetic_run.run_id, step, 1), "attempt_number": attempt}
        return {**key, "step": step, "input": {"step": step}, "visible_at": self._now}

    def _scheduled(self, step: str, attempt: int) -> AttemptScheduled:
        return AttemptScheduled(**self._about(step, attempt), **self._intent(step, attempt), workflow=self._workflow)

    def _runnable(self, step: str, attempt: int) -> Runnable:
        key = runnable_key(self.synthetic_run.run_id, step, 1, attempt)
        named: dict[str, Any] = {"run_id": self.synthetic_run.run_id, "runnable_key": key, "queue": self._queue}
        return Runnable(**named, **self._intent(step, attempt))

    def _payload(self) -> dict[str, Any]:
        return {"order": self._random.randint(1, 10**6), "amount": self._random.randint(1, 10**4) / 100}


def _hash(claim: str) -> str:
    return hashlib.sha256(claim.encode()).hexdigest()
