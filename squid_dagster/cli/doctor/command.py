"""`squid doctor`: looks for what is wrong, names it, and says what to do. Reads, and changes nothing."""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from squid_dagster.cli.app import REFUSED
from squid_dagster.cli.doctor.findings import (
    CODES,
    SCHEMA_DRIFT,
    VIEWS_DIFFER,
    CheckUnavailable,
    DoctorContext,
    Finding,
)
from squid_dagster.cli.place import Place, with_workflows
from squid_dagster.cli.run.options import Seconds
from squid_dagster.cli.terminal.output import emit, progress

if TYPE_CHECKING:
    from squid_dagster.workflow.registry import Registry

Diagnosis = dict[str, Any]


def _address(_: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    from squid_dagster.cli.doctor.dagster_locations import check_address

    try:
        return check_address(text) if text is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error), param=parameter) from None


@click.command()
@click.option("--dagster", metavar="URL", callback=_address, help="A Dagster webserver, such as http://127.0.0.1:3000.")
@click.option(
    "--stuck-after",
    type=Seconds(0, 30 * 86_400),
    default=60.0,
    show_default=True,
    help="Seconds that work may be due, or a run halfway, before something is wrong.",
)
@click.option(
    "--max-skew",
    type=Seconds(0, 86_400),
    default=2.0,
    show_default=True,
    help="Seconds that this machine's clock may differ from the database's.",
)
@click.option("--skip", type=click.Choice(CODES), multiple=True, help="Leave this check out; may be repeated.")
@with_workflows
def doctor(
    dagster: str | None, stuck_after: float, max_skew: float, skip: Sequence[str], place: Place, as_json: bool
) -> int:
    """Find what is wrong, and name it. Exit code 1 if anything is; a check that cannot be made is told as skipped.

    Looks for: schema_drift, views_differ, clock_skew, stuck_runs, queue_without_worker, workflow_not_loadable (with -m,
    or by what live workers say), dagster_elsewhere (with --dagster).
    """
    from squid_dagster.protocol.errors import SchemaOutdated, SchemaTooNew

    registry, not_loaded = _registry(place)
    try:
        with place.storage() as storage, progress("looking") as tell:
            from squid_dagster.api import Squid

            squid = Squid(storage)
            context = DoctorContext(
                storage=storage,
                squid=squid,
                workers=[row for row in squid.live_workers() if row.queues],
                registry=registry,
                not_loaded=not_loaded,
                now=storage.now(),
                stuck_after=timedelta(seconds=stuck_after),
                max_skew=timedelta(seconds=max_skew),
                dagster=dagster,
                seconds=time.time,
                progress=tell,
            )
            diagnosis = examine(context, skip)
    except (SchemaOutdated, SchemaTooNew) as error:
        diagnosis = _diagnosis([_unusable(error)], dict.fromkeys(CODES, "the schema cannot be used"))
    emit(as_json, diagnosis, *_shown(diagnosis))
    return 0 if diagnosis["healthy"] else REFUSED


def examine(context: DoctorContext, skip: Sequence[str] = ()) -> Diagnosis:
    """Run all checks but those to be left out; one that cannot be made is listed as skipped, with its reason.

    A fault that keeps a check from being made is a finding too, whichever check meets it.

    Raises:
        StorageUnavailable: the database does not answer: there is nothing to say of how it is.
    """
    from squid_dagster.cli.doctor.checks import CHECKS
    from squid_dagster.protocol.errors import SchemaOutdated, SchemaTooNew, ViewsMissing

    findings: list[Finding] = []
    skipped: dict[str, str] = {}
    for code, check in CHECKS.items():
        if code in skip:
            skipped[code] = "left out (--skip)"
            continue
        try:
            findings += check(context)
        except CheckUnavailable as reason:
            skipped[code] = _line(reason)
        except (ViewsMissing, SchemaOutdated, SchemaTooNew) as fault:
            skipped[code] = _line(fault)
            finding = _unusable(fault)
            if finding.code not in {known.code for known in findings}:
                findings.append(finding)
    return _diagnosis(findings, skipped)


def _unusable(fault: Exception) -> Finding:
    """Return the finding about a fault that keeps checks from being made."""
    from squid_dagster.protocol.errors import ViewsMissing

    if isinstance(fault, ViewsMissing):
        return Finding(VIEWS_DIFFER, _line(fault), "squid views rebuild")
    return Finding(SCHEMA_DRIFT, _line(fault), "squid db upgrade, or upgrade squid-dagster")


def _line(error: Exception) -> str:
    from squid_dagster.redaction import redacted_text

    return " ".join(redacted_text(str(error)).split())


def _diagnosis(findings: list[Finding], skipped: dict[str, str]) -> Diagnosis:
    wrong = {finding.code for finding in findings}
    return {
        "healthy": not findings,
        "findings": [finding._asdict() for finding in findings],
        "skipped": [{"code": code, "reason": reason} for code, reason in skipped.items() if code not in wrong],
        "passed": [code for code in CODES if code not in wrong and code not in skipped],
    }


def _shown(diagnosis: Diagnosis) -> list[str]:
    lines = [f"ok       {code}" for code in diagnosis["passed"]]
    lines += [f"skipped  {check['code']}: {check['reason']}" for check in diagnosis["skipped"]]
    for finding in diagnosis["findings"]:
        lines += [f"WRONG    {finding['code']}: {finding['detail']}", f"         -> {finding['remedy']}"]
    return [*lines, "", _verdict(diagnosis)]


def _verdict(diagnosis: Diagnosis) -> str:
    if diagnosis["findings"]:
        return f"{len(diagnosis['findings'])} found."
    if diagnosis["skipped"]:
        skipped = ", ".join(check["code"] for check in diagnosis["skipped"])
        return f"Nothing is wrong in what was checked; skipped: {skipped}."
    return "Nothing is wrong."


def _registry(place: Place) -> "tuple[Registry | None, str | None]":
    """Load the modules that were named; or return why they cannot be loaded."""
    if not place.modules:
        return None, None
    from squid_dagster.runtime.adapters import definitions
    from squid_dagster.workflow.errors import InvalidWorkflow, WorkflowsNotLoaded
    from squid_dagster.workflow.registry import Registry

    try:
        return Registry(definitions(place.workflows())), None
    except (WorkflowsNotLoaded, InvalidWorkflow) as error:
        return None, _line(error)
