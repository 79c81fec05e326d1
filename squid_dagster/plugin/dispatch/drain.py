"""A drain: a worker in a thread of its own, watched by the thread that Dagster interrupts.

The watcher waits, forwards lines to Dagster, and stops the worker when it was idle for long enough, is too old, or has
older code than its location. An interrupt (a termination in the UI, SIGTERM, SIGINT) is raised in the watcher: the
worker then has a grace to finish what runs, gives back the rest with a fact, and the interrupt goes on.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from squid_dagster.logs import redacting_logger
from squid_dagster.plugin.dispatch.step_events import Outbox, Write
from squid_dagster.protocol.errors import SquidError
from squid_dagster.runtime.worker.worker import Worker

logger = redacting_logger(__name__)

_LOOK_SECONDS = 0.25
_LAST_SECONDS = 15.0  # for giving claims back, once all grace is spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a drain ends, how often it asks for newer code, and how often it says what it has done."""

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
        outbox: Outbox,
        write: Write,
        superseded: Callable[[], bool],
        summarize: Callable[[], None],
    ) -> None:
        """Take a worker that has not run yet."""
        self._worker, self._limits = worker, limits
        self._outbox, self._write = outbox, write
        self._superseded, self._summarize = superseded, summarize
        self._thread = threading.Thread(target=self._work, name="squid-drain", daemon=True)
        self._failed: BaseException | None = None

    def run(self) -> str:
        """Work until there is a reason to stop, and give that reason.

        Raises:
            SquidError: whatever the worker raised.
            BaseException: whatever interrupted this thread, once the worker has given back what it held.
        """
        self._thread.start()
        try:
            reason = self._watch()
            self._worker.stop()
            while self._thread.is_alive():  # steps that run may take their time: the worker has its own limit
                self._outbox.forward(self._write, _LOOK_SECONDS)
        except BaseException:
            self._give_back()
            raise
        self._outbox.forward(self._write)
        if self._failed is not None:
            raise self._failed
        return reason

    def _work(self) -> None:
        try:
            self._worker.run()
        except BaseException as error:  # noqa: BLE001  raised by the thread that can tell somebody
            self._failed = error

    def _watch(self) -> str:
        """Wait until the worker should stop, or has stopped by itself; say why."""
        limits = self._limits
        began = busy_at = looked_at = summed_at = time.monotonic()
        claimed = 0
        while self._thread.is_alive():
            self._outbox.forward(self._write, _LOOK_SECONDS)
            now = time.monotonic()
            # Without its database nobody can tell whether something is due.
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

    def _give_back(self) -> None:
        """Let running steps finish within the grace; then everything is given back, with a fact."""
        self._worker.stop()
        try:
            self._thread.join(self._limits.grace_seconds)
        finally:  # the grace is over, or somebody interrupts again
            self._worker.stop()
            self._thread.join(_LAST_SECONDS)
            self._outbox.forward(self._write)
