"""How a scenario is played and looked at: moves in order, time that passes on its own clock, and the end as a value."""

import json
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol import DispatchProjection, Entry, RunUnit, dispatch_thread
from squid_dagster.protocol.entries import run_of
from squid_dagster.protocol.errors import ExpiredClaim
from squid_dagster.runtime.commands.signals import Receipt
from squid_dagster.runtime.recovery.recovery import RecoveryReport
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
    """Let SIGHUP interrupt what runs in the main thread, the only one that signals reach."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGHUP, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@dataclass(slots=True)
class Scene:
    """One play of one scenario. All names begin with `case`, so that many plays fit into one journal."""

    squid: Squid
    clock: VirtualClock
    case: str
    number: int = 0
    asked: list[str] = field(default_factory=list)

    def name(self, name: str) -> str:
        """Give the name of a run, a key or a queue of this play."""
        return f"{self.case}.{name}"

    def start(self, workflow: Workflow, name: str = "run", **options: Any) -> Receipt:
        """Start a run under that name."""
        return self.squid.start(workflow, run_id=self.name(name), **options)

    def facts(self, name: str = "run", type_name: str | None = None) -> list[Any]:
        """Give the facts about a run."""
        found = self.squid.journal.read_run(self.name(name))
        return [entry.fact for entry in found if type_name in (None, entry.fact.type)]

    def has(self, type_name: str, name: str = "run", count: int = 1, **fields: Any) -> bool:
        """Tell whether that many facts of a type, with these fields, are on record about a run."""
        found = self.facts(name, type_name)
        return sum(all(getattr(each, key) == value for key, value in fields.items()) for each in found) >= count

    def queue_has(self, type_name: str, key: str) -> bool:
        """Tell whether a command to the queue is on record."""
        found = self.squid.journal.read(dispatch_thread(self.case))
        return any(getattr(e.fact, "idempotency_key", None) == key for e in found if e.fact.type == type_name)


class Move(NamedTuple):
    """One thing that somebody does. Whoever plays on after a crash asks again for what is not `done` yet."""

    name: str
    do: Callable[[Scene], object]
    done: Callable[[Scene], bool]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens, in order. Only `moves` are interrupted: another scenario is about what comes before and after."""

    name: str
    workflows: tuple[Workflow, ...]
    moves: tuple[Move, ...]
    before: tuple[Move, ...] = ()
    after: tuple[Move, ...] = ()
    resources: Mapping[str, object] = field(default_factory=dict)


def play(scene: Scene, moves: Iterable[Move]) -> None:
    """Make all moves that are not on record yet."""
    for move in moves:
        if not move.done(scene):
            scene.asked.append(move.name)
            move.do(scene)


def work(scene: Scene) -> None:
    """Do what workers do until nothing is due within the horizon, moving the clock over retries and lost leases."""
    for _ in range(_MOST):
        try:
            with _interruptible():
                if scene.squid.execute_next(scene.case) is not None:
                    continue
        except (ExpiredClaim, Interrupted):
            continue
        due = _next_due(scene)
        if due is None:
            return
        scene.clock.advance(due - scene.clock.now())
    raise AssertionError(f"still at work after {_MOST} units")


def _next_due(scene: Scene) -> datetime | None:
    now = scene.clock.now()
    queue = DispatchProjection.fold(scene.squid.journal.read(dispatch_thread(scene.case)))
    if scene.case in queue.paused:
        return None
    dues = [attempt.due_at for run in queue.runs.values() for attempt in run.open_attempts()]
    return min((due for due in dues if due is not None and now < due <= now + HORIZON), default=None)


# --- moves ----------------------------------------------------------------------------------------------------------


WORK = Move("work", work, lambda _: False)
STEP = Move("one step", lambda scene: scene.squid.execute_next(scene.case), lambda _: False)
RECOVER = Move("recover", lambda scene: scene.squid.recover(), lambda _: False)


def starts(workflow: Workflow, name: str = "run", **options: Any) -> Move:
    """Somebody starts a run."""
    return Move(
        f"start {name}",
        lambda scene: scene.start(workflow, name, **options),
        lambda scene: scene.has("run_started", name),
    )


def commands(command: str, signal_type: str, name: str = "run", **options: Any) -> Move:
    """Somebody asks something of a run: the method of `Squid`, and the signal that records it."""

    def do(scene: Scene) -> None:
        getattr(scene.squid, command)(scene.name(name), idempotency_key=scene.name(command), **options)

    return Move(command, do, lambda scene: scene.has("run_signal_received", name, signal_type=signal_type))


def passes(by: timedelta) -> Move:
    """Time passes."""
    return Move("time passes", lambda scene: scene.clock.advance(by), lambda _: False)


# --- the end of a play ----------------------------------------------------------------------------------------------

_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_IDENTITY = re.compile(r"sha256:[\w-]+")


def ends_of(storage: Storage) -> dict[str, dict[str, Any]]:
    """Give where the runs of each play have ended, without what differs from play to play: ids, times, deliveries."""
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
    found = {aliases[run_id]: _told(unit, aliases) for run_id, unit in units.items()}
    paused = case in DispatchProjection.fold(queue).paused
    text = json.dumps({"runs": found, "paused": paused}, sort_keys=True, default=str)
    for run_id, alias in aliases.items():
        text = text.replace(run_id, alias)
    text = _IDENTITY.sub("<identity>", _TIME.sub("<time>", text.replace(f"{case}.", "").replace(case, "<case>")))
    told: dict[str, Any] = json.loads(text)
    return told


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
        "signals": [[each.signal_type, each.idempotency_key, each.payload] for each in run.command_history],
        "planned": sorted(run.planned),
        "applied": {
            key: [each.fact.result, _error(each.fact.transition)]
            for key, each in run.applied.items()
            if each.fact is not None
        },
        "decided": [[each.step, each.action, each.result, _error(each.transition)] for each in run.resolutions],
        "manual": [run.manual_state.step, run.manual_state.kind] if run.manual_state else None,
        "children": sorted(aliases.get(child, "missing") for child in run.children),
        "queue": dispatch.queue,
        "fence": [dispatch.fenced, dispatch.unfenced, dispatch.quarantined],
        "attempts": {
            key: [each.status, each.step, each.input, each.result, _error(each.error)]
            for key, each in dispatch.attempts.items()
        },
        "listed": [unit.indexed is not None, unit.cataloged is not None],
        "anomalies": [[each.reason, each.entry_type, each.subject] for each in unit.anomalies],
    }


def _error(told: Any) -> Any:
    """Leave out tracebacks, which name the lines of whoever called the step."""
    if isinstance(told, dict):
        return {key: _error(value) for key, value in told.items() if key != "traceback"}
    return [_error(each) for each in told] if isinstance(told, list) else told


def clock_at(after: timedelta = timedelta(0)) -> VirtualClock:
    """Give a clock of its own, so long after the beginning."""
    return VirtualClock(T0 + after)


def counts(report: RecoveryReport) -> dict[str, int]:
    """Give what a report counts, without listings."""
    told = {name: count for name, count in asdict(report).items() if isinstance(count, int) and name != "listed"}
    return {name: count for name, count in told.items() if count}


def everything(storage: Storage) -> list[Entry]:
    """Give the whole journal, by position."""
    return storage.read_between(0, storage.cut())
