"""Projection of tables in Spark's workers: each task reads files of folded runs and writes one file per table.

One job makes all tables. A file has the same name as the file of folded runs that it is made from, and the same content
in every attempt, so a task that Spark repeats changes nothing.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pyarrow import parquet as pq
from pyspark.sql import SparkSession

from squid_dagster.spark.fold.tasks import in_workers, packed
from squid_dagster.spark.tables import queue_health, run_tables
from squid_dagster.spark.tables.files import Files
from squid_dagster.spark.tables.queue_health import QueueTally

_BYTES_PER_TASK = 4 << 20  # of folded runs; starting a task costs as much as some thousand runs
_RUNS_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True)
class FileProjection:
    """A file of folded runs, and the files to make from it."""

    source: str
    part: str
    size: int
    targets: Mapping[str, str]  # the file to write, by table
    tallied: bool  # whether its runs count for the health of queues


@dataclass(slots=True)
class ProjectionResult:
    """The number of rows by table and part, and the tally of queues."""

    rows: Counter[tuple[str, str]] = field(default_factory=Counter)
    queues: QueueTally = field(default_factory=QueueTally)


def project_files(
    spark: SparkSession, files: Files, projections: Sequence[FileProjection], as_of: datetime
) -> ProjectionResult:
    """Project files of folded runs, and tally queues as of a time.

    Raises:
        PySparkException: a task failed after all retries; files that were written are complete.
    """
    tasks = packed(projections, lambda projection: projection.size, _BYTES_PER_TASK)

    def work(task: Sequence[FileProjection]) -> str:
        return json.dumps([_project(files, projection, as_of) for projection in task])

    result = ProjectionResult()
    for part, rows, tally in (counts for answer in in_workers(spark, tasks, work) for counts in json.loads(answer)):
        result.rows.update({(table, part): count for table, count in rows.items()})
        result.queues.add(QueueTally.load(tally))
    return result


def _project(files: Files, projection: FileProjection, as_of: datetime) -> list[Any]:
    """Read a file once and write a file for each table that has rows of it; return part, row counts and tally."""
    wanted = {name for table in projection.targets for name in run_tables.COLUMNS[table]}
    wanted |= set(queue_health.COLUMNS) if projection.tallied else set()
    rows, tally = Counter[str](), QueueTally()
    writers: dict[str, pq.ParquetWriter] = {}
    with ExitStack() as open_files:
        for runs in files.batches(projection.source, wanted, _RUNS_AT_ONCE):
            if projection.tallied:
                tally.add_runs(runs, as_of)
            for table, target in projection.targets.items():
                table_rows = run_tables.rows_of(table, runs)
                if not table_rows.num_rows:
                    continue
                if table not in writers:
                    writers[table] = open_files.enter_context(files.writing(target, table_rows.schema))
                writers[table].write_batch(table_rows)
                rows[table] += table_rows.num_rows
    return [projection.part, rows, tally.dump()]
