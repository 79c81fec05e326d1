"""What the suites of dispatch share: a dispatch store, what a worker calls, and a planner."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import (
    Answer,
    Claim,
    ClaimRef,
    Completed,
    DispatchStore,
    Failed,
    NextAttempt,
    PlanRequest,
    Settlement,
)
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import AttemptScheduled, Fact, RunUnit
from squid_dagster.protocol.errors import SquidError
from tests.facts import QUEUE, RUN, T0, applied, fenced, planned, queued, runnable, scheduled, started, terminal
from tests.journal.access import all_entries, assert_views_agree_with_the_journal, put


@dataclass
class DispatchFixture:
    """A dispatch store, the storage under it and the clock of both."""

    storage: Storage
    store: DispatchStore
    clock: VirtualClock

    def put(self, *facts: Fact) -> None:
        """Write facts past the store, as other processes would."""
        put(self.storage, *facts)

    def wait(self, seconds: float) -> None:
        """Advance the clock."""
        self.clock.advance(timedelta(seconds=seconds))

    def entries(self) -> int:
        """Return how many entries the journal has."""
        return len(all_entries(self.storage))


def work(run: str, *, step: str = "charge", **fields: Any) -> AttemptScheduled:
    """Return an attempt of a run of its own, due at once."""
    return scheduled(run, step, **fields)


def seconds(number: float) -> timedelta:
    """Return that many seconds."""
    return timedelta(seconds=number)


def other_token(ref: ClaimRef) -> ClaimRef:
    """Return the same claim with a wrong token."""
    return ClaimRef(ref.queue, ref.run_id, ref.runnable_key, ref.claim_id, "guessed")


def other_claim(ref: ClaimRef) -> ClaimRef:
    """Return the same token with the id of another claim."""
    return ClaimRef(ref.queue, ref.run_id, ref.runnable_key, "another", ref.token)


MINUTE = seconds(60)


def claim(dispatch: DispatchFixture, limit: int = 1, lease: timedelta = MINUTE, **options: Any) -> list[Claim]:
    """Claim from the queue as any worker would."""
    return dispatch.store.claim(QUEUE, "worker-1", limit=limit, lease=lease, **options)


def one(dispatch: DispatchFixture, lease: timedelta = MINUTE) -> Claim:
    """Claim the one attempt that is due."""
    (claimed,) = claim(dispatch, lease=lease)
    return claimed


def keys(claims: Sequence[Claim]) -> list[str]:
    """Return the runs that were claimed, in order."""
    return [c.attempt.run_id for c in claims]


def done(c: Claim, result: Any = None) -> Settlement:
    """Return a settlement: the step of this claim succeeded."""
    return Settlement(c.ref, Completed({"ok": True} if result is None else result))


def broke(c: Claim, retry: NextAttempt | None = None) -> Settlement:
    """Return a settlement: the step of this claim failed."""
    return Settlement(c.ref, Failed({"message": "declined"}, retry))


def refused(answer: Answer, kind: type[SquidError]) -> None:
    """Assert that the member was refused for this reason."""
    assert type(answer.error) is kind
    with pytest.raises(kind):
        answer.unwrap()


def refused_everything(dispatch: DispatchFixture, c: Claim, kind: type[SquidError]) -> None:
    """Assert that this claim can neither be settled, extended nor released, for this reason."""
    refused(dispatch.store.settle([done(c)])[0], kind)
    refused(dispatch.store.settle([broke(c)])[0], kind)
    refused(dispatch.store.heartbeat([c.ref])[0], kind)
    refused(dispatch.store.release([c.ref])[0], kind)


def statuses(dispatch: DispatchFixture, run: str = RUN) -> dict[str, str]:
    """Return the status of each attempt of a run; assert that there is no anomaly, and that the views agree."""
    unit = RunUnit.fold(dispatch.storage.read_run(run))
    assert unit.anomalies == []
    if isinstance(dispatch.storage, PostgresStorage):
        assert_views_agree_with_the_journal(dispatch.storage, [run])
    return {k: attempt.status.value for k, attempt in unit.dispatch.attempts.items()}


class Planner:
    """Applies what was settled, plans one more visit of the step, and records its requests."""

    def __init__(self, last_visit: int = 99) -> None:
        self.asked: list[PlanRequest] = []
        self._last_visit = last_visit

    def __call__(self, request: PlanRequest) -> list[Fact]:
        run = request.run
        self.asked.append(replace(request, run=run.copy()))  # a copy: the store folds on
        at = (request.now - T0).total_seconds()
        facts: list[Fact] = []
        for attempt in request.settled:
            if run.is_closed(attempt.runnable_key, attempt.idempotency_key, attempt.step):
                continue
            visit = int(attempt.runnable_key.split(":")[2])
            facts.append(
                applied(request.run_id, attempt.step, visit=visit, attempt=attempt.attempt_number, at=at, result=None)
            )
            if visit >= self._last_visit:
                facts += [fenced(request.run_id, at=at), terminal(request.run_id, at=at)]
            else:
                follow: dict[str, Any] = {"visit": visit + 1, "visible_at": request.now}
                facts.append(planned(runnable(request.run_id, **follow), run=request.run_id, at=at))
                facts.append(scheduled(request.run_id, at=at, **follow))
        return facts


def start(dispatch: DispatchFixture, *runs: str) -> None:
    """Start runs with their first attempt planned and scheduled."""
    for run in runs:
        dispatch.put(started(run), queued(run), planned(run=run), scheduled(run))
