"""Putting runs that were folded again in the place of their former rows, in Spark's workers.

Each task writes one file anew: former rows, but for those of runs that were folded again, and then what is new. Memory
does not grow with what is new: former rows are looked up for so many runs at a time.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from squid_dagster.spark.fold.tasks import in_workers
from squid_dagster.spark.tables.columns import STAGE_SCHEMA
from squid_dagster.spark.tables.files import Files

_RUNS_AT_ONCE = 2_000
_LOOKED_UP_AT_ONCE = 500_000
_COLUMNS = STAGE_SCHEMA.fieldNames()


@dataclass(frozen=True, slots=True)
class Merge:
    """A file of folded runs that is to be written."""

    target: str
    former: tuple[str, ...]  # files with rows that stay
    replaced: tuple[str, ...]  # files that name the runs whose former rows do not stay
    new: tuple[str, ...]  # files with rows that come behind


def merge_files(spark: SparkSession, files: Files, merges: Sequence[Merge]) -> None:
    """Write files anew; one that would have no row is not there.

    Raises:
        PySparkException: a task failed, for good.
    """
    in_workers(spark, merges, lambda merge: _merge(files, merge))


def _merge(files: Files, merge: Merge) -> str:
    schema = to_arrow_schema(STAGE_SCHEMA, timezone="UTC")
    with ExitStack() as files_open:
        writer = None
        for batch in _rows(files, merge):
            if batch.num_rows:
                writer = writer or files_open.enter_context(files.writing(merge.target, schema))
                writer.write_batch(batch.select(_COLUMNS).cast(schema))
    return merge.target


def _rows(files: Files, merge: Merge) -> Iterator[pa.RecordBatch]:
    for source in merge.former:
        stays, at = _stays(files, source, merge.replaced), 0
        for batch in files.batches(source, _COLUMNS, _RUNS_AT_ONCE):
            yield batch.filter(pa.array(stays[at : at + batch.num_rows]))
            at += batch.num_rows
    for source in merge.new:
        yield from files.batches(source, _COLUMNS, _RUNS_AT_ONCE)


def _stays(files: Files, source: str, replaced: Sequence[str]) -> NDArray[np.bool_]:
    """Tell of each row of a file whether it stays."""
    ids = [batch["run_id"] for batch in files.batches(source, ["run_id"], _LOOKED_UP_AT_ONCE)]
    stays = [np.ones(len(each), dtype=np.bool_) for each in ids]
    for gone in _looked_up(files, replaced):
        for mask, each in zip(stays, ids, strict=True):
            mask &= ~pc.is_in(each, gone).to_numpy(zero_copy_only=False)
    return np.concatenate(stays) if stays else np.ones(0, dtype=np.bool_)


def _looked_up(files: Files, names: Sequence[str]) -> Iterator[pa.Array]:
    """Give the ids of runs in files, so many at a time."""
    waiting: list[pa.Array] = []
    for name in names:
        for batch in files.batches(name, ["run_id"], _LOOKED_UP_AT_ONCE):
            waiting.append(batch["run_id"])
            if sum(map(len, waiting)) >= _LOOKED_UP_AT_ONCE:
                yield pa.concat_arrays(waiting)
                waiting = []
    if waiting:
        yield pa.concat_arrays(waiting)
