"""The doctor's checks, one function for each code of a finding. They read, and change nothing."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from squid_dagster.cli.doctor.dagster_locations import dagster_elsewhere
from squid_dagster.cli.doctor.findings import (
    CLOCK_SKEW,
    DAGSTER_ELSEWHERE,
    QUEUE_WITHOUT_WORKER,
    SCHEMA_DRIFT,
    STUCK_RUNS,
    VIEWS_DIFFER,
    WORKFLOW_NOT_LOADABLE,
    Check,
    CheckUnavailable,
    DoctorContext,
    Finding,
    some,
)
from squid_dagster.cli.doctor.stuck_runs import stuck_runs

if TYPE_CHECKING:
    from squid_dagster.journal.postgres.views.counts import DueLane


def schema_drift(context: DoctorContext) -> list[Finding]:
    """Compare the schema with one that the migrations make, in a transaction that is rolled back."""
    from squid_dagster.journal.postgres.schema.drift import DriftUnknown, drift
    from squid_dagster.journal.postgres.schema.names import CODE_VERSION

    version = context.storage.check()
    if version != CODE_VERSION:
        raise CheckUnavailable(
            f"the schema is at version {version}, this code only knows what version {CODE_VERSION} is"
        )
    try:
        differences = drift(context.storage)
    except DriftUnknown as error:
        raise CheckUnavailable(str(error)) from None
    if not differences:
        return []
    remedy = "put these objects back as the migrations make them (`squid views rebuild` does, for views); or export "
    remedy += "the journal, and import it into a new schema"
    where = f"in schema {context.storage.schema!r}, {_objects(differences)} not what the migrations make"
    return [Finding(SCHEMA_DRIFT, f"{where}: {some(differences)}", remedy)]


def _objects(differences: list[str]) -> str:
    return "1 object is" if len(differences) == 1 else f"{len(differences)} objects are"


def views_differ(context: DoctorContext) -> list[Finding]:
    """Compare every row of the live views, cards included, with the facts."""
    from squid_dagster.backlog.postgres.rebuild import differences
    from squid_dagster.journal.postgres.views.verification import check_views

    details = [discrepancy.detail for discrepancy in check_views(context.storage, context.progress)]
    details += [f"backlog: {difference}" for difference in differences(context.storage)]
    if not details:
        return []
    detail = f"{len(details)} rows of live views are not what the facts say: {some(details)}"
    return [Finding(VIEWS_DIFFER, detail, "squid views rebuild")]


def clock_skew(context: DoctorContext) -> list[Finding]:
    """Compare the database's time with this machine's; the time that the answer took is allowed."""
    asked = context.seconds()
    db_seconds = context.storage.rows("SELECT clock_timestamp()")[0][0].timestamp()
    answered = context.seconds()
    skew = timedelta(seconds=db_seconds - (asked + answered) / 2)
    if abs(skew) - timedelta(seconds=abs(answered - asked) / 2) <= context.max_skew:
        return []
    here = datetime.fromtimestamp(answered, UTC).isoformat(timespec="seconds")
    side = "behind" if skew > timedelta(0) else "ahead of"
    detail = f"this machine's clock ({here}) is {abs(skew.total_seconds()):.1f} s {side} the database's"
    return [Finding(CLOCK_SKEW, detail, "set both clocks by NTP; leases go by the database's, logs by this one")]


def queue_without_worker(context: DoctorContext) -> list[Finding]:
    """Return the queues with work that has been due for a while, and no live worker."""
    from squid_dagster.inspection.attention import due_for_workers, serving
    from squid_dagster.inspection.display import span

    queues: dict[str, list[DueLane]] = {}
    for lane in due_for_workers(context.storage):
        if not serving(lane.queue, context.workers):
            queues.setdefault(lane.queue, []).append(lane)
    findings = []
    for queue, lanes in queues.items():
        waited = context.now - min(lane.oldest_due_at for lane in lanes)
        if waited > context.stuck_after:
            due = sum(lane.due for lane in lanes)
            detail = f"queue {queue!r} has {due} attempts due, the oldest for {span(waited)}, and no live worker"
            remedy = f"squid worker -m MODULE --queue {queue} (or see that Dagster's dispatch sensor runs)"
            findings.append(Finding(QUEUE_WITHOUT_WORKER, detail, remedy))
    return findings


def workflow_not_loadable(context: DoctorContext) -> list[Finding]:
    """Return modules that cannot be loaded, and open runs whose definition no module and no live worker has."""
    from squid_dagster.inspection.hold import executes
    from squid_dagster.journal.postgres.views.counts import open_definitions
    from squid_dagster.protocol.folds.attempt import definition_key

    if context.not_loaded is not None:
        remedy = "mend the module, or see that it is on the Python path; then run the doctor again"
        return [Finding(WORKFLOW_NOT_LOADABLE, context.not_loaded, remedy)]
    if context.registry is None and not context.workers:
        raise CheckUnavailable("no module was named (-m), and no worker is alive that would say which workflows it has")
    findings = []
    for pinned in open_definitions(context.storage):
        key = definition_key(pinned.workflow, pinned.fingerprint)
        here = context.registry is not None and context.registry.find(pinned.workflow, pinned.fingerprint) is not None
        if here or any(executes(worker, key) for worker in context.workers):
            continue
        version = f" version {pinned.version!r}" if pinned.version is not None else ""
        detail = f"{pinned.runs} open runs, such as {pinned.run_id}, were started with workflow "
        detail += f"{pinned.workflow!r}{version} (fingerprint {pinned.fingerprint[:12]}), which neither a module named "
        detail += "here nor a live worker has"
        remedy = "register that version beside the new one and start a worker with it; or `squid run cancel` these runs"
        findings.append(Finding(WORKFLOW_NOT_LOADABLE, detail, remedy))
    return findings


CHECKS: dict[str, Check] = {
    SCHEMA_DRIFT: schema_drift,
    VIEWS_DIFFER: views_differ,
    CLOCK_SKEW: clock_skew,
    STUCK_RUNS: stuck_runs,
    QUEUE_WITHOUT_WORKER: queue_without_worker,
    WORKFLOW_NOT_LOADABLE: workflow_not_loadable,
    DAGSTER_ELSEWHERE: dagster_elsewhere,
}
