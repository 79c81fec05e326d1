"""The processes beside workers: a starter and an operator. Both are killed like all others, and resume where they were.

`python -m tests.chaos.roles starter <runs>` or `... operator`; the database is in SQUID_DATABASE_URL.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from squid_dagster import Squid, SquidError
from squid_dagster.journal import open_journal
from squid_dagster.protocol.errors import InvalidTransition, StorageUnavailable, TerminalRun
from tests.chaos import effects
from tests.chaos.expectations import HURTFUL, SHARES
from tests.chaos.workflows import WORKFLOWS

if TYPE_CHECKING:  # the code of the earlier release does not have them there
    from squid_dagster import Receipt
    from squid_dagster.protocol import Attempt

GENTLE = "SQUID_CHAOS_GENTLE"  # start nothing that hurts its process
LEASE = timedelta(seconds=3)
QUEUES = ("default", "B", "a")  # of plain workers
DRAINED_QUEUE = "drained"  # by Dagster alone: beside plain workers, its sensor would launch nothing
DRAINED = "SQUID_CHAOS_DRAINED"  # whether there is a Dagster
_DRAINED_SHARE = 50  # one run of so many
_BATCH = 20
_PAUSE_SECONDS = 0.1


def plan(runs: int) -> Iterator[tuple[int, str]]:
    """Yield the number and the workflow of each run: one of each, then by their shares; always in the same order."""
    names = [name for name, share in SHARES.items() for _ in range(share - 1)]
    names += ["chain"] * (1000 - len(names) - len(SHARES))
    random.Random(5).shuffle(names)
    names = [*SHARES, *names]
    for n in range(runs):
        yield n, names[n % 1000]


def start_runs(squid: Squid, runs: int) -> None:
    """Start all runs, each under a key of its own; repeat calls without an answer, and record the answers."""
    path = Path(os.environ[effects.VARIABLE])
    done = {line["n"] for line in effects.read(path) if line["kind"] == "started"}
    spared = HURTFUL if os.environ.get(GENTLE) else ()
    left = [(n, name) for n, name in plan(runs) if n not in done and name not in spared]
    for begin in range(0, len(left), _BATCH):
        for n, name in left[begin : begin + _BATCH]:
            receipt = _persist(squid, n, name)
            effects.record("started", n=n, workflow=name, run=receipt)
        while _open_runs(squid) > 400:  # a queue that is deep enough; the rest comes later
            time.sleep(_PAUSE_SECONDS)


def _persist(squid: Squid, n: int, name: str) -> str:
    while True:
        try:
            key = f"{name}-{n}"
            return squid.start(name, {"n": n}, idempotency_key=key, queue=_queue(n), actor="starter").run_id
        except StorageUnavailable:
            time.sleep(_PAUSE_SECONDS)


def _queue(n: int) -> str:
    if os.environ.get(DRAINED) and n % _DRAINED_SHARE == _DRAINED_SHARE - 1:
        return DRAINED_QUEUE
    return QUEUES[n % len(QUEUES)]


def _open_runs(squid: Squid) -> int:
    try:
        return len(squid.list_runs(open_only=True, limit=500).runs)
    except StorageUnavailable:
        return 0


def operate(squid: Squid) -> None:
    """Repeat an operator's round until killed."""
    while True:
        with suppress(StorageUnavailable):
            operate_once(squid)
        time.sleep(_PAUSE_SECONDS)


def operate_once(squid: Squid) -> None:
    """Approve and reject what waits for a person, cancel what never ends by itself, put dead letters back."""
    for run in squid.list_runs(status="paused", limit=100).runs:
        _decide(squid, run.run_id)
    for run in squid.list_runs(workflow="endless", open_only=True, limit=100).runs:
        _ignore_late(partial(squid.cancel, run.run_id, actor="operator"))
    for run in squid.list_runs(workflow="hanging", open_only=True, limit=100).runs:
        if any(attempt.owner_id for attempt in squid.inspect_run(run.run_id).attempts):
            _ignore_late(partial(squid.cancel, run.run_id, actor="operator"))
    for attempt in squid.dead_letters():
        _handle_dead_letter(squid, attempt)


def _decide(squid: Squid, run_id: str) -> None:
    n = squid.inspect_run(run_id).input["n"]
    verb = squid.reject if n % 2 else squid.approve
    _ignore_late(lambda: verb(run_id, actor="operator", idempotency_key=f"review-{run_id}"))


def _handle_dead_letter(squid: Squid, attempt: "Attempt") -> None:
    if attempt.workflow == "poison":
        _ignore_late(partial(squid.cancel, attempt.run_id, actor="operator"))
        return
    effects.record("dead_letter", run=attempt.run_id, step=attempt.step)
    key = f"again-{attempt.runnable_key}-{attempt.deliveries}"
    retry = partial(squid.retry_attempt, attempt.run_id, attempt.runnable_key)
    _ignore_late(partial(retry, actor="operator", idempotency_key=key))


def _ignore_late(command: "Callable[[], Receipt]") -> None:
    """Send a command and record its receipt. It may come too late: an earlier one was committed without an answer."""
    try:
        receipt = command()
        effects.record("commanded", run=receipt.run_id, signal=receipt.signal_type, key=receipt.idempotency_key)
    except (InvalidTransition, TerminalRun):
        pass
    except StorageUnavailable:
        raise
    except SquidError as error:
        effects.record("refused", error=f"{type(error).__name__}: {error}")


def main(role: str, *arguments: str) -> None:
    """Run one role."""
    while True:
        try:
            journal = open_journal()
            break
        except StorageUnavailable:
            time.sleep(_PAUSE_SECONDS)
    with Squid(journal, WORKFLOWS, lease=LEASE) as squid:
        if role == "starter":
            start_runs(squid, int(arguments[0]))
        else:
            operate(squid)


if __name__ == "__main__":
    main(*sys.argv[1:])
