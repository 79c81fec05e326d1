"""The journal as an asset: what is derived from it names it as its source, and shows how far it has come since."""

import dagster as dg

from squid_dagster.inspection.display import when
from squid_dagster.plugin.failures import dagster_failures
from squid_dagster.plugin.markdown import table
from squid_dagster.plugin.projections.specs import GROUP, JOURNAL, key_of
from squid_dagster.plugin.resource import SquidResource

_HEADINGS = ("queue", "paused", "due", "due later", "claimed", "lease over", "oldest due since")


def build_journal_asset() -> dg.AssetsDefinition:
    """Build the asset `squid/journal`. It needs the resource `squid`, and no Spark."""

    @dg.asset(
        key=key_of(JOURNAL),
        group_name=GROUP,
        kinds={"postgres"},
        description="The append-only journal. Materializing it writes nothing there: it notes how far the journal has "
        "come, and what every queue holds.",
    )
    def journal(squid: SquidResource) -> dg.MaterializeResult[None]:
        with dagster_failures():
            position = squid.journal.cut()
            rows = squid.squid.runtime.queries.queues()
        shown = [
            (
                row.queue,
                "yes" if row.paused else "no",
                row.visible,
                row.scheduled,
                row.claimed,
                row.expired,
                when(row.oldest_due_at) if row.oldest_due_at else "",
            )
            for row in rows
        ]
        return dg.MaterializeResult(
            data_version=dg.DataVersion(str(position)),
            metadata={
                "squid/journal_high_water": position,
                "squid/due": sum(row.visible for row in rows),
                "squid/queues": dg.MetadataValue.md(table(_HEADINGS, shown)),
            },
        )

    return journal
