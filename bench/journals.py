"""Facts for benchmarks, and an empty journal."""

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import JsonValue

from squid_dagster.journal import Append, PostgresStorage
from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.protocol import (
    AttemptClaimed,
    AttemptCompleted,
    AttemptHeartbeat,
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

T0 = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
INPUT: dict[str, JsonValue] = {"account_id": "acct-4711", "invoice_id": "inv-0815", "amount": 1299, "currency": "EUR"}
FINGERPRINT = hashlib.sha256(b"payment").hexdigest()
HASH = hashlib.sha256(b"token").hexdigest()


@contextmanager
def new_journal() -> Iterator[PostgresStorage]:
    """Yield an empty journal on a server of its own, with durability as in production."""
    with tempfile.TemporaryDirectory(prefix="squid-bench-", dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        server = EmbeddedPostgres(Path(directory) / "postgres")
        storage = PostgresStorage(server.ensure_running(), "bench")
        try:
            storage.upgrade()
            yield storage
        finally:
            storage.close()
            server.stop()


def start_facts(run: str) -> list[Fact]:
    """Return the facts with which a run of one step begins."""
    key, idempotency = runnable_key(run, "charge", 1, 1), idempotency_key(run, "charge", 1)
    plan = Runnable(
        run_id=run,
        runnable_key=key,
        idempotency_key=idempotency,
        attempt_number=1,
        step="charge",
        input=INPUT,
        visible_at=T0,
    )
    return [
        RunSignalReceived(run_id=run, signal_type="start_run", payload=INPUT, metadata={}, occurred_at=T0),
        RunStarted(run_id=run, workflow="payment", input=INPUT, definition_fingerprint=FINGERPRINT, occurred_at=T0),
        RunnablesPlanned(run_id=run, runnables=[plan], occurred_at=T0),
        RunQueued(run_id=run, occurred_at=T0),
        attempt(run),
        RunIndexed(run_id=run, workflow="payment", queue="default", occurred_at=T0),
        RunCataloged(run_id=run, workflow="payment", queue="default", occurred_at=T0),
    ]


def attempt(run: str, queue: str = "default", priority: int = 0, visible_at: datetime = T0) -> AttemptScheduled:
    """Return the fact of a scheduled attempt."""
    return AttemptScheduled(
        run_id=run,
        queue=queue,
        runnable_key=runnable_key(run, "charge", 1, 1),
        idempotency_key=idempotency_key(run, "charge", 1),
        attempt_number=1,
        step="charge",
        input=INPUT,
        visible_at=visible_at,
        priority=priority,
        workflow="payment",
        definition_fingerprint=FINGERPRINT,
        occurred_at=T0,
    )


def claim_fact(run: str) -> Fact:
    """Return the fact of a claim."""
    return AttemptClaimed(
        run_id=run,
        runnable_key=runnable_key(run, "charge", 1, 1),
        claim_id="claim",
        claim_token_hash=HASH,
        owner_id="worker-1",
        lease_until=T0 + 300 * SECOND,
        fencing_token=1,
        occurred_at=T0 + SECOND,
    )


def end_facts(run: str) -> list[Fact]:
    """Return the facts with which a claimed run of one step continues and ends."""
    key = runnable_key(run, "charge", 1, 1)
    fence = {"run_id": run, "runnable_key": key, "claim_id": "claim", "claim_token_hash": HASH}
    at = T0 + 3 * SECOND
    result: dict[str, JsonValue] = {"status": "paid", "reference": "ref-1"}
    return [
        AttemptHeartbeat.model_validate({**fence, "lease_until": T0 + 400 * SECOND, "occurred_at": T0 + 2 * SECOND}),
        AttemptCompleted.model_validate({**fence, "result": result, "occurred_at": at}),
        RunnableApplied(run_id=run, runnable_key=key, result=result, occurred_at=at),
        RunTerminal(run_id=run, status="completed", occurred_at=at),
    ]


def life(run: str) -> list[Fact]:
    """Return all facts of a run of one step, from its start to its end."""
    return [*start_facts(run), claim_fact(run), *end_facts(run)]


def by_thread(facts: list[Fact]) -> list[Append]:
    """Group facts into the appends of one commit."""
    threads: dict[str, list[Fact]] = {}
    for fact in facts:
        threads.setdefault(fact.thread, []).append(fact)
    # The run's own thread last: it has the end.
    order = sorted(threads, key=lambda thread: thread.startswith("squid:run:"))
    return [Append(thread, threads[thread]) for thread in order]
