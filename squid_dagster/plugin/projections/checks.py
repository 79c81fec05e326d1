"""The checks of the journal as asset checks: one op for all four, since one pass over the journal serves them.

Spark is imported when the op runs, so that a location loads without it.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import dagster as dg

from squid_dagster.limits import MAX_LEASE
from squid_dagster.plugin.builders import builds
from squid_dagster.plugin.failures import dagster_failures
from squid_dagster.plugin.markdown import table
from squid_dagster.plugin.projections.resources import SparkResource, WarehouseResource
from squid_dagster.plugin.projections.specs import JOURNAL, key_of
from squid_dagster.plugin.resource import SquidResource
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.checks.results import Check, CheckResult

CHECKS_OP = "squid_journal_checks"
DEFAULT_GRACE_MINUTES = 10.0

_ASSETS = {
    Check.VIEWS: "run_index",
    Check.LISTED: "run_catalog",
    Check.SEQUENCES: JOURNAL,
    Check.ANOMALIES: "journal_anomalies",
}
_DESCRIPTIONS = {
    Check.VIEWS: "Every row of the live views equals what Spark folds from the journal. Writers at work do not matter.",
    Check.LISTED: "Every run that has started is in the index and in the catalog, and every listed run has started.",
    Check.SEQUENCES: "Every thread's sequence is 1 to its revision, without a gap and without a number that is twice.",
    Check.ANOMALIES: "There is no anomaly that was not there at the last check. What was there is kept in the "
    "warehouse; where that is lost, all anomalies are new once.",
}


@builds
def build_projection_checks(*, grace_minutes: float = DEFAULT_GRACE_MINUTES) -> dg.AssetChecksDefinition:
    """Build the checks on `squid/journal`, `squid/run_index`, `squid/run_catalog` and `squid/journal_anomalies`.

    They need the resources `squid`, `spark` and `squid_warehouse`, and can be run one by one. Each kind of damage turns
    one of them red, which names the runs and says what to do. `grace_minutes` is the time that a started run may take
    into index and catalog, which workers and recovery write in batches.

    Raises:
        InvalidArgument: `grace_minutes` is below 0 or above 30 days.
    """
    if not 0 <= grace_minutes * 60 <= MAX_LEASE.total_seconds():
        raise InvalidArgument(f"grace_minutes must be from 0 to {MAX_LEASE.days} days, not {grace_minutes!r}")
    specs = [
        dg.AssetCheckSpec(check.value, asset=key_of(name), description=_DESCRIPTIONS[check])
        for check, name in _ASSETS.items()
    ]

    @dg.multi_asset_check(
        name=CHECKS_OP,
        specs=specs,
        can_subset=True,
        description="Checks the whole journal with Spark, in one pass for all checks.",
    )
    def checks(
        context: dg.AssetCheckExecutionContext,
        squid: SquidResource,
        spark: SparkResource,
        squid_warehouse: WarehouseResource,
    ) -> Iterator[dg.AssetCheckResult]:
        from squid_dagster.plugin.projections.spark_journal import journal_for_spark
        from squid_dagster.spark.checks.journal_checks import checked
        from squid_dagster.spark.checks.known_anomalies import KnownAnomalies

        selected = [check for check in Check if _key(check) in context.selected_asset_check_keys]
        with dagster_failures():
            warehouse = squid_warehouse.warehouse
            if Check.ANOMALIES in selected:
                warehouse.check()  # a directory that cannot be written fails before any work starts
        with dagster_failures(), journal_for_spark(squid, spark) as (session, storage, location):
            memory, grace = KnownAnomalies(warehouse.path), timedelta(minutes=grace_minutes)
            with checked(session, storage, location, memory=memory, checks=selected, grace=grace) as done:
                for check in selected:
                    yield check_result(check, done.results[check], done.cut)
                # After the results: a run that is stopped before reports the same anomalies again.
                done.remember()

    return checks


def check_result(check: Check, result: CheckResult, cut: int) -> dg.AssetCheckResult:
    """Render the result of a check: counts, and the runs in a table. Pure."""
    metadata: dict[str, Any] = {"squid/cut": cut}
    metadata |= {f"squid/{name}": count for name, count in result.counts.items()}
    if result.runs:
        shown = table(("run", "what is wrong"), [(one.run_id or "", one.what) for one in result.runs])
        rest = f"\n\nand {result.unnamed:,} more" if result.unnamed else ""
        metadata["squid/runs"] = dg.MetadataValue.md(shown + rest)
    return dg.AssetCheckResult(
        passed=result.passed,
        asset_key=key_of(_ASSETS[check]),
        check_name=check.value,
        severity=dg.AssetCheckSeverity.ERROR,
        description=_sentence(result),
        metadata=metadata,
    )


def _sentence(result: CheckResult) -> str | None:
    if result.passed:
        return None
    named = ", ".join(one.run_id or one.what for one in result.runs)
    rest = f" and {result.unnamed:,} more" if result.unnamed else ""
    return f"{named}{rest}. Remedy: {result.remedy}."


def _key(check: Check) -> dg.AssetCheckKey:
    return dg.AssetCheckKey(key_of(_ASSETS[check]), check.value)
