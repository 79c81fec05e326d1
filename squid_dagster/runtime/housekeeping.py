"""What a worker does beside its work: says that it is there, starts due crons, and repairs what others left behind."""

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Self

from squid_dagster.journal.presence import WorkerRow
from squid_dagster.protocol.errors import SquidError
from squid_dagster.runtime.core import Runtime
from squid_dagster.runtime.crons import start_due_crons
from squid_dagster.runtime.recovery import recover

logger = logging.getLogger(__name__)

PRESENCE_EVERY = timedelta(seconds=5)


class Housekeeping:
    """A thread for the time of a `with` block. Whatever fails in it is logged and tried again."""

    def __init__(
        self,
        runtime: Runtime,
        describe: Callable[[], WorkerRow],
        every: timedelta | None,
        queues: Sequence[str],
    ) -> None:
        """Announce what `describe` gives every few seconds; recover and start crons `every` so often, None: never."""
        self._runtime, self._describe, self._every, self._queues = runtime, describe, every, tuple(queues)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="squid-housekeeping", daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._announce()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, and say that the worker has gone."""
        self._ended.set()
        self._thread.join()
        try:
            self._runtime.presence.withdraw(self._describe().worker_id)
        except SquidError as problem:
            logger.warning("the worker's presence could not be withdrawn, it will fade: %s", problem)

    def _loop(self) -> None:
        waited = timedelta(0)
        while not self._ended.wait(PRESENCE_EVERY.total_seconds()):
            self._announce()
            waited += PRESENCE_EVERY
            if self._every is not None and waited >= self._every:
                waited = timedelta(0)
                self.keep()

    def _announce(self) -> None:
        try:
            self._runtime.presence.announce(self._describe())
        except SquidError as error:
            logger.warning("the worker's presence could not be announced: %s", error)

    def keep(self) -> None:
        """Start due crons and recover, once."""
        try:
            started = start_due_crons(self._runtime)
            if any(not receipt.repeated for receipt in started):
                logger.info("started %d runs by the clock", sum(not receipt.repeated for receipt in started))
            for queue in self._queues:
                report = recover(self._runtime, queue)
                if report.repaired:
                    logger.info("recovered: %s", report)
        except SquidError as error:
            logger.warning("housekeeping failed, will be tried again: %s", error)
        except Exception:
            logger.exception("housekeeping failed")
