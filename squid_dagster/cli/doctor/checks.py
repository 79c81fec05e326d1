"""The doctor's checks, one function each. They read, and change nothing."""

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
    CannotTell,
    Check,
    Finding,
    Patient,
    some,
)
from squid_dagster.cli.doctor.stuck_runs import stuck_runs

if TYPE_CHECKING:
    from squid_dagster.journal.postgres.views.counts import DueLane


def schema_drift(patient: Patient) -> list[Finding]:
    """Compare the schema with one that the migrations make, in a transaction that is rolled back."""
    from squid_dagster.journal.postgres.schema.drift import DriftUnknown, drift
    from squid_dagster.journal.postgres.schema.names import CODE_VERSION

    version = patient.storage.check()
    if version != CODE_VERSION:
        raise CannotTell(f"the schema is at version {version}, this code only knows what version {CODE_VERSION} is")
    try:
        found = drift(patient.storage)
    except DriftUnknown as error:
        raise CannotTell(str(error)) from None
    if not found:
        return []
    remedy = "put these objects back as the migrations make them (`squid views rebuild` does, for views); or export "
    remedy += "the journal, and import it into a new schema"
    where = f"in schema {patient.storage.schema!r}, {_objects(found)} not what the migrations make"
    return [Finding(SCHEMA_DRIFT, f"{where}: {some(found)}", remedy)]


def _objects(found: list[str]) -> str:
    return "1 object is" if len(found) == 1 else f"{len(found)} objects are"


def views_differ(patient: Patient) -> list[Finding]:
    """Compare every row of the live views, cards included, with the facts."""
    from squid_dagster.backlog.postgres.rebuild import differences
    from squid_dagster.journal.postgres.views.verification import check_views

    found = [each.detail for each in check_views(patient.storage, patient.progress)]
    found += [f"backlog: {each}" for each in differences(patient.storage)]
    if not found:
        return []
    detail = f"{len(found)} rows of live views are not what the facts say: {some(found)}"
    return [Finding(VIEWS_DIFFER, detail, "squid views rebuild")]


def clock_skew(patient: Patient) -> list[Finding]:
    """Ask the database for its time, and compare it with this machine's; the time that the answer took is allowed."""
    asked = patient.seconds()
    told = patient.storage.rows("SELECT clock_timestamp()")[0][0].timestamp()
    answered = patient.seconds()
    skew = timedelta(seconds=told - (asked + answered) / 2)
    if abs(skew) - timedelta(seconds=abs(answered - asked) / 2) <= patient.max_skew:
        return []
    here = datetime.fromtimestamp(answered, UTC).isoformat(timespec="seconds")
    side = "behind" if skew > timedelta(0) else "ahead of"
    detail = f"this machine's clock ({here}) is {abs(skew.total_seconds()):.1f} s {side} the database's"
    return [Finding(CLOCK_SKEW, detail, "set both clocks by NTP; leases go by the database's, logs by this one")]


def queue_without_worker(patient: Patient) -> list[Finding]:
    """Look for queues with work that has been due for a while, and nobody alive who serves them."""
    from squid_dagster.inspection.attention import due_for_workers, serving
    from squid_dagster.inspection.display import span

    queues: dict[str, list[DueLane]] = {}
    for lane in due_for_workers(patient.storage):
        if not serving(lane.queue, patient.workers):
            queues.setdefault(lane.queue, []).append(lane)
    found = []
    for queue, lanes in queues.items():
        waited = patient.now - min(lane.oldest_due_at for lane in lanes)
        if waited > patient.stuck_after:
            due = sum(lane.due for lane in lanes)
            detail = f"queue {queue!r} has {due} attempts due, the oldest for {span(waited)}, and no live worker"
            remedy = f"squid worker -m MODULE --queue {queue} (or see that Dagster's dispatch sensor runs)"
            found.append(Finding(QUEUE_WITHOUT_WORKER, detail, remedy))
    return found


def workflow_not_loadable(patient: Patient) -> list[Finding]:
    """Look for modules that cannot be loaded, and for open runs whose definition nobody has."""
    from squid_dagster.inspection.hold import executes
    from squid_dagster.journal.postgres.views.counts import open_definitions
    from squid_dagster.protocol.folds.attempt import definition_key

    if patient.not_loaded is not None:
        remedy = "mend the module, or see that it is on the Python path; then run the doctor again"
        return [Finding(WORKFLOW_NOT_LOADABLE, patient.not_loaded, remedy)]
    if patient.registry is None and not patient.workers:
        raise CannotTell("no module was named (-m), and no worker is alive that would say which workflows it has")
    found = []
    for each in open_definitions(patient.storage):
        key = definition_key(each.workflow, each.fingerprint)
        here = patient.registry is not None and patient.registry.find(each.workflow, each.fingerprint) is not None
        if here or any(executes(worker, key) for worker in patient.workers):
            continue
        version = f" version {each.version!r}" if each.version is not None else ""
        detail = f"{each.runs} open runs, such as {each.run_id}, were started with workflow {each.workflow!r}{version} "
        detail += f"(fingerprint {each.fingerprint[:12]}), which neither a module named here nor a live worker has"
        remedy = "register that version beside the new one and start a worker with it; or `squid run cancel` these runs"
        found.append(Finding(WORKFLOW_NOT_LOADABLE, detail, remedy))
    return found


CHECKS: dict[str, Check] = {
    SCHEMA_DRIFT: schema_drift,
    VIEWS_DIFFER: views_differ,
    CLOCK_SKEW: clock_skew,
    STUCK_RUNS: stuck_runs,
    QUEUE_WITHOUT_WORKER: queue_without_worker,
    WORKFLOW_NOT_LOADABLE: workflow_not_loadable,
    DAGSTER_ELSEWHERE: dagster_elsewhere,
}
