"""The maintenance of every worker: reports that it is alive, publishes cuts, starts due crons, and recovers."""

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Self

from squid_dagster.journal.contract.worker_liveness import WorkerRow
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.errors import SquidError, StorageUnavailable
from squid_dagster.runtime.adapters import publish_cut
from squid_dagster.runtime.commands.cron_starts import start_due_crons
from squid_dagster.runtime.recovery.recovery import recover
from squid_dagster.runtime.runtime import Runtime
from squid_dagster.runtime.worker.outage import Outage

logger = redacting_logger(__name__)

LIVENESS_EVERY = timedelta(seconds=5)


class Maintenance:
    """A thread for the duration of a `with` block. Errors in it are logged, and the work is repeated."""

    def __init__(
        self,
        runtime: Runtime,
        describe: Callable[[], WorkerRow],
        every: timedelta | None,
        queues: Sequence[str],
        outage: Outage | None = None,
    ) -> None:
        """Report the row of `describe` every few seconds; recover and start crons `every` so often, None: never.

        An unavailable database is logged by `outage`.
        """
        self._outage = outage or Outage("housekeeping")
        self._runtime, self._describe, self._every, self._queues = runtime, describe, every, tuple(queues)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="squid-housekeeping", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self._report_liveness()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the thread, and withdraw the worker's liveness row."""
        self._ended.set()
        self._thread.join()
        self._attempt("withdrawing the worker", lambda: self._runtime.liveness.withdraw(self._describe().worker_id))

    def _loop(self) -> None:
        pause = LIVENESS_EVERY if self._every is None else min(LIVENESS_EVERY, self._every)
        waited = timedelta(0)
        while not self._ended.wait(pause.total_seconds()):
            self._report_liveness()
            waited += pause
            if self._every is not None and waited >= self._every:
                waited = timedelta(0)
                self.keep()

    def _report_liveness(self) -> None:
        self._attempt("announcing the worker", lambda: self._runtime.liveness.report(self._describe()))
        self._attempt("publishing a cut", lambda: publish_cut(self._runtime.storage))

    def keep(self) -> None:
        """Start due crons and recover, once. If one part fails, the others are done all the same."""
        self._attempt("starting runs by the clock", self._start_crons)
        for queue in self._queues:
            self._attempt(f"recovery of queue {queue}", partial(self._recover, queue))

    def _start_crons(self) -> None:
        started = [receipt for receipt in start_due_crons(self._runtime) if not receipt.repeated]
        if started:
            logger.info("started %d runs by the clock", len(started))

    def _recover(self, queue: str) -> None:
        report = recover(self._runtime, queue)
        if report.repaired:
            logger.info("recovered: %s", report)

    def _attempt(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except StorageUnavailable as error:
            self._outage.begin(what, error)
            return
        except SquidError as error:
            logger.warning("%s failed, will be tried again: %s", what, error)
        except Exception:
            logger.exception("%s failed, will be tried again", what)
        self._outage.end(what)
