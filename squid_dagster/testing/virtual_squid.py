"""A `Squid` for tests: a journal in memory, a virtual clock, and the same run ids every time."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Protocol, Unpack

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.notifier import LocalNotifier
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.protocol.threads import run_thread
from squid_dagster.runtime.adapters import SquidOptions
from squid_dagster.workflow import Workflow
from squid_dagster.workflow.definition import Definition

Workflows = Iterable[Workflow | Definition] | Workflow | str


class VirtualSquid(Squid):
    """A `Squid` on a virtual clock: nothing becomes due, and no lease runs out, before `clock` is moved."""

    def __init__(
        self, storage: Storage, workflows: Workflows = (), *, clock: VirtualClock, **options: Unpack[SquidOptions]
    ) -> None:
        """Check that the storage uses `clock`; `options` are those of `Squid`, and it raises what that raises.

        Raises:
            InvalidArgument: the storage uses another clock.
        """
        if not _uses_clock(storage, clock):
            raise InvalidArgument(
                f"the storage does not go by this clock, it says that it is {storage.now().isoformat()}: "
                "build it with the clock, such as MemoryStorage(clock)"
            )
        super().__init__(storage, workflows, **options)
        # Wakeups stay in this process: no other process shares this clock, and no listener thread outlives the test.
        if options.get("notifier") is None:
            self.runtime = replace(self.runtime, notifier=LocalNotifier(storage))
        self.clock = clock


class SquidFactory(Protocol):
    """The type of the fixture `squid`: called with workflows, it returns a `VirtualSquid`, closed after the test."""

    def __call__(
        self,
        workflows: Workflows = (),
        *,
        clock: VirtualClock | None = None,
        storage: Storage | None = None,
        **options: Unpack[SquidOptions],
    ) -> VirtualSquid:
        """Return a new one, as `make_squid` does; it uses the fixture `squid_clock` unless it gets a clock."""


@checked
def make_squid(
    workflows: Workflows = (),
    *,
    clock: VirtualClock | None = None,
    storage: Storage | None = None,
    **options: Unpack[SquidOptions],
) -> VirtualSquid:
    """Return a `Squid` that behaves the same in every test run: no randomness, no waiting, no database.

    Run ids are run-1, run-2 and so on, without those in the journal; retries have no jitter. Without a `storage`, the
    journal is an empty one in memory. `options` are those of `Squid`, and override all of this.

    Raises:
        InvalidArgument: the storage uses another clock than the one given, or one that cannot be moved.
        InvalidWorkflow, WorkflowsNotLoaded, MissingResource: as `Squid`.
    """
    if storage is None:
        clock = clock or VirtualClock()
        storage = MemoryStorage(clock)
    virtual_clock = clock or getattr(storage, "clock", None)
    if not isinstance(virtual_clock, VirtualClock):
        raise InvalidArgument(
            f"the clock of this {type(storage).__name__} is not known, or cannot be moved: build it with a "
            "VirtualClock, and pass that here too, as clock=..."
        )
    settings: SquidOptions = {"new_run_id": counted_run_ids(storage), "random_unit": lambda: 0.0}
    settings.update(options)
    return VirtualSquid(storage, workflows, clock=virtual_clock, **settings)


def _uses_clock(storage: Storage, clock: VirtualClock) -> bool:
    """Return whether a storage uses a clock, by moving it and back: two clocks may show the same time."""
    moment = timedelta(microseconds=1)
    moved = clock.advance(moment) == storage.now()
    return clock.advance(-moment) == storage.now() and moved


def counted_run_ids(storage: Storage) -> Callable[[], str]:
    """Return a function that returns run-1, run-2 and so on, without ids of runs in the journal."""
    numbers = count(1)

    def new_run_id() -> str:
        return next(run_id for number in numbers if not storage.revision(run_thread(run_id := f"run-{number}")))

    return new_run_id
