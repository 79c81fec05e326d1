"""A `Squid` for tests: a journal in memory, a clock that is moved by hand, and the same run ids every time."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any, Protocol

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.notifier import LocalNotifier
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.protocol.threads import run_thread
from squid_dagster.workflow import Workflow
from squid_dagster.workflow.definition import Definition

Workflows = Iterable[Workflow | Definition] | Workflow | str


class VirtualSquid(Squid):
    """A `Squid` whose time is yours: nothing becomes due, and no lease runs out, before `clock` is moved."""

    def __init__(self, storage: Storage, workflows: Workflows = (), *, clock: VirtualClock, **options: Any) -> None:
        """Take a storage that goes by `clock`; `options` are those of `Squid`, and it raises what that raises.

        Raises:
            InvalidArgument: the storage goes by another clock.
        """
        if not _goes_by(storage, clock):
            raise InvalidArgument(
                f"the storage does not go by this clock, it says that it is {storage.now().isoformat()}: "
                "build it with the clock, such as MemoryStorage(clock)"
            )
        super().__init__(storage, workflows, **options)
        # Hints stay in this process: nobody elsewhere lives in this time, and no thread works on after the test.
        if options.get("notifier") is None:
            self.runtime = replace(self.runtime, notifier=LocalNotifier(storage))
        self.clock = clock


class SquidFactory(Protocol):
    """What the fixture `squid` gives: called with workflows, it makes a `VirtualSquid` and closes it in the end."""

    def __call__(
        self,
        workflows: Workflows = (),
        *,
        clock: VirtualClock | None = None,
        storage: Storage | None = None,
        **options: Any,
    ) -> VirtualSquid:
        """Make one, as `make_squid` does; without a clock of its own it goes by the fixture `squid_clock`."""


@checked
def make_squid(
    workflows: Workflows = (), *, clock: VirtualClock | None = None, storage: Storage | None = None, **options: Any
) -> VirtualSquid:
    """Give a `Squid` that behaves the same whenever a test is run: no chance, no waiting, and no database.

    Run ids are run-1, run-2 and so on, leaving out those that the journal holds; retries come without jitter. Without
    a `storage`, the journal is an empty one in memory. `options` are those of `Squid`, and win over all of this.

    Raises:
        InvalidArgument: the storage goes by another clock than the one given, or by one that cannot be moved.
        InvalidWorkflow, WorkflowsNotLoaded, MissingResource: as `Squid`.
    """
    if storage is None:
        clock = clock or VirtualClock()
        storage = MemoryStorage(clock)
    found = clock or getattr(storage, "clock", None)
    if not isinstance(found, VirtualClock):
        raise InvalidArgument(
            f"the clock of this {type(storage).__name__} is not known, or cannot be moved: build it with a "
            "VirtualClock, and pass that here too, as clock=..."
        )
    settings = {"new_run_id": counted_run_ids(storage), "random_unit": lambda: 0.0, **options}
    return VirtualSquid(storage, workflows, clock=found, **settings)


def _goes_by(storage: Storage, clock: VirtualClock) -> bool:
    """Tell whether a storage follows a clock, by moving it a moment on and back: two clocks may show the same time."""
    moment = timedelta(microseconds=1)
    told = clock.advance(moment) == storage.now()
    return clock.advance(-moment) == storage.now() and told


def counted_run_ids(storage: Storage) -> Callable[[], str]:
    """Give what makes run-1, run-2 and so on; two that share a journal never give the id of a run that is there."""
    numbers = count(1)

    def new_run_id() -> str:
        return next(run_id for number in numbers if not storage.revision(run_thread(run_id := f"run-{number}")))

    return new_run_id
