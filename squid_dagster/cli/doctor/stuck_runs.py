"""Runs that should go on and do not: due for long although a worker is there, or left halfway by a crash."""

from typing import TYPE_CHECKING

from squid_dagster.cli.doctor.findings import STUCK_RUNS, DoctorContext, Finding, some

if TYPE_CHECKING:
    from squid_dagster.protocol.folds.run_unit import RunUnit

_PAGE = 500
_MOST = 10_000  # runs that are looked at closely


def stuck_runs(context: DoctorContext) -> list[Finding]:
    """Return work that no live worker of its queue has taken for long, and runs that recovery would put right."""
    return [*_overdue(context), *_halfway(context)]


def _overdue(context: DoctorContext) -> list[Finding]:
    from squid_dagster.inspection.attention import due_for_workers, serving
    from squid_dagster.inspection.display import span
    from squid_dagster.inspection.hold import executes

    known = context.registry.keys if context.registry is not None else frozenset()
    findings = []
    for lane in due_for_workers(context.storage):
        workers = serving(lane.queue, context.workers)
        waited = context.now - lane.oldest_due_at
        if not workers or waited <= context.stuck_after:
            continue
        able = [worker for worker in workers if executes(worker, lane.definition)]
        if not able and lane.definition not in known:
            continue  # no worker has the definition: a finding of workflow_not_loadable
        workflow = lane.definition.rpartition("/")[0] or "(unknown)"
        attempts, are = ("attempt", "is") if lane.due == 1 else ("attempts", "are")
        detail = f"{lane.due} {attempts} of workflow {workflow!r} on queue {lane.queue!r} {are} due, the oldest for "
        detail += f"{span(waited)}, although {some([worker.worker_id for worker in able or workers], 3)} "
        detail += "could take them" if able else "are alive, none of which has that workflow"
        remedy = "start more workers, or end the one that hangs: what it holds is taken over"
        if not able:
            remedy = f"squid worker -m MODULE --queue {lane.queue}, with the module that holds workflow {workflow!r}"
        findings.append(Finding(STUCK_RUNS, detail, remedy))
    return findings


def _halfway(context: DoctorContext) -> list[Finding]:
    from squid_dagster.protocol.folds.run_unit import RunUnit

    halfway: list[str] = []
    why: dict[str, int] = {}
    after, looked = "", 0
    while looked < _MOST and (page := context.squid.runtime.queries.runs_to_repair(after, _PAGE)):
        for run_id in page:
            entries = context.storage.read_run(run_id)
            latest = max((entry.fact.occurred_at for entry in entries), default=context.now)
            if context.now - latest <= context.stuck_after:
                continue  # a worker may be about to write what is missing
            reason = _missing(context, RunUnit.fold(entries))
            if reason is not None:
                halfway.append(run_id)
                why[reason] = why.get(reason, 0) + 1
        after, looked = page[-1], looked + len(page)
    if not halfway:
        return []
    counts = ", ".join(f"{count} x {reason}" for reason, count in why.items())
    detail = f"{len(halfway)} runs were left halfway ({counts}): {some(halfway)}"
    return [Finding(STUCK_RUNS, detail, "squid recover -m MODULE (a worker does the same every half a minute)")]


def _missing(context: DoctorContext, unit: "RunUnit") -> str | None:
    """Return what recovery would write for this run; None: nothing, or nothing that the definitions at hand allow."""
    from squid_dagster.protocol.threads import run_thread
    from squid_dagster.workflow.planner.missing_facts import missing_facts

    start, registry = unit.run.start, context.registry
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
    if any(context.storage.revision(run_thread(link.child_run_id)) == 0 for link in missing.links):
        return "a child that never started"
    return None
