"""Scenarios: moves in order, time that passes on a clock of their own, and the end as a value that tests compare."""

import json
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from squid_dagster import Receipt, RecoveryReport
from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol import DispatchProjection, Entry, RunUnit, dispatch_thread
from squid_dagster.protocol.entries import run_of
from squid_dagster.protocol.errors import ExpiredClaim
from squid_dagster.workflow import Workflow
from tests.facts import T0

HORIZON = timedelta(hours=1)  # work that is due later than this is not waited for
NEVER = timedelta(days=30)  # a wait that outlasts every scenario
LATER = timedelta(hours=6)  # after a crash: all leases of the process that ended have run out
_MOST = 200  # units of work in one scenario: more than that is a loop that does not end


class Interrupted(BaseException):
    """What the handler of a signal raises in the middle of a step, as that of Ctrl-C does."""


def _interrupt(*_: object) -> None:
    raise Interrupted


@contextmanager
def _interruptible() -> Iterator[None]:
    """Interrupt the main thread at SIGHUP; signals reach no other thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@dataclass(slots=True)
class Client:
    """A process that plays a scenario. All names begin with `case`, so that many plays fit into one journal."""

    squid: Squid
    clock: VirtualClock
    case: str
    number: int = 0
    asked: list[str] = field(default_factory=list)

    def name(self, name: str) -> str:
        """Return the name of a run, a key or a queue in this play."""
        return f"{self.case}.{name}"

    def start(self, workflow: Workflow, name: str = "run", **options: Any) -> Receipt:
        """Start a run under that name."""
        return self.squid.start(workflow, run_id=self.name(name), **options)

    def facts(self, name: str = "run", type_name: str | None = None) -> list[Any]:
        """Return the facts about a run."""
        entries = self.squid.journal.read_run(self.name(name))
        return [entry.fact for entry in entries if type_name in (None, entry.fact.type)]

    def has(self, type_name: str, name: str = "run", count: int = 1, **fields: Any) -> bool:
        """Return whether that many facts of a type, with these fields, are on record about a run."""
        facts = self.facts(name, type_name)
        return sum(all(getattr(fact, key) == value for key, value in fields.items()) for fact in facts) >= count

    def queue_has(self, type_name: str, key: str) -> bool:
        """Return whether a command to the queue is on record."""
        entries = self.squid.journal.read(dispatch_thread(self.case))
        return any(getattr(e.fact, "idempotency_key", None) == key for e in entries if e.fact.type == type_name)


class Move(NamedTuple):
    """One action of a person or a program. After a crash, the next client asks again for what is not `done` yet."""

    name: str
    do: Callable[[Client], object]
    done: Callable[[Client], bool]


@dataclass(frozen=True, slots=True)
class Scenario:
    """Moves in order. Only `moves` are interrupted: what comes before and after is the subject of other scenarios."""

    name: str
    workflows: tuple[Workflow, ...]
    moves: tuple[Move, ...]
    before: tuple[Move, ...] = ()
    after: tuple[Move, ...] = ()
    resources: Mapping[str, object] = field(default_factory=dict)


def play(client: Client, moves: Iterable[Move]) -> None:
    """Execute all moves that are not on record yet."""
    for move in moves:
        if not move.done(client):
            client.asked.append(move.name)
            move.do(client)


def work(client: Client) -> None:
    """Execute steps until nothing is due within the horizon, advancing the clock over retries and lost leases."""
    for _ in range(_MOST):
        try:
            with _interruptible():
                if client.squid.execute_next(client.case) is not None:
                    continue
        except (ExpiredClaim, Interrupted):
            continue
        due = _next_due(client)
        if due is None:
            return
        client.clock.advance(due - client.clock.now())
    raise AssertionError(f"still at work after {_MOST} units")


def _next_due(client: Client) -> datetime | None:
    now = client.clock.now()
    queue = DispatchProjection.fold(client.squid.journal.read(dispatch_thread(client.case)))
    if client.case in queue.paused:
        return None
    dues = [attempt.due_at for run in queue.runs.values() for attempt in run.open_attempts()]
    return min((due for due in dues if due is not None and now < due <= now + HORIZON), default=None)


# --- moves ----------------------------------------------------------------------------------------------------------


WORK = Move("work", work, lambda _: False)
STEP = Move("one step", lambda client: client.squid.execute_next(client.case), lambda _: False)
RECOVER = Move("recover", lambda client: client.squid.recover(), lambda _: False)


def starts(workflow: Workflow, name: str = "run", **options: Any) -> Move:
    """Return the move that starts a run."""
    return Move(
        f"start {name}",
        lambda client: client.start(workflow, name, **options),
        lambda client: client.has("run_started", name),
    )


def commands(command: str, signal_type: str, name: str = "run", **options: Any) -> Move:
    """Return the move that gives a run a command: the method of `Squid`, and the signal that records it."""

    def do(client: Client) -> None:
        getattr(client.squid, command)(client.name(name), idempotency_key=client.name(command), **options)

    return Move(command, do, lambda client: client.has("run_signal_received", name, signal_type=signal_type))


def passes(by: timedelta) -> Move:
    """Return the move that advances the clock."""
    return Move("time passes", lambda client: client.clock.advance(by), lambda _: False)


# --- the end of a play ----------------------------------------------------------------------------------------------

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_IDENTITY = re.compile(r"sha256:[\w-]+")


def ends_of(storage: Storage) -> dict[str, dict[str, Any]]:
    """Return where the runs of each play ended, without what differs from play to play: ids, times, deliveries."""
    by_run: dict[str, list[Entry]] = {}
    queues: dict[str, list[Entry]] = {}
    for entry in storage.read_between(0, storage.cut()):
        if (run_id := run_of(entry.fact)) is not None:
            by_run.setdefault(run_id, []).append(entry)
        else:
            queues.setdefault(getattr(entry.fact, "queue", ""), []).append(entry)
    plays: dict[str, dict[str, RunUnit]] = {case: {} for case in queues}
    for run_id, entries in by_run.items():
        unit = RunUnit.fold(entries)
        plays.setdefault((unit.run.start and unit.run.start.queue) or "", {})[run_id] = unit
    return {case: _end(case, units, queues.get(case, [])) for case, units in plays.items()}


def _end(case: str, units: Mapping[str, RunUnit], queue: Iterable[Entry]) -> dict[str, Any]:
    aliases = {run_id: _alias(run_id, unit, case) for run_id, unit in units.items()}
    runs = {aliases[run_id]: _told(unit, aliases) for run_id, unit in units.items()}
    paused = case in DispatchProjection.fold(queue).paused
    text = json.dumps({"runs": runs, "paused": paused}, sort_keys=True, default=str)
    for run_id, alias in aliases.items():
        text = text.replace(run_id, alias)
    text = _IDENTITY.sub("<identity>", _TIME.sub("<time>", text.replace(f"{case}.", "").replace(case, "<case>")))
    end: dict[str, Any] = json.loads(text)
    return end


def _alias(run_id: str, unit: RunUnit, case: str) -> str:
    """Name a run by what it was started for."""
    start = unit.run.start
    if start is None:
        return run_id
    parent = start.context.get("parent")
    if isinstance(parent, dict):
        return f"child {parent['child_key']}"
    key = unit.run.command_history[0].idempotency_key or run_id
    return start.trigger or "" if start.context.get("schedule") else key.removeprefix(f"{case}.")


def _told(unit: RunUnit, aliases: Mapping[str, str]) -> dict[str, Any]:
    run, dispatch = unit.run, unit.dispatch
    return {
        "start": run.start.model_dump(mode="json", exclude={"occurred_at"}) if run.start is not None else None,
        "status": run.status,
        "error": _error(run.terminal_error),
        "signals": [[command.signal_type, command.idempotency_key, command.payload] for command in run.command_history],
        "planned": sorted(run.planned),
        "applied": {
            key: [entry.fact.result, _error(entry.fact.transition)]
            for key, entry in run.applied.items()
            if entry.fact is not None
        },
        "decided": [
            [resolution.step, resolution.action, resolution.result, _error(resolution.transition)]
            for resolution in run.resolutions
        ],
        "manual": [run.manual_state.step, run.manual_state.kind] if run.manual_state else None,
        "children": sorted(aliases.get(child, "missing") for child in run.children),
        "queue": dispatch.queue,
        "fence": [dispatch.fenced, dispatch.unfenced, dispatch.quarantined],
        "attempts": {
            key: [attempt.status, attempt.step, attempt.input, attempt.result, _error(attempt.error)]
            for key, attempt in dispatch.attempts.items()
        },
        "listed": [unit.indexed is not None, unit.cataloged is not None],
        "anomalies": [[anomaly.reason, anomaly.entry_type, anomaly.subject] for anomaly in unit.anomalies],
    }


def _error(content: Any) -> Any:
    """Remove tracebacks, which name the lines of the step's caller."""
    if isinstance(content, dict):
        return {key: _error(value) for key, value in content.items() if key != "traceback"}
    return [_error(item) for item in content] if isinstance(content, list) else content


def clock_at(after: timedelta = timedelta(0)) -> VirtualClock:
    """Return a new clock, so long after the beginning."""
    return VirtualClock(T0 + after)


def counts(report: RecoveryReport) -> dict[str, int]:
    """Return what a report counts, without listings."""
    numbers = {name: count for name, count in asdict(report).items() if isinstance(count, int) and name != "listed"}
    return {name: count for name, count in numbers.items() if count}


def everything(storage: Storage) -> list[Entry]:
    """Return the whole journal, by position."""
    return storage.read_between(0, storage.cut())
