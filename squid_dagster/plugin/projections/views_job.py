"""The job `squid_rebuild_views`: it rebuilds the live views from the journal with Spark, while work goes on."""

import dagster as dg
from pydantic import Field

from squid_dagster.journal.postgres.views.rebuild import RebuildReport
from squid_dagster.plugin.failures import dagster_failures
from squid_dagster.plugin.markdown import table
from squid_dagster.plugin.names import AGENT_PROJECTIONS, REBUILD_VIEWS_JOB, job_tags
from squid_dagster.plugin.projections.resources import SparkResource
from squid_dagster.plugin.resource import SquidResource

REBUILD_VIEWS_OP = "squid_restore_views"


class RebuildViewsConfig(dg.Config):
    """Config of the rebuild."""

    partitions: int | None = Field(
        default=None, ge=1, description="By how many tasks the runs are folded. None: by as many as the journal needs."
    )


def build_rebuild_views_job() -> dg.JobDefinition:
    """Build the job `squid_rebuild_views`. Its one op needs the resources `squid` and `spark`.

    It restores views that were dropped, emptied or changed. Writers wait for the swap at most; if a view is missing,
    until it is back.
    """

    @dg.op(name=REBUILD_VIEWS_OP, out=dg.Out(dg.Nothing), description="Rebuild the live views from the journal.")
    def restore(
        context: dg.OpExecutionContext, config: RebuildViewsConfig, squid: SquidResource, spark: SparkResource
    ) -> None:
        from squid_dagster.plugin.projections.spark_journal import journal_for_spark
        from squid_dagster.spark.fold.live_views import restore_views

        with dagster_failures(), journal_for_spark(squid, spark) as (session, storage, location):
            done = restore_views(session, storage, location, partitions=config.partitions)
        context.log.info(
            f"made the live views anew: {done.runs:,} runs from {done.entries:,} entries folded by Spark, "
            f"{done.tail_runs:,} runs folded again before the swap at position {done.cut:,}"
        )
        context.add_output_metadata(rebuilt_metadata(done))

    @dg.job(
        name=REBUILD_VIEWS_JOB,
        tags=job_tags(AGENT_PROJECTIONS),
        description="Rebuilds the live views from the journal with Spark, and swaps them in while work goes on.",
        executor_def=dg.in_process_executor,  # one op: a process of its own for it would be waste
    )
    def job() -> None:
        restore()

    return job


def rebuilt_metadata(done: RebuildReport) -> dict[str, dg.MetadataValue]:
    """Describe what a rebuild did. Pure."""
    rows = [
        ("runs folded by Spark", f"{done.runs:,}"),
        ("their entries", f"{done.entries:,}"),
        ("runs that got facts meanwhile, folded again", f"{done.tail_runs:,}"),
        ("the views cover the journal up to position", f"{done.cut:,}"),
    ]
    return {
        "squid/runs": dg.MetadataValue.int(done.runs),
        "squid/entries": dg.MetadataValue.int(done.entries),
        "squid/cut": dg.MetadataValue.int(done.cut),
        "squid/tail_runs": dg.MetadataValue.int(done.tail_runs),
        "squid/report": dg.MetadataValue.md(table(("what", "how many"), rows)),
    }
