"""Journals and warehouses of the refresh tests: runs to write in steps, and the contents of all tables."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, LiteralString

from pyarrow import parquet as pq
from pyspark.sql import SparkSession

from squid_dagster.journal.contract.storage import Append
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import Fact, RunStarted
from squid_dagster.spark.tables.refresh import RefreshResult, refresh
from squid_dagster.spark.tables.warehouse import STAGE, TABLES, Warehouse
from tests.spark.reading import location
from tests.spark.synthetic_runs import EventRates, SyntheticRun, make_run

RICH = EventRates(retries=0.3, expiries=0.2, approvals=0.2, children=0.2, anomalies=0.2, unfinished=0.2)


START = datetime(2026, 1, 1, 6, tzinfo=UTC)


_RUNS_AT_A_TIME = 6


Moments = list[list[Fact]]


def random_runs(random: Random, count: int, every: timedelta, first: int = 0) -> list[SyntheticRun]:
    """Return runs with every kind of event, and their children."""
    return [
        run
        for number in range(first, first + count)
        for run in make_run(
            f"run-{number}",
            random=random,
            mix=RICH,
            start=START + number * every,
            workflow=random.choice(["billing", "mail"]),
            queue=random.choice(["default", "slow"]),
            steps=2,
        )
    ]


def late(run: SyntheticRun) -> Moments:
    """Return the moments of a run whose start is written after its first steps."""
    begin, *rest = run.moments
    start: list[Fact] = [fact for fact in begin if isinstance(fact, RunStarted)]
    return [[fact for fact in begin if fact not in start], *rest[:1], start, *rest[1:]]


def mixed(random: Random, all_moments: list[Moments]) -> Moments:
    """Return all moments, shuffled but in order within each run; runs begin one after another."""
    turns = [index for index, moments in enumerate(all_moments) for _ in moments]
    turns.sort(key=lambda index: index + random.random() * _RUNS_AT_A_TIME)
    iterators = [iter(moments) for moments in all_moments]
    return [next(iterators[index]) for index in turns]


def write(storage: PostgresStorage, moments: Moments, together: int = 20) -> None:
    """Write moments, some of them in each commit."""
    for at in range(0, len(moments), together):
        threads: dict[str, list[Fact]] = {}
        for moment in moments[at : at + together]:
            for fact in moment:
                threads.setdefault(fact.thread, []).append(fact)
        # Queues first, as in every commit: a run's end must not fence what it ends with.
        ordered = sorted(threads, key=lambda thread: not thread.startswith("squid:dispatch"))
        storage.commit([Append(thread, threads[thread]) for thread in ordered])


def run_refresh(spark: SparkSession, storage: PostgresStorage, warehouse: Warehouse, **options: Any) -> RefreshResult:
    """Refresh the tables of a storage."""
    return refresh(spark, storage, location(storage), warehouse, **options)


def contents(warehouse: Warehouse) -> dict[str, list[str]]:
    """Return every row of every table and of the stage, sorted; read without Spark."""
    rows_of_tables = {}
    for table in (STAGE, *TABLES):
        manifest = warehouse.manifest(table)
        assert manifest is not None
        paths = [Path(warehouse.path) / table / directory for directory in manifest.directories]
        rows = [row for path in paths for row in pq.read_table(path, partitioning=None).to_pylist()]
        rows_of_tables[table] = as_text(rows)
    return rows_of_tables


def as_text(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows as text that can be compared and sorted."""
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)


def marks(warehouse: Warehouse, table: str) -> dict[str, tuple[int, int, bool]]:
    """Return rows, open runs and the seal of each part of a manifest."""
    manifest = warehouse.manifest(table)
    assert manifest is not None
    return {name: (part.rows, part.open_runs, part.sealed) for name, part in manifest.parts.items()}


DAMAGE: LiteralString = "UPDATE {schema}.journal_entries SET data = '{{}}' WHERE run_id = %s AND type = %s"
