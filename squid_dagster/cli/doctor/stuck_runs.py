"""Runs that should go on and do not: due for long although a worker is there, or left halfway by a crash."""

from typing import TYPE_CHECKING

from squid_dagster.cli.doctor.findings import STUCK_RUNS, Finding, Patient, some

if TYPE_CHECKING:
    from squid_dagster.protocol.folds.run_unit import RunUnit

_PAGE = 500
_MOST = 10_000  # runs that are looked at closely


def stuck_runs(patient: Patient) -> list[Finding]:
    """Look for work that no live worker of its queue has taken for long, and for what recovery would put right."""
    return [*_overdue(patient), *_halfway(patient)]


def _overdue(patient: Patient) -> list[Finding]:
    from squid_dagster.inspection.attention import due_for_workers, serving
    from squid_dagster.inspection.display import span
    from squid_dagster.inspection.hold import executes

    known = patient.registry.keys if patient.registry is not None else frozenset()
    found = []
    for lane in due_for_workers(patient.storage):
        workers = serving(lane.queue, patient.workers)
        waited = patient.now - lane.oldest_due_at
        if not workers or waited <= patient.stuck_after:
            continue
        able = [worker for worker in workers if executes(worker, lane.definition)]
        if not able and lane.definition not in known:
            continue  # nobody has the definition: told as workflow_not_loadable
        workflow = lane.definition.rpartition("/")[0] or "(unknown)"
        attempts, are = ("attempt", "is") if lane.due == 1 else ("attempts", "are")
        detail = f"{lane.due} {attempts} of workflow {workflow!r} on queue {lane.queue!r} {are} due, the oldest for "
        detail += f"{span(waited)}, although {some([worker.worker_id for worker in able or workers], 3)} "
        detail += "could take them" if able else "are alive, none of which has that workflow"
        remedy = "start more workers, or end the one that hangs: what it holds is taken over"
        if not able:
            remedy = f"squid worker -m MODULE --queue {lane.queue}, with the module that holds workflow {workflow!r}"
        found.append(Finding(STUCK_RUNS, detail, remedy))
    return found


def _halfway(patient: Patient) -> list[Finding]:
    from squid_dagster.protocol.folds.run_unit import RunUnit

    halfway: list[str] = []
    why: dict[str, int] = {}
    after, looked = "", 0
    while looked < _MOST and (page := patient.squid.runtime.queries.runs_to_repair(after, _PAGE)):
        for run_id in page:
            entries = patient.storage.read_run(run_id)
            latest = max((entry.fact.occurred_at for entry in entries), default=patient.now)
            if patient.now - latest <= patient.stuck_after:
                continue  # whoever works on it may be in the middle of something
            reason = _missing(patient, RunUnit.fold(entries))
            if reason is not None:
                halfway.append(run_id)
                why[reason] = why.get(reason, 0) + 1
        after, looked = page[-1], looked + len(page)
    if not halfway:
        return []
    told = ", ".join(f"{count} x {reason}" for reason, count in why.items())
    detail = f"{len(halfway)} runs were left halfway ({told}): {some(halfway)}"
    return [Finding(STUCK_RUNS, detail, "squid recover -m MODULE (a worker does the same every half a minute)")]


def _missing(patient: Patient, unit: "RunUnit") -> str | None:
    """Return what recovery would write for this run; None: nothing, or nothing that the definitions at hand allow."""
    from squid_dagster.protocol.threads import run_thread
    from squid_dagster.workflow.planner.missing_facts import missing_facts

    start, registry = unit.run.start, patient.registry
    definition = None
    if start is not None and registry is not None:
        definition = registry.find(start.workflow, start.definition_fingerprint, start.definition_version)
    missing = missing_facts(unit, definition)
    if missing.fence:
        return "ended, and the queue does not know it"
    if missing.schedules:
        return "planned, and not on its queue"
    if missing.queue:
        return "started, and unknown to its queue"
    is_known = registry is None or definition is not None
    if start is not None and is_known and (missing.results or missing.failures or missing.retries):
        return "done, and nothing followed"
    if any(patient.storage.revision(run_thread(link.child_run_id)) == 0 for link in missing.links):
        return "a child that never started"
    return None
