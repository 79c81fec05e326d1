"""Keys and descriptions of the warehouse's assets, and which of them have days."""

from typing import NamedTuple

import dagster as dg

GROUP = "squid"
PREFIX = "squid"
KINDS = {"spark", "parquet"}
JOURNAL, STAGE = "journal", "folded_runs"
RUN_HISTORY, ATTEMPT_HISTORY = "run_history", "attempt_history"
HISTORIES = (RUN_HISTORY, ATTEMPT_HISTORY)


class Table(NamedTuple):
    """A table, and what it is for."""

    name: str
    description: str


STAGE_TABLE = Table(
    STAGE,
    "All runs, folded from the journal by Spark: every other table is derived from it. Only runs that were touched "
    "since the last time are folded again; `full: true` folds them all.",
)
TABLES = (
    Table("run_index", "Where each run is found under its workflow, from its index fact."),
    Table("run_catalog", "Where each run is found among all, from its catalog fact."),
    Table("journal_anomalies", "Every fact that no rule could follow, with the reason, the thread and the sequence."),
    Table("queue_health", "Every queue as it stood at the last fact: what is open and due, and what its last day was."),
)
HISTORY_TABLES = (
    Table(RUN_HISTORY, "A row for each run, by the day of its start: how it began, went and ended."),
    Table(ATTEMPT_HISTORY, "A row for each attempt, by the day of its run's start: scheduled, claimed, settled."),
)


def key_of(name: str) -> dg.AssetKey:
    """Return the key of an asset."""
    return dg.AssetKey([PREFIX, name])
