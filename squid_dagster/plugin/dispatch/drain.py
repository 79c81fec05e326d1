"""A drain: a worker in a thread of its own, watched by the thread that Dagster interrupts.

The watcher waits, flushes lines to Dagster, and stops the worker when it was idle for long enough, is too old, or has
older code than its location. An interrupt (a termination in the UI, SIGTERM, SIGINT) is raised in the watcher: the
worker then has a grace to finish running steps, releases the other claims by facts, and the interrupt is raised again.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from squid_dagster.logs import redacting_logger
from squid_dagster.plugin.dispatch.step_events import LineBuffer, Write
from squid_dagster.protocol.errors import SquidError
from squid_dagster.runtime.worker.worker import Worker

logger = redacting_logger(__name__)

_LOOK_SECONDS = 0.25
_LAST_SECONDS = 15.0  # for the release of claims, after the grace


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a drain ends, how often it checks for newer code, and how often it logs a summary."""

    linger_seconds: float
    max_age_seconds: float
    grace_seconds: float
    look_seconds: float = 5.0
    summary_seconds: float = 60.0


class Drain:
    """One worker from its start to its end. `run` is to be called once, by the main thread."""

    def __init__(
        self,
        worker: Worker,
        limits: Limits,
        *,
        buffer: LineBuffer,
        write: Write,
        superseded: Callable[[], bool],
        summarize: Callable[[], None],
    ) -> None:
        """Store a worker that has not run yet."""
        self._worker, self._limits = worker, limits
        self._buffer, self._write = buffer, write
        self._superseded, self._summarize = superseded, summarize
        self._thread = threading.Thread(target=self._work, name="squid-drain", daemon=True)
        self._failed: BaseException | None = None

    def run(self) -> str:
        """Run until there is a reason to stop; return that reason.

        Raises:
            SquidError: raised by the worker.
            BaseException: the interrupt of this thread, after the worker has released its claims.
        """
        self._thread.start()
        try:
            reason = self._watch()
            self._worker.stop()
            while self._thread.is_alive():  # the worker limits how long running steps may take
                self._buffer.flush(self._write, _LOOK_SECONDS)
        except BaseException:
            self._release_claims()
            raise
        self._buffer.flush(self._write)
        if self._failed is not None:
            raise self._failed
        return reason

    def _work(self) -> None:
        try:
            self._worker.run()
        except BaseException as error:  # noqa: BLE001  raised again by `run`
            self._failed = error

    def _watch(self) -> str:
        """Wait until the worker should stop, or has stopped by itself; return the reason."""
        limits = self._limits
        began = busy_at = looked_at = summed_at = time.monotonic()
        claimed = 0
        while self._thread.is_alive():
            self._buffer.flush(self._write, _LOOK_SECONDS)
            now = time.monotonic()
            # While the database is away, it is unknown whether an attempt is due.
            if self._worker.held or self._worker.report.claimed != claimed or self._worker.waiting:
                claimed, busy_at = self._worker.report.claimed, now
            if now - busy_at >= limits.linger_seconds:
                return f"nothing was due for {limits.linger_seconds:g} s"
            if now - began >= limits.max_age_seconds:
                return f"it is {limits.max_age_seconds:g} s old"
            if now - looked_at >= limits.look_seconds:
                looked_at = now
                if self._has_older_code():
                    return "its location has newer code"
            if now - summed_at >= limits.summary_seconds:
                summed_at = now
                self._summarize()
        return self._worker.report.gave_up or "the worker ended"

    def _has_older_code(self) -> bool:
        try:
            return self._superseded()
        except SquidError as error:
            logger.warning("could not ask for newer code, will be tried again: %s", error)
            return False

    def _release_claims(self) -> None:
        """Wait for running steps during the grace; then the worker releases all claims, by facts."""
        self._worker.stop()
        try:
            self._thread.join(self._limits.grace_seconds)
        finally:  # the grace is over, or there was another interrupt
            self._worker.stop()
            self._thread.join(_LAST_SECONDS)
            self._buffer.flush(self._write)
