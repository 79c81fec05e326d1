"""Rules about queues, deliveries and crons that hold for every simulated journal, checked from facts."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from squid_dagster.protocol.entries import Entry


def rule_breaks(entries: Sequence[Entry], every_minute: Collection[str] = ()) -> Iterator[str]:
    """Yield the problems of a whole journal, by position.

    `every_minute` names workflows with a cron for every minute that catches up on all windows.
    """
    yield from _paused_queues(entries)
    yield from _deliveries(entries)
    yield from _windows(entries, every_minute)


def _paused_queues(entries: Sequence[Entry]) -> Iterator[str]:
    """Check that a paused queue gives no claims."""
    paused: set[str] = set()
    for entry in entries:
        fact: Any = entry.fact
        match fact.type:
            case "queue_paused":
                paused.add(fact.queue)
            case "queue_resumed":
                paused.discard(fact.queue)
            case "attempt_claimed" if fact.queue in paused:
                yield f"claim at {entry.position} takes {fact.runnable_key!r} from paused queue {fact.queue!r}"


def _deliveries(entries: Sequence[Entry]) -> Iterator[str]:
    """Check that an attempt is claimed at most `max_deliveries` times, and is a dead letter only after that."""
    most: dict[str, int] = {}
    counts: dict[str, int] = {}
    for entry in entries:
        fact: Any = entry.fact
        match fact.type:
            case "attempt_scheduled":
                most.setdefault(fact.runnable_key, fact.max_deliveries)
            case "attempt_claimed":
                counts[fact.runnable_key] = counts.get(fact.runnable_key, 0) + 1
                if counts[fact.runnable_key] > most.get(fact.runnable_key, 10**9):
                    yield f"{fact.runnable_key!r} was claimed {counts[fact.runnable_key]} times, at {entry.position}"
            case "attempt_released" if not fact.counted:
                counts[fact.runnable_key] -= 1
            case "attempt_dead_lettered" if counts.get(fact.runnable_key, 0) < most.get(fact.runnable_key, 0):
                yield f"{fact.runnable_key!r} is a dead letter after {counts.get(fact.runnable_key, 0)} deliveries"


def _windows(entries: Sequence[Entry], every_minute: Collection[str]) -> Iterator[str]:
    """Check that a cron that catches up on all windows starts each window once."""
    starts: dict[str, list[datetime]] = {}
    for entry in entries:
        fact: Any = entry.fact
        schedule = fact.context.get("schedule") if fact.type == "run_started" else None
        window = schedule.get("intended_window") if isinstance(schedule, dict) else None
        if isinstance(window, dict) and fact.workflow in every_minute:
            starts.setdefault(fact.workflow, []).append(datetime.fromisoformat(window["start_at"]))
    for workflow, times in starts.items():
        windows = sorted(times)
        for earlier, later in pairwise(windows):
            if later - earlier != timedelta(minutes=1):
                yield f"cron of {workflow!r} was started for {earlier.isoformat()} and then for {later.isoformat()}"
