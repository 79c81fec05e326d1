"""Run a function once per item in Spark's Python workers (`range(n).mapInArrow`).

For work on files that a task can repeat with the same result: Spark repeats the tasks of a lost executor.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from squid_dagster.spark.session.garbage_collection import freeze_loaded_modules

T = TypeVar("T")
_MAX_TASKS = 10_000


def in_workers(spark: SparkSession, items: Sequence[T], work: Callable[[T], str]) -> list[str]:
    """Run `work` for each item in a task of its own; return the short text that each returned.

    Raises:
        PySparkException: a task failed after all retries.
    """
    if not items:
        return []

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_loaded_modules()
        answers = [work(items[number]) for batch in batches for number in batch["id"].to_pylist()]
        yield pa.record_batch([pa.array(answers, pa.string())], ["answer"])
        pa.default_memory_pool().release_unused()  # the worker is reused, and its next task may need the memory

    rows = spark.range(0, len(items), 1, len(items)).mapInArrow(task, "answer string").collect()
    return [row["answer"] for row in rows]


def packed(items: Iterable[T], size: Callable[[T], int], max_size: int) -> list[list[T]]:
    """Group small items up to a size; large ones stay alone. At most `_MAX_TASKS` groups for large totals. Pure."""
    by_size = sorted(items, key=size, reverse=True)
    max_size = max(max_size, sum(map(size, by_size)) // _MAX_TASKS)
    packs: list[list[T]] = []
    room = 0
    for item in by_size:
        if size(item) > room:
            packs.append([])
            room = max_size
        packs[-1].append(item)
        room -= size(item)
    return packs
