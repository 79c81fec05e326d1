"""The ends of runs: read from a journal, computed without faults, and compared."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from squid_dagster.api import Squid
from squid_dagster.journal.contract.queries import parent_of
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.entries import Entry, digest
from squid_dagster.protocol.folds.attempt import AttemptStatus
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.folds.visits import COMPENSATE, visits
from squid_dagster.testing.driver import execute_until_blocked
from squid_dagster.testing.simulation.scenario import Scenario
from squid_dagster.workflow.definition import Definition, Mode


class RunResult(NamedTuple):
    """The end of a run. `path` has the outcomes of its steps; empty if it depends on which sibling was faster."""

    workflow: str
    status: str
    path: tuple[tuple[str, str, str], ...] = ()
    parent: str | None = None
    loose: bool = False

    def __str__(self) -> str:
        """Describe the end in one line."""
        steps = ", ".join(f"{step} {outcome}" for step, outcome, _ in self.path)
        return f"{self.status} [{steps}]"


def end_of(run: RunProjection, definitions: Mapping[str, Definition]) -> RunResult:
    """Return how a run has ended, or where it stands."""
    start = run.start
    workflow = (start.workflow if start else None) or ""
    definition = definitions.get(workflow)
    parent = parent_of(start.context) if start else None
    routed = definition is not None and definition.mode is Mode.ROUTES
    # Which steps of a failing workflow were running when the first one failed depends on timing.
    loose = not routed and run.status != "completed"
    path = []
    for visit in visits(run):
        name = visit.runnable.idempotency_key.partition(":")[2]
        path.append((name, "ok" if visit.succeeded else "error", digest(visit.fact.result)))
    path += [(resolution.step, resolution.action, "") for resolution in run.resolutions]
    if not routed:
        path.sort()
    return RunResult(workflow, run.status, () if loose else tuple(path), parent, loose)


def ends_of(storage: Storage, run_ids: Iterable[str], definitions: Iterable[Definition]) -> dict[str, RunResult]:
    """Return how these runs have ended."""
    by_name = {definition.name: definition for definition in definitions}
    return {run_id: end_of(RunUnit.fold(storage.read_run(run_id)).run, by_name) for run_id in run_ids}


def open_family(storage: Storage, run_id: str) -> set[str]:
    """Return the open runs below a run that are linked by their parents."""
    family = [run_id]
    runs = {}
    for member in family:
        runs[member] = RunUnit.fold(storage.read_run(member)).run
        family += [child for child in runs[member].children if child not in family]
    return {child for child in family[1:] if runs[child].start is not None and not runs[child].terminal}


def next_due(storage: Storage, run_ids: Iterable[str]) -> datetime | None:
    """Return when the next attempt of these runs is due; None if one is held, or none will be due."""
    attempts = [a for run_id in run_ids for a in RunUnit.fold(storage.read_run(run_id)).dispatch.open_attempts()]
    if any(attempt.status is AttemptStatus.CLAIMED for attempt in attempts):
        return None
    return min((attempt.due_at for attempt in attempts if attempt.due_at is not None), default=None)


def play_without_faults(squid: Squid, scenario: Scenario) -> dict[str, str]:
    """Execute a scenario one attempt at a time, in one simulated thread; return the run ids of its starts, by key."""
    run_ids = {}
    for start in scenario.starts:
        identity = {"idempotency_key": start.key} if start.by_key else {"run_id": start.key}
        receipt = squid.start(start.workflow, start.payload, queue=start.queue, **identity)  # type: ignore[arg-type]
        run_ids[start.key] = receipt.run_id
    for workflow in scenario.crons:
        window = {"start_at": "2025-12-31T23:00:00Z", "end_at": "2025-12-31T23:01:00Z"}
        squid.start_cron(workflow, "cron", intended_window=window)
    _finish(squid, scenario)
    for start in scenario.starts:
        if start.replayed:
            squid.replay(run_ids[start.key], allow_irreversible=True, idempotency_key=f"replay {start.key}")
    _finish(squid, scenario)
    return run_ids


def _finish(squid: Squid, scenario: Scenario) -> None:
    finished: set[str] = set()
    while left := [row for row in squid.runtime.queries.runs_to_list(1000) if row.run_id not in finished]:
        for row in left:
            _finish_run(squid, scenario, row.run_id)
            finished.add(row.run_id)


def _finish_run(squid: Squid, scenario: Scenario, run_id: str) -> None:
    while True:
        snapshot = execute_until_blocked(squid, run_id)
        state = snapshot.manual_state
        if snapshot.terminal or state is None:
            return
        if state.kind == "pause":
            squid.resume(run_id)
        elif scenario.approves(snapshot.workflow or "", state.step):
            squid.approve(run_id, actor="ada")
        else:
            squid.reject(run_id, actor="ada")


def undoing_problems(entries: Iterable[Entry], definition: Definition) -> Iterator[str]:
    """Yield problems of the compensations of a failed run: each step that succeeded once, the newest first.

    If steps can be compensated, the run must not end while one is running, which may still succeed. `entries` are the
    facts of the run by position.
    """
    compensates = any(step.compensation is not None for step in definition.steps.values())
    under_way: dict[str, str] = {}  # visits by runnable key
    steps: dict[str, str] = {}  # by runnable key
    left: list[str] = []  # visits that succeeded and are to be undone, oldest first
    undone: set[str] = set()
    for entry in entries:
        fact: Any = entry.fact
        if fact.type == "runnables_planned":
            for runnable in fact.runnables:
                steps[runnable.runnable_key] = runnable.step
                under_way[runnable.runnable_key] = runnable.idempotency_key
                visit = runnable.idempotency_key.partition(":")[2]
                if runnable.step.startswith(COMPENSATE) and visit not in undone:
                    undone.add(visit)
                    if not left or COMPENSATE + left[-1] != visit:
                        yield f"{visit} was undone when {left[-1] if left else 'nothing'} was next"
                    left = [remaining for remaining in left if COMPENSATE + remaining != visit]
        elif fact.type == "run_terminal" and compensates:
            yield from (f"{visit} was still under way" for visit in sorted(set(under_way.values())))
            break
        if fact.type == "runnable_applied":
            done = under_way.get(fact.runnable_key)
            under_way = {key: visit for key, visit in under_way.items() if visit != done}
        if fact.type == "runnable_applied" and (fact.transition or {}).get("on") != "error":
            step = definition.steps.get(steps.get(fact.runnable_key, ""))
            if step is not None and step.compensation is not None:
                left.append(fact.runnable_key.partition(":")[2].rpartition(":")[0])
    yield from (f"{visit} was not undone" for visit in left)
