"""`squid status`: one screen about the database, queues, workers, and what needs a person."""

from typing import TYPE_CHECKING, Any

import click

from squid_dagster.cli.db import tier_of
from squid_dagster.cli.place import Place, on_journal
from squid_dagster.cli.queue.display import queue_values, queues_table, worker_values
from squid_dagster.cli.terminal.output import emit, table

if TYPE_CHECKING:
    from datetime import datetime

    from squid_dagster.inspection.attention import Attention
    from squid_dagster.journal import PostgresStorage, QueueRow, WorkerRow

_MOST_RUNS = 10_000  # of each status so many are counted


@click.command()
@on_journal
def status(place: Place, as_json: bool) -> None:
    """Show one screen: database, queues, workers, what needs attention.

    Reads live views alone. Runs and open work are counted up to 10,000 of each kind.
    """
    from squid_dagster.api import Squid
    from squid_dagster.journal.postgres.views.counts import count_runs

    with place.storage() as storage:
        squid, now = Squid(storage), storage.now()
        queues, workers, needed = squid.queues(), squid.live_workers(), squid.attention()
        serving = [row for row in workers if row.queues]
        facts = {
            "database": _database(storage, place),
            "now": now,
            "queues": [queue_values(row, workers) for row in queues],
            "workers": [worker_values(row) for row in serving],
            "runs": _runs(count_runs(storage, _MOST_RUNS)),
            "attention": [_attention(trouble, place) for trouble in needed],
        }
    emit(as_json, facts, *_screen(facts, queues, serving, now))


def _database(storage: "PostgresStorage", place: Place) -> dict[str, Any]:
    from squid_dagster.journal.tiers import EmbeddedTier, describe

    tier = tier_of(place.data_dir)
    return {
        "tier": "embedded" if isinstance(tier, EmbeddedTier) else "server",
        "description": describe(tier),
        "schema": storage.schema,
        "version": storage.check(),
    }


def _runs(counts: dict[str, int]) -> dict[str, Any]:
    return {status: {"count": count, "more": count >= _MOST_RUNS} for status, count in counts.items()}


def _attention(trouble: "Attention", place: Place) -> dict[str, Any]:
    return {
        "kind": trouble.kind,
        "count": trouble.count,
        "more": trouble.has_more,
        "queue": trouble.queue,
        "summary": trouble.summary,
        "commands": [place.command_line(command) for command in trouble.commands],
        "run_ids": list(trouble.run_ids),
    }


def _screen(facts: dict[str, Any], queues: "list[QueueRow]", workers: "list[WorkerRow]", now: "datetime") -> list[Any]:
    database = facts["database"]
    counted = [
        f"{figures['count']}{'+' if figures['more'] else ''} {name}"
        for name, figures in facts["runs"].items()
        if figures["count"]
    ]
    shown: list[Any] = [
        f"{database['description']}, schema {database['schema']} at version {database['version']}",
        f"runs: {', '.join(counted) or 'none'}",
    ]
    if queues:
        shown += ["", queues_table(queues, workers)]
    if workers:
        rows = (
            (
                row.worker_id,
                row.kind,
                ", ".join(row.queues),
                f"{row.running}/{row.capacity}",
                f"{row.host}:{row.pid}",
                None if row.started_at is None else now - row.started_at,
            )
            for row in workers
        )
        shown += ["", table(("worker", "kind", "queues", "running", "where", "up"), rows)]
    else:
        shown += ["", "no worker is alive"]
    if not facts["attention"]:
        return [*shown, "", "Nothing needs attention."]
    shown += ["", "needs attention:"]
    for trouble in facts["attention"]:
        shown.append(f"  {trouble['summary']}")
        shown += [f"      $ {command}" for command in trouble["commands"]]
    return shown
