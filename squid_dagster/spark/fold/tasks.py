"""Tasks of our own in Spark's Python workers, by one job that Spark has next to nothing to plan for.

For work on files, which a task can do again from the beginning and with the same result: Spark does so with what a lost
executor had to do.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import SparkSession

from squid_dagster.spark.session.garbage_collection import set_heap_aside

T = TypeVar("T")
_MOST = 10_000


def in_workers(spark: SparkSession, orders: Sequence[T], work: Callable[[T], str]) -> list[str]:
    """Do each order in a task of its own, and give what the tasks said, in a few words each.

    Raises:
        PySparkException: a task failed, for good.
    """
    if not orders:
        return []

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_heap_aside()
        said = [work(orders[number]) for batch in batches for number in batch["id"].to_pylist()]
        yield pa.record_batch([pa.array(said, pa.string())], ["said"])
        pa.default_memory_pool().release_unused()  # the worker stays, and what it does next may need it

    rows = spark.range(0, len(orders), 1, len(orders)).mapInArrow(task, "said string").collect()
    return [row["said"] for row in rows]


def packed(orders: Iterable[T], size: Callable[[T], int], most: int) -> list[list[T]]:
    """Put small orders together, up to a size; large ones stay alone. Pure."""
    waiting = sorted(orders, key=size, reverse=True)
    most = max(most, sum(size(order) for order in waiting) // _MOST)
    packs: list[list[T]] = []
    room = 0
    for order in waiting:
        if size(order) > room:
            packs.append([])
            room = most
        packs[-1].append(order)
        room -= size(order)
    return packs
