"""A worker of the demo, in a process of its own: starts payment runs, claims attempts and settles them.

`python -m examples.payments <url> <schema> <name> <seconds>`; it may be killed at any moment.
"""

import sys
import time
from datetime import datetime, timedelta
from itertools import count

from squid_dagster.journal import Append, Completed, PlanRequest, PostgresDispatchStore, PostgresStorage, Settlement
from squid_dagster.protocol import (
    AttemptScheduled,
    Fact,
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
from squid_dagster.protocol.errors import ViewsMissing

QUEUE, WORKFLOW = "payments", "payment"
STEPS = ("load_invoice", "charge", "notify")
LEASE = timedelta(seconds=2)


def start_facts(run_id: str, now: datetime) -> list[Fact]:
    """Give the facts of a new run: the command, the start, the plan, and the first attempt on the queue."""
    first = plan_step(run_id, STEPS[0], now)
    return [
        RunSignalReceived(
            run_id=run_id,
            signal_type="start_run",
            payload={"invoice": run_id},
            metadata={"source": "demo", "x-api-key": "this value is never written down"},
            occurred_at=now,
        ),
        RunStarted(run_id=run_id, workflow=WORKFLOW, input={"invoice": run_id}, occurred_at=now),
        RunnablesPlanned(run_id=run_id, runnables=[first], occurred_at=now),
        RunQueued(run_id=run_id, queue=QUEUE, occurred_at=now),
        schedule(first, now),
        RunIndexed(run_id=run_id, workflow=WORKFLOW, queue=QUEUE, occurred_at=now),
        RunCataloged(run_id=run_id, workflow=WORKFLOW, queue=QUEUE, occurred_at=now),
    ]


def plan_step(run_id: str, step: str, now: datetime) -> Runnable:
    """Plan the first attempt at a step."""
    return Runnable(
        run_id=run_id,
        runnable_key=runnable_key(run_id, step, 1, 1),
        idempotency_key=idempotency_key(run_id, step, 1),
        attempt_number=1,
        queue=QUEUE,
        step=step,
        input={"invoice": run_id},
        visible_at=now,
    )


def schedule(planned: Runnable, now: datetime) -> Fact:
    """Put a planned attempt on the queue."""
    return AttemptScheduled(
        run_id=planned.run_id,
        runnable_key=planned.runnable_key,
        idempotency_key=planned.idempotency_key,
        attempt_number=planned.attempt_number,
        queue=planned.queue,
        step=planned.step,
        input=planned.input,
        visible_at=planned.visible_at,
        workflow=WORKFLOW,
        occurred_at=now,
    )


def follow_up(request: PlanRequest) -> list[Fact]:
    """Apply the settled step and plan the next one, or end the run. Pure: it is committed with the result."""
    (attempt,) = request.settled
    run_id, now = request.run_id, request.now
    facts: list[Fact] = [
        RunnableApplied(run_id=run_id, runnable_key=attempt.runnable_key, result=attempt.result, occurred_at=now)
    ]
    rest = STEPS[STEPS.index(attempt.step) + 1 :]
    if not rest:
        return [*facts, RunTerminal(run_id=run_id, status="completed", occurred_at=now)]
    planned = plan_step(run_id, rest[0], now)
    return [*facts, RunnablesPlanned(run_id=run_id, runnables=[planned], occurred_at=now), schedule(planned, now)]


def by_thread(facts: list[Fact]) -> list[Append]:
    """Group facts into the appends of one commit."""
    threads: dict[str, list[Fact]] = {}
    for fact in facts:
        threads.setdefault(fact.thread, []).append(fact)
    return [Append(thread, group) for thread, group in threads.items()]


def turn(storage: PostgresStorage, store: PostgresDispatchStore, worker: str, number: int, starting: bool) -> int:
    """Start a run if runs are still being started, then claim a few attempts and settle them; return how many."""
    if starting:
        storage.commit(by_thread(start_facts(f"{worker}-{number}", storage.now())))
    claims = store.claim(QUEUE, worker, limit=4, lease=LEASE)
    outcomes = [Settlement(claim.ref, Completed({"by": worker, "step": claim.attempt.step})) for claim in claims]
    store.settle(outcomes, follow_up)
    return len(claims)


def main(url: str, schema: str, worker: str, seconds: float) -> None:
    """Start runs for so long, then go on until the queue has been empty for longer than a lease."""
    storage = PostgresStorage(url, schema)
    store = PostgresDispatchStore(storage)
    begin = idle_since = time.monotonic()
    for number in count():
        starting = time.monotonic() - begin < seconds
        try:
            settled = turn(storage, store, worker, number, starting)
        except ViewsMissing:
            settled = 1  # refused, not lost: the views are on their way back
        if settled or starting:
            idle_since = time.monotonic()
        elif time.monotonic() - idle_since > LEASE.total_seconds() + 1:
            return
        else:
            time.sleep(0.05)  # nothing to do: this demo polls


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
