"""Facts that the suites of queries share."""

from datetime import timedelta
from typing import Any

from tests.facts import claimed, dead_lettered, planned, scheduled, started

# --- dead letters ---------------------------------------------------------------------------------------------------


def lost(run: str, **fields: Any) -> list[Any]:
    """Return the facts of a run whose only attempt was claimed as often as it may be, and is a dead letter."""
    queue = {key: value for key, value in fields.items() if key == "queue"}
    return [
        started(run),
        planned(run=run),
        scheduled(run, max_deliveries=1, **fields),
        claimed(run, **queue),
        dead_lettered(run, error={"message": "lost"}, **queue),
    ]


# --- cron -----------------------------------------------------------------------------------------------------------


LATE = timedelta(days=365).total_seconds()


def window(start: Any) -> dict[str, Any]:
    """Return what a run is started with when a cron trigger starts it."""
    return {"schedule": {"intended_window": {"start_at": start, "end_at": None}}}
