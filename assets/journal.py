"""The journal as an asset: what is derived from it can name it as its source, and see how far it has come since."""

import dagster as dg

from squid_dagster.inspection.shown import when
from squid_dagster.plugin import SquidResource
from squid_dagster.plugin.failures import explained
from squid_dagster.plugin.markdown import table

_HEADINGS = ("queue", "paused", "due", "due later", "claimed", "lease over", "oldest due since")


@dg.asset(
    key=["squid", "journal"],
    group_name="squid",
    kinds={"postgres"},
    description="The append-only journal. Materializing it writes nothing there: it notes how far the journal has "
    "come, and what every queue holds.",
)
def journal(squid: SquidResource) -> dg.MaterializeResult[None]:
    """Tell the position up to which nothing can change any more, and what is open on every queue."""
    with explained():
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
