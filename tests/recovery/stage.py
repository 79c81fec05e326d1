"""How a scenario is played and looked at: moves in order, time that passes on its own clock, and the end as a value."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from squid_dagster.api import Squid
from squid_dagster.journal.clock import VirtualClock
from squid_dagster.journal.storage import Storage
from squid_dagster.protocol import DispatchProjection, RunUnit, dispatch_thread, run_thread
from squid_dagster.protocol.entries import run_of
from squid_dagster.runtime.signals import Receipt
from squid_dagster.workflow import Workflow
from tests.facts import T0

HORIZON = timedelta(hours=1)  # work that is due later than this is not waited for
NEVER = timedelta(days=30)  # a wait that outlasts every scenario
LATER = timedelta(hours=6)  # after a crash: all leases of the process that ended have run out
_MOST = 200  # units of work in one scenario: more than that is a loop that does not end


class WorkerDied(BaseException):
    """Raised by a step to end its worker in the middle of it: no outcome is written, and the lease runs out."""


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
            if scene.squid.execute_next(scene.case) is not None:
                continue
        except WorkerDied:
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


def end_of(storage: Storage, case: str) -> dict[str, Any]:
    """Give where all runs of a play have ended, without what may differ from play to play: ids, times, deliveries."""
    units = dict(_units(storage, case))
    found = {_alias(run_id, unit, case): _told(unit) for run_id, unit in units.items()}
    queue = DispatchProjection.fold(storage.read(dispatch_thread(case)))
    text = json.dumps({"runs": found, "paused": case in queue.paused}, sort_keys=True, default=str)
    for run_id, unit in units.items():
        text = text.replace(run_id, _alias(run_id, unit, case))
    text = _IDENTITY.sub("<identity>", _TIME.sub("<time>", text.replace(f"{case}.", "").replace(case, "<case>")))
    told: dict[str, Any] = json.loads(text)
    return told


def _units(storage: Storage, case: str) -> Iterator[tuple[str, RunUnit]]:
    entries = storage.read_between(0, storage.cut())
    mine = {
        entry.fact.run_id
        for entry in entries
        if entry.fact.type == "run_started" and getattr(entry.fact, "queue", "") == case
    }
    for run_id in sorted(run for run in mine if run is not None):
        yield run_id, RunUnit.fold(entry for entry in entries if run_of(entry.fact) == run_id)


def _alias(run_id: str, unit: RunUnit, case: str) -> str:
    """Name a run by what it was started for."""
    start = unit.run.start
    assert start is not None
    parent = start.context.get("parent")
    if isinstance(parent, dict):
        return f"child {parent['child_key']}"
    key = unit.run.command_history[0].idempotency_key or run_id
    return start.trigger or "" if start.context.get("schedule") else key.removeprefix(f"{case}.")


def _told(unit: RunUnit) -> dict[str, Any]:
    run, dispatch = unit.run, unit.dispatch
    assert run.start is not None
    return {
        "start": run.start.model_dump(mode="json", exclude={"occurred_at"}),
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
        "children": sorted(run.children),
        "queue": dispatch.queue,
        "fence": [dispatch.fenced, dispatch.unfenced, dispatch.quarantined],
        "attempts": {
            key: [each.status, each.step, each.input, each.result, _error(each.error)]
            for key, each in dispatch.attempts.items()
        },
        "listed": [unit.indexed is not None, unit.cataloged is not None],
        "anomalies": [str(each) for each in unit.anomalies],
    }


def _error(told: Any) -> Any:
    """Leave out tracebacks, which name the lines of whoever called the step."""
    if isinstance(told, dict):
        return {key: _error(value) for key, value in told.items() if key != "traceback"}
    return [_error(each) for each in told] if isinstance(told, list) else told


def clock_at(after: timedelta = timedelta(0)) -> VirtualClock:
    """Give a clock of its own, so long after the beginning."""
    return VirtualClock(T0 + after)


def journal_facts(storage: Storage, run_id: str) -> list[str]:
    """Give the types of the facts on a run's own thread."""
    return [entry.fact.type for entry in storage.read(run_thread(run_id))]
