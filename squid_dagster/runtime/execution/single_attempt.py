"""One attempt in the calling thread: claim it, run its step with heartbeats, and settle it."""

import asyncio
import os
import socket
from collections.abc import Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any

from squid_dagster.journal.contract.dispatch_store import Answer, Claim, Outcome, Settlement, check_lease
from squid_dagster.protocol.errors import SquidError, StorageUnavailable, ViewsMissing
from squid_dagster.runtime.execution.executor import Executor
from squid_dagster.runtime.execution.interrupts import note_interrupts
from squid_dagster.runtime.execution.settlement import settle
from squid_dagster.runtime.execution.step_execution import interrupted
from squid_dagster.runtime.runtime import Runtime
from squid_dagster.runtime.worker.heartbeats import Heartbeats
from squid_dagster.runtime.worker.step_pool import AsyncLoop
from squid_dagster.workflow.authoring.step_context import Cancellation

_LONGEST_BACKOFF = 1.0


def execute_one(
    runtime: Runtime,
    queue: str | None = None,
    owner_id: str | None = None,
    lease: timedelta | None = None,
    heartbeat: timedelta | None = None,
) -> str | None:
    """Execute one attempt and return the id of its run; None if nothing is due. A step that fails is no error here.

    While the database is unavailable, the result is kept for as long as the lease lasts, and written when possible.
    `heartbeat` is how often the lease is extended while the step runs, by default every third of it.

    Raises:
        StaleClaim, ExpiredClaim, TerminalRun: the claim was lost while the step ran; its result was dropped.
        StorageUnavailable: there was no database to claim from, or none for as long as the lease lasted.
        InvalidArgument, InvalidThread: a bad queue, owner, lease or heartbeat; nothing was claimed.
    """
    term = runtime.lease if lease is None else lease
    check_lease(term)
    heartbeats = Heartbeats(runtime.dispatch, term, heartbeat)
    owner = owner_id or f"{socket.gethostname()}-{os.getpid()}"
    claims = runtime.dispatch.claim(queue or runtime.queue, owner, lease=term, definitions=runtime.registry.keys)
    if not claims:
        return None
    (cancelled,) = heartbeats.add(claims)
    try:
        outcome = _perform(runtime, claims[0], cancelled, term)
        if isinstance(outcome, Answer):
            outcome.unwrap()
            runtime.notifier.notify([claims[0].ref.queue])
        else:
            _settle(runtime, claims[0], outcome, cancelled).unwrap()
    finally:
        heartbeats.close()
    return claims[0].ref.run_id


def _settle(runtime: Runtime, claim: Claim, outcome: Outcome, cancelled: Cancellation) -> Answer:
    """Record an outcome. While the database is unavailable, repeat it until the claim is lost."""
    backoff = 0.05
    while True:
        try:
            answer = settle(runtime, [Settlement(claim.ref, outcome)]).answers[0]
            if answer.unavailable:
                answer.unwrap()
            return answer
        except (StorageUnavailable, ViewsMissing):
            if cancelled.wait(backoff):
                raise
            backoff = min(backoff * 2, _LONGEST_BACKOFF)


def _perform(runtime: Runtime, claim: Claim, cancelled: Cancellation, lease: timedelta) -> Outcome | Answer:
    """Run the step. If a signal or a lost database interrupts it, settle the attempt as interrupted and raise."""
    try:
        with note_interrupts():
            return Executor(runtime, _run_async, lease).perform(claim, cancelled)
    except BaseException as error:
        with suppress(SquidError):
            settle(runtime, [Settlement(claim.ref, interrupted(error, claim.attempt))])
            runtime.notifier.notify([claim.ref.queue])
        raise


def _run_async(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run an async step to its end: in this thread, or in another one if this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    loop = AsyncLoop()
    try:
        return loop.run(coroutine)
    finally:
        loop.close()
