"""Cutting tables in Spark's workers: each task reads files of folded runs and writes a file for each table.

One job makes all tables, whatever their number. A file that is cut has the name of the one that it is cut from, and
says the same whenever and by whomever it is made: a task that Spark does again changes nothing.
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

_BYTES_PER_TASK = 4 << 20  # of folded runs; a task by itself costs as much as some thousand runs
_RUNS_AT_ONCE = 2_000


@dataclass(frozen=True, slots=True)
class Order:
    """A file of folded runs, and what is to be made of it."""

    source: str
    part: str
    size: int
    targets: Mapping[str, str]  # the file of each table that is to be written
    tallied: bool  # what it says about queues is wanted too


@dataclass(slots=True)
class Made:
    """What became of orders: the rows of each table by part, and what all runs that were tallied say."""

    rows: Counter[tuple[str, str]] = field(default_factory=Counter)
    queues: QueueTally = field(default_factory=QueueTally)


def cut_files(spark: SparkSession, files: Files, orders: Sequence[Order], as_of: datetime) -> Made:
    """Do what is ordered; queues are told as of a time.

    Raises:
        PySparkException: a task failed, for good; files that were written are whole.
    """
    tasks = packed(orders, lambda order: order.size, _BYTES_PER_TASK)

    def work(task: Sequence[Order]) -> str:
        return json.dumps([_done(files, order, as_of) for order in task])

    made = Made()
    for part, rows, tally in (done for said in in_workers(spark, tasks, work) for done in json.loads(said)):
        made.rows.update({(table, part): count for table, count in rows.items()})
        made.queues.add(QueueTally.load(tally))
    return made


def _done(files: Files, order: Order, as_of: datetime) -> list[Any]:
    """Read a file once, and write it as each of the tables; a table that gets no row of it has no file."""
    wanted = {name for table in order.targets for name in run_tables.COLUMNS[table]}
    wanted |= set(queue_health.COLUMNS) if order.tallied else set()
    rows, tally = Counter[str](), QueueTally()
    writers: dict[str, pq.ParquetWriter] = {}
    with ExitStack() as open_files:
        for runs in files.batches(order.source, wanted, _RUNS_AT_ONCE):
            if order.tallied:
                tally.add_runs(runs, as_of)
            for table, target in order.targets.items():
                found = run_tables.cut(table, runs)
                if not found.num_rows:
                    continue
                if table not in writers:
                    writers[table] = open_files.enter_context(files.writing(target, found.schema))
                writers[table].write_batch(found)
                rows[table] += found.num_rows
    return [order.part, rows, tally.dump()]
