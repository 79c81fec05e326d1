"""How runs end: read from a journal, worked out without faults, and compared."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from squid_dagster.api import Squid
from squid_dagster.journal.queries import parent_of
from squid_dagster.journal.storage import Storage
from squid_dagster.protocol.entries import digest
from squid_dagster.protocol.run import RunProjection
from squid_dagster.protocol.unit import RunUnit
from squid_dagster.testing.driving import execute_until_blocked
from squid_dagster.testing.simulation.scenario import Scenario
from squid_dagster.workflow.definition import Definition, Mode
from squid_dagster.workflow.state import COMPENSATE, visits


class End(NamedTuple):
    """How a run has ended. `path` is what its steps came to; empty where it depends on which sibling was faster."""

    workflow: str
    status: str
    path: tuple[tuple[str, str, str], ...] = ()
    parent: str | None = None
    loose: bool = False

    def __str__(self) -> str:
        """Describe it in one line."""
        steps = ", ".join(f"{step} {outcome}" for step, outcome, _ in self.path)
        return f"{self.status} [{steps}]"


def end_of(run: RunProjection, definitions: Mapping[str, Definition]) -> End:
    """Return how a run has ended, or where it stands."""
    start = run.start
    workflow = (start.workflow if start else None) or ""
    definition = definitions.get(workflow)
    parent = parent_of(start.context) if start else None
    routed = definition is not None and definition.mode is Mode.ROUTES
    # Which steps of a failing workflow were under way when the first one failed is a matter of time.
    loose = not routed and run.status != "completed"
    path = []
    for visit in visits(run):
        name = visit.runnable.idempotency_key.partition(":")[2]
        path.append((name, "ok" if visit.succeeded else "error", digest(visit.fact.result)))
    path += [(each.step, each.action, "") for each in run.resolutions]
    if not routed:
        path.sort()
    return End(workflow, run.status, () if loose else tuple(path), parent, loose)


def ends_of(storage: Storage, run_ids: Iterable[str], definitions: Iterable[Definition]) -> dict[str, End]:
    """Return how these runs have ended."""
    by_name = {each.name: each for each in definitions}
    return {run_id: end_of(RunUnit.fold(storage.read_run(run_id)).run, by_name) for run_id in run_ids}


def play_without_faults(squid: Squid, scenario: Scenario) -> dict[str, str]:
    """Play a scenario one attempt at a time; return the run ids of its starts, by key. For one simulated thread."""
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
    seen: set[str] = set()
    while left := [row for row in squid.runtime.queries.runs_to_list(1000) if row.run_id not in seen]:
        for row in left:
            _finish_run(squid, scenario, row.run_id)
            seen.add(row.run_id)


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


def missing_compensations(run: RunProjection, definition: Definition) -> list[str]:
    """Return what is wrong with how a failed run was undone: steps not undone, undone twice, or in a wrong order."""
    done = [visit for visit in visits(run) if not visit.runnable.step.startswith(COMPENSATE) and visit.succeeded]
    names = [visit.runnable.idempotency_key.partition(":")[2] for visit in done]
    wanted = [
        COMPENSATE + name
        for visit, name in zip(done, names, strict=True)
        if (step := definition.steps.get(visit.runnable.step)) is not None and step.compensation is not None
    ]
    found = [
        visit.runnable.idempotency_key.partition(":")[2]
        for visit in visits(run)
        if visit.runnable.step.startswith(COMPENSATE)
    ]
    problems = [f"{name} is missing" for name in wanted if name not in found]
    problems += [f"{name} was done twice" for name in dict.fromkeys(found) if found.count(name) > 1]
    if definition.mode is Mode.ROUTES and not problems and found != wanted[::-1]:
        problems.append(f"undone as {found}, not newest first as {wanted[::-1]}")
    return problems
