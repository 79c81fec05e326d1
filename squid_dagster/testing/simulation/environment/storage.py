"""The storage of a simulation: one journal for all processes, and a storage for each process whose calls can fail."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID, uuid5

from squid_dagster.journal.contract.storage import Append, Checkpoint, Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.errors import Conflict, StorageUnavailable
from squid_dagster.protocol.facts import Fact
from squid_dagster.testing.simulation.environment.machine import Machine, MachineClock, Process, ProcessCrash
from squid_dagster.testing.simulation.faults import ERRORS, Fault, FaultPlan, Kind, Place

if TYPE_CHECKING:
    from squid_dagster.testing.simulation.roles import ScheduleState

T = TypeVar("T")


class SharedJournal(MemoryStorage):
    """A journal in memory that decodes every entry once, since no reader may change a fact."""

    def __init__(self, clock: MachineClock, *, atomic_across_threads: bool) -> None:
        """Initialize an empty journal."""
        super().__init__(clock, atomic_across_threads=atomic_across_threads)
        self.clock = clock
        self.open_runs: set[str] = set()
        self.started: dict[str, str] = {}  # workflows by run id
        self.parents: dict[str, str] = {}  # by the run ids of children that are linked, started or not
        self.cancelled_with_all: set[str] = set()  # runs that were cancelled with all runs below them
        self._decoded: dict[int, Entry] = {}

    def commit(self, appends: Sequence[Append], commit_id: UUID | None = None) -> dict[str, int]:
        """Write facts, and record which runs are open."""
        receipt = super().commit(appends, commit_id)
        for one in appends:
            for fact in one.facts:
                self._note(fact)
        return receipt

    def _note(self, fact: Any) -> None:
        if fact.type == "run_started" and fact.run_id not in self.started:
            self.started[fact.run_id] = fact.workflow
            self.open_runs.add(fact.run_id)
        elif fact.type == "run_terminal":
            self.open_runs.discard(fact.run_id)
        elif fact.type == "child_run_started":
            self.parents.setdefault(fact.child_run_id, fact.run_id)
        elif fact.type == "run_signal_received" and fact.signal_type == "cancel_run" and fact.payload.get("cascade"):
            self.cancelled_with_all.add(fact.run_id)

    def unrepaired(self) -> set[tuple[str, str]]:
        """Return the runs that a recovery has to repair, each with what is missing: its start, or its cancel."""
        missing = {(child, "start") for child, parent in self.parents.items() if self._is_missing(child, parent)}
        return missing | {(run_id, "cancel") for run_id in self.open_runs if self._is_orphan(run_id)}

    def _is_missing(self, child: str, parent: str) -> bool:
        return child not in self.started and parent in self.open_runs

    def _is_orphan(self, run_id: str) -> bool:
        above = self.parents.get(run_id)
        while above is not None:
            if above in self.cancelled_with_all and above not in self.open_runs:
                return True
            above = self.parents.get(above)
        return False

    def _entries(self, rows: Sequence[Any]) -> list[Entry]:
        decoded, entries = self._decoded, []
        for row in rows:
            entry = decoded.get(row.position)
            if entry is None:
                entry = decoded[row.position] = row.entry()
            entries.append(entry)
        return entries

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        """Return a thread's entries after a revision."""
        return self._entries(self._threads.get(thread, [])[after : None if limit is None else after + limit])

    def read_between(self, after: int, upto: int, limit: int | None = None) -> list[Entry]:
        """Return entries between two cuts."""
        # Positions have no gaps here: nothing is ever deleted.
        return self._entries(self._journal[after:upto][:limit])

    def read_run(self, run_id: str, before: int | None = None) -> list[Entry]:
        """Return all facts of one run."""
        rows = self._runs.get(run_id, ())
        return self._entries([row for row in rows if before is None or row.position < before])

    def changed_facts(self) -> Iterator[Entry]:
        """Yield the entries that a reader has changed in memory."""
        for row in self._journal:
            entry = self._decoded.get(row.position)
            if entry is not None and entry != row.entry():
                yield entry


class RunRegistry(Protocol):
    """The runs of a journal."""

    @property
    def started(self) -> Mapping[str, str]:
        """The workflows of all runs that were started, by run id."""

    @property
    def open_runs(self) -> Collection[str]:
        """The runs that have not ended."""


@dataclass(slots=True)
class SharedState:
    """The state that all processes of one schedule share: time, journal, faults, and the latency of calls.

    `adapters` returns the parts of a runtime for the storage of one process; by default those that fold.
    """

    machine: Machine
    clock: MachineClock
    journal: Storage
    runs: RunRegistry
    plan: FaultPlan
    seed: int
    jitter: bool = True
    adapters: Callable[["ProcessStorage"], dict[str, Any]] = field(default=lambda _: {})
    writes: int = 0  # calls that may have written
    _latencies: dict[str, Random] = field(default_factory=dict)

    def latency(self, thread: str) -> float:
        """Return the latency of a thread's next call, in seconds: mostly short, sometimes long."""
        if not self.jitter:
            return 0.001
        random = self._latencies.get(thread)
        if random is None:
            random = self._latencies[thread] = Random(f"{self.seed} {thread}")  # noqa: S311  no secret
        drawn = random.random()
        if drawn < 0.7:
            return 0.0002 + drawn * 0.003
        return (drawn - 0.69) * 0.05 if drawn < 0.97 else (drawn - 0.96) * 10


class ProcessStorage:
    """The storage of one process: other threads run, and faults happen, before and after every call."""

    def __init__(self, shared: SharedState, process: Process | None = None) -> None:
        """Connect a process to the shared journal."""
        self._shared, self.process = shared, process
        self.inner = shared.journal
        self.clock = shared.clock
        self.atomic_across_threads = shared.journal.atomic_across_threads
        self.max_fact_bytes = shared.journal.max_fact_bytes

    def now(self) -> datetime:
        """Return the storage's time."""
        return self.inner.now()

    def call(self, about: str, work: Callable[[], T], *, writes: bool = False, expects: bool = False) -> T:
        """Run a call of the storage, with its faults.

        Raises:
            StorageUnavailable: the answer was lost, or the call was not made.
            ProcessCrash: the process has crashed.
        """
        shared, machine = self._shared, self._shared.machine
        thread = machine.current()
        if thread is None:  # outside of all processes: a check at the end
            return work()
        thread.points += 1
        shared.writes += writes
        place = Place(thread.name, thread.points)
        machine.wait(shared.latency(thread.name))
        fault = shared.plan.at_call(place, about, writes=writes, expects=expects)
        if fault is None:
            return work()
        process = thread.process
        self._before(fault, process)
        answer = work()
        match fault.kind:
            case Kind.CRASH_AFTER:
                process.kill()
                raise ProcessCrash
            case Kind.LOST_ANSWER:
                raise StorageUnavailable("the answer was lost: a simulated fault")
            case Kind.STALL_AFTER:
                machine.wait(fault.seconds)
        return answer

    def _before(self, fault: Fault, process: Process) -> None:
        machine = self._shared.machine
        match fault.kind:
            case Kind.CRASH_BEFORE:
                process.kill()
                raise ProcessCrash
            case Kind.ERROR:
                raise ERRORS[fault.detail]()
            case Kind.CONFLICT:
                raise Conflict("simulated", 1, 2)
            case Kind.STALL_BEFORE:
                machine.wait(fault.seconds)
            case Kind.SUSPEND:
                process.suspend(fault.seconds)
                machine.wait(0)
            case Kind.CLOCK_BACK:
                self._shared.clock.advance(-timedelta(seconds=fault.seconds))

    # --- the contract -----------------------------------------------------------------------------------------------

    def commit(self, appends: Sequence[Append], commit_id: UUID | None = None) -> dict[str, int]:
        """Write facts; if commits do not span threads, other threads run between two appends."""
        if self.atomic_across_threads or len(appends) == 1:
            return self._commit(appends, commit_id)
        groups: list[list[Append]] = [[]]
        for one in appends:  # a check of a revision goes with the append after it
            if one.facts and any(other.facts for other in groups[-1]):
                groups.append([])
            groups[-1].append(one)
        receipt: dict[str, int] = {}
        for number, group in enumerate(groups):
            last = number == len(groups) - 1
            part_id = commit_id if commit_id is None or last else uuid5(commit_id, str(number))
            receipt |= self._commit(group, part_id)
        return receipt

    def _commit(self, appends: Sequence[Append], commit_id: UUID | None) -> dict[str, int]:
        types = "+".join(dict.fromkeys(fact.type for one in appends for fact in one.facts))
        expects = any(one.expected_rev for one in appends)
        return self.call(f"commit {types}", lambda: self.inner.commit(appends, commit_id), writes=True, expects=expects)

    def append(self, thread: str, entries: Sequence[Fact], expected_rev: int | None = None) -> int:
        """Write facts to one thread."""
        return self.commit([Append(thread, entries, expected_rev)])[thread]

    def find_commit(self, commit_id: UUID) -> dict[str, int] | None:
        """Return the answer of an earlier commit."""
        return self.call("find_commit", lambda: self.inner.find_commit(commit_id))

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        """Return a thread's entries after a revision."""
        return self.call("read", lambda: self.inner.read(thread, after, limit))

    def revision(self, thread: str) -> int:
        """Return a thread's last sequence number."""
        return self.call("revision", lambda: self.inner.revision(thread))

    def cut(self, after: int = 0) -> int:
        """Return a position at or under which no commit can appear any more."""
        return self.call("cut", lambda: self.inner.cut(after))

    def read_between(self, after: int, upto: int, limit: int | None = None) -> list[Entry]:
        """Return entries between two cuts."""
        return self.call("read_between", lambda: self.inner.read_between(after, upto, limit))

    def read_run(self, run_id: str, before: int | None = None) -> list[Entry]:
        """Return all facts of one run."""
        return self.call("read_run", lambda: self.inner.read_run(run_id, before))

    def put_checkpoint(self, thread: str, revision: int, data: str) -> bool:
        """Store a checkpoint."""
        return self.call("put_checkpoint", lambda: self.inner.put_checkpoint(thread, revision, data), writes=True)

    def get_checkpoint(self, thread: str) -> Checkpoint | None:
        """Return a checkpoint."""
        return self.call("get_checkpoint", lambda: self.inner.get_checkpoint(thread))

    def delete_checkpoint(self, thread: str) -> None:
        """Delete a checkpoint."""
        self.call("delete_checkpoint", lambda: self.inner.delete_checkpoint(thread), writes=True)

    def delete_thread(self, thread: str) -> None:
        """Delete a thread."""
        self.call("delete_thread", lambda: self.inner.delete_thread(thread), writes=True)


@dataclass(frozen=True, slots=True)
class SimulatedJournal:
    """An empty journal for one schedule. `begin` may launch more processes; `problems` returns further problems."""

    journal: Storage
    runs: RunRegistry
    adapters: Callable[[ProcessStorage], dict[str, Any]] = field(default=lambda _: {})
    begin: Callable[["ScheduleState"], None] = field(default=lambda _: None)
    problems: Callable[[], Iterable[str]] = field(default=lambda: ())


# Makes the journal of one schedule, by its clock; the other value is whether commits should span threads.
MakeJournal = Callable[[MachineClock, bool], SimulatedJournal]


def in_memory(clock: MachineClock, atomic: bool) -> SimulatedJournal:
    """Return an empty journal in memory."""
    journal = SharedJournal(clock, atomic_across_threads=atomic)
    return SimulatedJournal(journal, journal)
