"""Example facts, and ways to write and read them, for the storage contract and the tests of this repository.

Builders count time in seconds after `T0`. Those about an attempt take its `attempt` and `visit`, 1 by default; every
other keyword is a field of the fact. What facts mean is for tests to say.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pydantic import JsonValue

from squid_dagster.journal.contract.storage import Append, Storage
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.facts import (
    AttemptClaimed,
    AttemptCompleted,
    AttemptScheduled,
    ChildRunStarted,
    Fact,
    Origin,
    QueuePaused,
    RunCataloged,
    RunIndexed,
    Runnable,
    RunnablesPlanned,
    RunQueued,
    RunSignalReceived,
    RunStarted,
    RunTerminal,
)
from squid_dagster.protocol.threads import dispatch_thread, idempotency_key, run_thread, runnable_key

T = TypeVar("T")

T0 = datetime(2026, 1, 1, tzinfo=UTC)
RUN, STEP, QUEUE, WORKFLOW = "run-1", "charge", "default", "billing"
THREAD, QUEUE_THREAD = run_thread(RUN), dispatch_thread(QUEUE)
OTHER, OTHER_THREAD = "run-2", run_thread("run-2")

AWKWARD: dict[str, JsonValue] = {
    "big": 10**30,
    "negative": -(2**63) - 1,
    "huge": 1e300,
    "tiny": 5e-324,
    "whole": 1.0,
    "minus zero": -0.0,
    "text": "ü 🦑 \u2028 \\u0000 \\ \" ' \t\n %s {schema} $1",
    "nothing": None,
    "nested": [{"": [[], {}, [None, True, False]]}],
    "Schlüssel 🦑": "ключ",
}
"""Values that a careless storage changes on the way."""

EVERYTHING = 2**62
"""A position beyond all others."""


def t(seconds: float) -> datetime:
    """Return the time so many seconds after `T0`."""
    return T0 + timedelta(seconds=seconds)


def token_hash(claim: str) -> str:
    """Return the hash of the token that belongs to a claim id."""
    return hashlib.sha256(claim.encode()).hexdigest()


def key(run: str = RUN, step: str = STEP, attempt: int = 1, visit: int = 1) -> str:
    """Return a runnable key."""
    return runnable_key(run, step, visit, attempt)


def attempt_fields(run: str, step: str, at: float, attempt: int = 1, visit: int = 1, **fields: Any) -> dict[str, Any]:
    """Return the fields that every fact about an attempt has, and whatever else is given."""
    return {"run_id": run, "runnable_key": runnable_key(run, step, visit, attempt), "occurred_at": t(at), **fields}


def attempt_intent(run: str, step: str, attempt: int, visit: int) -> dict[str, Any]:
    """Return the fields that a planned attempt and a scheduled one share."""
    return {
        "idempotency_key": idempotency_key(run, step, visit),
        "attempt_number": attempt,
        "step": step,
        "input": {"amount": 5},
        "visible_at": t(0),
    }


def fence(claim: str) -> dict[str, Any]:
    """Return the claim id and the hash of its token, as facts of a holder have them."""
    return {"claim_id": claim, "claim_token_hash": token_hash(claim)}


def signal(run: str = RUN, *, at: float = 0, **fields: Any) -> RunSignalReceived:
    """Build a fact: a command reached the run."""
    base = {"run_id": run, "occurred_at": t(at), "signal_type": "start_run", "payload": {}, "metadata": {}}
    return RunSignalReceived(**{**base, **fields})


def started(run: str = RUN, *, at: float = 0, **fields: Any) -> RunStarted:
    """Build a fact: the run exists."""
    return RunStarted(**{"run_id": run, "occurred_at": t(at), "workflow": WORKFLOW, "queue": QUEUE, **fields})


def runnable(run: str = RUN, step: str = STEP, *, attempt: int = 1, visit: int = 1, **fields: Any) -> Runnable:
    """Build one planned attempt; `scheduled` with the same arguments has the same intent."""
    named = {"run_id": run, "runnable_key": runnable_key(run, step, visit, attempt)}
    return Runnable(**{**named, **attempt_intent(run, step, attempt, visit), **fields})


def planned(*runnables: Runnable, run: str = RUN, at: float = 0, **fields: Any) -> RunnablesPlanned:
    """Build a fact: work was decided on; by default the first attempt at `charge`."""
    base = {"run_id": run, "occurred_at": t(at), "runnables": list(runnables) or [runnable(run)]}
    return RunnablesPlanned(**{**base, **fields})


def child(run: str = RUN, *, at: float = 20, child_run_id: str = "child-1", **fields: Any) -> ChildRunStarted:
    """Build a fact: the run links a child."""
    base = {
        "run_id": run,
        "occurred_at": t(at),
        "child_run_id": child_run_id,
        "child_workflow": "refund",
        "child_trigger": "api",
        "child_key": "refund-1",
        "origin": Origin(runnable_key=key(run), step=STEP, attempt=1),
    }
    return ChildRunStarted(**{**base, **fields})


def queued(run: str = RUN, *, at: float = 0, **fields: Any) -> RunQueued:
    """Build a fact: the run's work goes through the queue."""
    return RunQueued(**{"run_id": run, "occurred_at": t(at), **fields})


def scheduled(
    run: str = RUN, step: str = STEP, *, attempt: int = 1, visit: int = 1, at: float = 0, **fields: Any
) -> AttemptScheduled:
    """Build a fact: an attempt may be claimed from `T0` on."""
    intent = {**attempt_intent(run, step, attempt, visit), "workflow": WORKFLOW}
    return AttemptScheduled(**{**intent, **attempt_fields(run, step, at, attempt, visit, **fields)})


def claimed(
    run: str = RUN, step: str = STEP, *, at: float = 10, claim: str = "a", lease: float = 60, **fields: Any
) -> AttemptClaimed:
    """Build a fact: a worker holds the attempt for `lease` seconds."""
    base = {**fence(claim), "owner_id": f"worker-{claim}", "lease_until": t(at + lease)}
    return AttemptClaimed(**{**base, **attempt_fields(run, step, at, **fields)})


def completed(run: str = RUN, step: str = STEP, *, at: float = 30, claim: str = "a", **fields: Any) -> AttemptCompleted:
    """Build a fact: the holder of the attempt succeeded."""
    return AttemptCompleted(**{**fence(claim), "result": {"ok": True}, **attempt_fields(run, step, at, **fields)})


def terminal(run: str = RUN, *, at: float = 50, **fields: Any) -> RunTerminal:
    """Build a fact: the run completed, unless `status` says otherwise."""
    return RunTerminal(**{"run_id": run, "occurred_at": t(at), "status": "completed", **fields})


def queue_paused(queue: str = QUEUE, *, at: float = 5, **fields: Any) -> QueuePaused:
    """Build a fact: the queue gives no claims."""
    return QueuePaused(**{"queue": queue, "occurred_at": t(at), **fields})


def indexed(run: str = RUN, *, at: float = 0, workflow: str = WORKFLOW, **fields: Any) -> RunIndexed:
    """Build a fact: the run can be found under its workflow."""
    return RunIndexed(**{"run_id": run, "occurred_at": t(at), "workflow": workflow, "queue": QUEUE, **fields})


def cataloged(run: str = RUN, *, at: float = 0, workflow: str = WORKFLOW, **fields: Any) -> RunCataloged:
    """Build a fact: the run can be found among all."""
    return RunCataloged(**{"run_id": run, "occurred_at": t(at), "workflow": workflow, "queue": QUEUE, **fields})


def with_fields(fact: Fact, **fields: Any) -> Fact:
    """Return the fact with some fields replaced or added, validated anew."""
    changed: Fact = type(fact).model_validate({**dict(fact), **(fact.__pydantic_extra__ or {}), **fields})
    return changed


EXAMPLE_FACTS: tuple[Fact, ...] = (
    signal(),
    started(),
    planned(),
    child(),
    queued(),
    scheduled(),
    claimed(),
    completed(),
    terminal(),
    queue_paused(),
    indexed(),
    cataloged(),
)
"""Facts of many types, on every kind of thread but that of the backlog, in an order that a run could write."""


def all_entries(storage: Storage) -> list[Entry]:
    """Return all entries of a journal, by position."""
    return storage.read_between(0, EVERYTHING)


def facts_of(entries: Sequence[Entry]) -> list[Any]:
    """Return the facts of entries."""
    return [entry.fact for entry in entries]


def put(storage: Storage, *facts: Fact) -> None:
    """Write facts in one commit, grouped by thread in the order in which threads appear."""
    by_thread: dict[str, list[Fact]] = {}
    for fact in facts:
        by_thread.setdefault(fact.thread, []).append(fact)
    storage.commit([Append(thread, of_thread) for thread, of_thread in by_thread.items()])


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Run all calls at the same time, each in a thread of its own; raise what the first of them raised."""
    barrier = threading.Barrier(len(calls))

    def call(one: Callable[[], T]) -> T:
        barrier.wait(30)
        return one()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(60) for future in [pool.submit(call, one) for one in calls]]
