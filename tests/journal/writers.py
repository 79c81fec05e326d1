"""Writers that run as processes of their own, to be killed at any moment: `python -m tests.journal.writers <kind> ...`.

Each prints a line before and after every commit, so that a test knows which commits were answered.
"""

import random
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

from squid_dagster.journal import (
    Append,
    Claim,
    Completed,
    Failed,
    NextAttempt,
    PlanRequest,
    PostgresDispatchStore,
    PostgresStorage,
    Settlement,
)
from squid_dagster.protocol import (
    AttemptScheduled,
    Fact,
    RunFenced,
    Runnable,
    RunnableApplied,
    RunnablesPlanned,
    RunQueued,
    RunSignalReceived,
    RunStarted,
    RunTerminal,
    idempotency_key,
    run_thread,
    runnable_key,
)
from squid_dagster.protocol.errors import Conflict, ViewsMissing

SHARED = "shared"
LEASE = timedelta(seconds=30)


def say(what: str, commit: int) -> None:
    """Print a line for the test; unbuffered, so that a kill loses none."""
    sys.stdout.write(f"{what} {commit}\n")
    sys.stdout.flush()


def mark(storage: PostgresStorage, run_id: str, writer: int, commit: int, threads: int) -> Fact:
    """Return a fact that says which commit it belongs to and how many threads that commit spans."""
    payload: dict[str, Any] = {"writer": writer, "commit": commit, "threads": threads}
    return RunSignalReceived(run_id=run_id, signal_type="mark", payload=payload, metadata={}, occurred_at=storage.now())


def contend(storage: PostgresStorage, writer: int, commits: int, _: random.Random) -> None:
    """Append to the one shared thread, always at the revision that was read before."""
    for commit in range(commits):
        say("try", commit)
        while True:
            revision = storage.revision(run_thread(SHARED))
            try:
                storage.append(run_thread(SHARED), [mark(storage, SHARED, writer, commit, 1)], expected_rev=revision)
            except Conflict:
                continue
            break
        say("ack", commit)


def scatter(storage: PostgresStorage, writer: int, commits: int, rng: random.Random) -> None:
    """Commit to several of 100 threads at once, named in random order."""
    for commit in range(commits):
        runs = [f"scatter-{n}" for n in rng.sample(range(100), rng.randint(2, 6))]
        say("try", commit)
        appends = [Append(run_thread(run), [mark(storage, run, writer, commit, len(runs))]) for run in runs]
        storage.commit(appends, commit_id=uuid5(NAMESPACE_OID, f"{writer}:{commit}"))
        say("ack", commit)


def work(storage: PostgresStorage, writer: int, commits: int, rng: random.Random) -> None:
    """Start runs, claim attempts of any writer's runs, and settle them in every way there is."""
    store = PostgresDispatchStore(storage)
    claims: list[Claim] = []
    for commit in range(commits):
        say("try", commit)
        _again(partial(_one_step, storage, store, writer, commit, rng, claims))
        say("ack", commit)


def _again(step: Callable[[], None]) -> None:
    while True:
        try:
            return step()
        except ViewsMissing:
            continue  # refused, not lost: the views come back


def _one_step(
    storage: PostgresStorage, store: PostgresDispatchStore, writer: int, n: int, rng: random.Random, claims: list[Claim]
) -> None:
    match rng.choice(["start", "claim", "claim", "settle", "settle", "heartbeat", "release"]):
        case "start":
            start(storage, [f"w{writer}-{n}-{i}" for i in range(rng.randint(1, 3))], UUID(int=rng.getrandbits(128)))
        case "claim":
            claims += store.claim("default", f"writer-{writer}", limit=rng.randint(1, 3), lease=LEASE)
        case "settle" if claims:
            claim = claims.pop(rng.randrange(len(claims)))
            outcome = Completed({"n": n}) if rng.random() < 0.6 else Failed({"message": "no"}, _retry(claim))
            store.settle([Settlement(claim.ref, outcome)], plan)
        case "heartbeat" if claims:
            store.heartbeat([claim.ref for claim in claims], LEASE)
        case "release" if claims:
            store.release([claims.pop().ref])


def _retry(claim: Claim) -> NextAttempt:
    key = claim.attempt.idempotency_key
    return NextAttempt(f"{key}:{claim.attempt.attempt_number + 1}", timedelta(milliseconds=10))


def start(storage: PostgresStorage, run_ids: list[str], commit_id: UUID | None = None) -> None:
    """Start runs of one step each, in one commit."""
    now = storage.now()
    appends = []
    scheduled: list[Fact] = []
    for run_id in run_ids:
        intent: dict[str, Any] = {
            "run_id": run_id,
            "runnable_key": runnable_key(run_id, "step", 1, 1),
            "idempotency_key": idempotency_key(run_id, "step", 1),
            "attempt_number": 1,
            "step": "step",
            "input": {},
            "visible_at": now,
        }
        facts: list[Fact] = [
            RunStarted(run_id=run_id, workflow="writers", occurred_at=now),
            RunnablesPlanned(run_id=run_id, runnables=[Runnable(**intent)], occurred_at=now),
        ]
        appends.append(Append(run_thread(run_id), facts))
        scheduled += [RunQueued(run_id=run_id, occurred_at=now), AttemptScheduled(**intent, occurred_at=now)]
    storage.commit([*appends, Append("squid:dispatch:default", scheduled)], commit_id)


def plan(request: PlanRequest) -> list[Fact]:
    """Apply a success and end the run; plan the retry of a failure, up to three attempts."""
    (attempt,) = request.settled
    about: dict[str, Any] = {"run_id": request.run_id, "occurred_at": request.now}
    if attempt.status == "completed":
        return [
            RunnableApplied(**about, runnable_key=attempt.runnable_key, result=attempt.result),
            RunTerminal(**about, status="completed"),
        ]
    if attempt.attempt_number >= 3:
        return [RunTerminal(**about, status="failed", error=attempt.error), RunFenced(**about)]
    number = attempt.attempt_number + 1
    retry = Runnable(
        run_id=request.run_id,
        runnable_key=f"{attempt.idempotency_key}:{number}",
        idempotency_key=attempt.idempotency_key,
        attempt_number=number,
        step=attempt.step,
        input={},
        visible_at=request.now,
    )
    return [RunnablesPlanned(**about, runnables=[retry])]


KINDS = {"contend": contend, "scatter": scatter, "work": work}

if __name__ == "__main__":
    kind, url, schema, number, count = sys.argv[1:6]
    storage = PostgresStorage(url, schema)
    KINDS[kind](storage, int(number), int(count), random.Random(int(number)))
    say("done", int(count))
