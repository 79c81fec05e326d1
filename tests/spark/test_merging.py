"""Files of folded runs that are written anew, without a session, as a worker does it."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from squid_dagster.spark.fold import row_merge
from squid_dagster.spark.fold.row_merge import Merge
from squid_dagster.spark.tables.columns import UNIT_SCHEMA
from squid_dagster.spark.tables.files import Files


def keep(files: Files, name: str, *ids: str, entries: int = 1) -> str:
    """Write a file of runs with these ids."""
    rows: list[dict[str, Any]] = [{"run_id": run_id, "entries": entries} for run_id in ids]
    files.write(name, pa.Table.from_pylist(rows, schema=to_arrow_schema(UNIT_SCHEMA, timezone="UTC")))
    return name


def merged(files: Files, merge: Merge) -> dict[str, int]:
    """Return what a merge has written: the number of entries of each run."""
    row_merge._merge(files, merge)
    rows = pq.read_table(Path(files.root) / merge.target, columns=["run_id", "entries"]).to_pylist()
    assert len({row["run_id"] for row in rows}) == len(rows)
    return {row["run_id"]: row["entries"] for row in rows}


@pytest.mark.parametrize("at_once", [1, 2, 500_000])
def test_former_rows_stay_but_for_those_of_runs_that_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(row_merge, "_IDS_AT_ONCE", at_once)
    monkeypatch.setattr(row_merge, "_RUNS_AT_ONCE", 2)
    files = Files(str(tmp_path))
    former = (keep(files, "s/a.parquet", "a", "b", "c", "d", "e"), keep(files, "s/b.parquet", "f", "g"))
    new = (keep(files, "n/0.parquet", "b", "x", entries=2), keep(files, "n/1.parquet", "e", entries=2))
    moved = keep(files, "m/0.parquet", "g")

    entries = merged(files, Merge("t/0.parquet", former, (*new, moved), new))

    assert entries == {"a": 1, "c": 1, "d": 1, "f": 1, "b": 2, "x": 2, "e": 2}


def test_a_task_that_is_done_again_leaves_one_file_and_one_without_rows_none(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    former, new = keep(files, "s/a.parquet", "a"), keep(files, "n/0.parquet", "a", entries=2)
    for _ in range(2):
        assert merged(files, Merge("t/0.parquet", (former,), (new,), (new,))) == {"a": 2}
    row_merge._merge(files, Merge("t/1.parquet", (former,), (new,), ()))
    assert [path.name for path in (tmp_path / "t").iterdir()] == ["0.parquet"]


def test_a_task_that_dies_leaves_nothing_that_anybody_reads(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    former = keep(files, "s/a.parquet", "a")
    with pytest.raises(FileNotFoundError):
        row_merge._merge(files, Merge("t/0.parquet", (former, "s/gone.parquet"), (), ()))
    assert files.parquet_files("t") == []
    assert pq.read_table(tmp_path / "t").num_rows == 0
