"""Replace the former rows of runs that were folded again, in Spark's workers.

Each task writes one file: the former rows, except those of runs that were folded again, and then the new rows. Memory
is bounded: former rows are compared with a fixed number of run ids at a time.
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
from squid_dagster.spark.tables.columns import UNIT_SCHEMA
from squid_dagster.spark.tables.files import Files

_RUNS_AT_ONCE = 2_000
_IDS_AT_ONCE = 500_000
_COLUMNS = UNIT_SCHEMA.fieldNames()


@dataclass(frozen=True, slots=True)
class Merge:
    """A file of folded runs to write."""

    target: str
    former: tuple[str, ...]  # files with former rows
    replaced: tuple[str, ...]  # files with the ids of runs whose former rows are dropped
    new: tuple[str, ...]  # files with rows to append


def merge_files(spark: SparkSession, files: Files, merges: Sequence[Merge]) -> None:
    """Write one file per merge; none for a merge without rows.

    Raises:
        PySparkException: a task failed after all retries.
    """
    in_workers(spark, merges, lambda merge: _merge(files, merge))


def _merge(files: Files, merge: Merge) -> str:
    schema = to_arrow_schema(UNIT_SCHEMA, timezone="UTC")
    with ExitStack() as open_files:
        writer = None
        for batch in _rows(files, merge):
            if batch.num_rows:
                writer = writer or open_files.enter_context(files.writing(merge.target, schema))
                writer.write_batch(batch.select(_COLUMNS).cast(schema))
    return merge.target


def _rows(files: Files, merge: Merge) -> Iterator[pa.RecordBatch]:
    for source in merge.former:
        mask, start = _kept_rows(files, source, merge.replaced), 0
        for batch in files.batches(source, _COLUMNS, _RUNS_AT_ONCE):
            yield batch.filter(pa.array(mask[start : start + batch.num_rows]))
            start += batch.num_rows
    for source in merge.new:
        yield from files.batches(source, _COLUMNS, _RUNS_AT_ONCE)


def _kept_rows(files: Files, source: str, replaced: Sequence[str]) -> NDArray[np.bool_]:
    """Return a mask of the rows of a file that are not replaced."""
    ids = [batch["run_id"] for batch in files.batches(source, ["run_id"], _IDS_AT_ONCE)]
    masks = [np.ones(len(batch_ids), dtype=np.bool_) for batch_ids in ids]
    for replaced_ids in _run_ids(files, replaced):
        for mask, batch_ids in zip(masks, ids, strict=True):
            mask &= ~pc.is_in(batch_ids, replaced_ids).to_numpy(zero_copy_only=False)
    return np.concatenate(masks) if masks else np.ones(0, dtype=np.bool_)


def _run_ids(files: Files, names: Sequence[str]) -> Iterator[pa.Array]:
    """Yield the run ids in files, at most about `_IDS_AT_ONCE` at a time."""
    waiting: list[pa.Array] = []
    for name in names:
        for batch in files.batches(name, ["run_id"], _IDS_AT_ONCE):
            waiting.append(batch["run_id"])
            if sum(map(len, waiting)) >= _IDS_AT_ONCE:
                yield pa.concat_arrays(waiting)
                waiting = []
    if waiting:
        yield pa.concat_arrays(waiting)
