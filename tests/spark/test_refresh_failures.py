"""Refreshes that fail, or are refused: each table is as it was or complete, and the next refresh is right."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import LiteralString

import pytest
from pyspark.sql import SparkSession

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import InvalidArgument, SchemaOutdated
from squid_dagster.spark.errors import (
    ForeignWarehouse,
    RefreshFailed,
    WarehouseBusy,
    WarehouseTooNew,
    WarehouseUnavailable,
)
from squid_dagster.spark.tables.files import Files
from squid_dagster.spark.tables.manifest import Manifest
from squid_dagster.spark.tables.warehouse import STAGE, TABLES, Warehouse
from tests.journal.access import terminate_backends
from tests.spark.refresh_steps import contents, mixed, random_runs, run_refresh, write


def test_whatever_goes_wrong_on_the_way_all_tables_stay_as_they_were(
    spark: SparkSession, postgres: PostgresStorage, tmp_path: Path
) -> None:
    random, warehouse = Random(5), Warehouse(str(tmp_path / "house"))
    moments = mixed(random, [life.moments for life in random_runs(random, 8, timedelta(hours=9))])
    write(postgres, moments[:-20])
    run_refresh(spark, postgres, warehouse)
    before = contents(warehouse)
    write(postgres, moments[-20:])

    def losing_the_lock(what: str) -> None:
        if what.startswith("folding"):
            terminate_backends(postgres)

    with pytest.raises(WarehouseBusy, match=r"lock of the warehouse .* was lost"):
        run_refresh(spark, postgres, warehouse, progress=losing_the_lock)
    assert contents(warehouse) == before

    def losing_the_journal(what: str) -> None:
        if what.startswith("folding"):
            rename(postgres, "ALTER TABLE {schema}.journal_entries RENAME COLUMN data TO away")

    with pytest.raises(RefreshFailed, match=rf"could not write table '{STAGE}'.*StorageRefused.*refresh again"):
        run_refresh(spark, postgres, warehouse, progress=losing_the_journal)
    rename(postgres, "ALTER TABLE {schema}.journal_entries RENAME COLUMN away TO data")
    assert contents(warehouse) == before
    assert sum(warehouse.read(spark, table).count() for table in TABLES) == sum(len(before[table]) for table in TABLES)

    # The stage is done when a table cannot be written: it is behind, and whole.
    (tmp_path / "house" / "run_catalog").rename(tmp_path / "aside")
    (tmp_path / "house" / "run_catalog").write_text("in the way")
    with pytest.raises(WarehouseUnavailable, match="cannot read in the warehouse"):
        run_refresh(spark, postgres, warehouse)
    (tmp_path / "house" / "run_catalog").unlink()
    (tmp_path / "aside").rename(tmp_path / "house" / "run_catalog")
    behind, stage = warehouse.manifest("run_catalog"), warehouse.manifest(STAGE)
    assert behind is not None
    assert stage is not None
    assert behind.covered < stage.covered
    assert contents(warehouse)["run_catalog"] == before["run_catalog"]

    done = run_refresh(spark, postgres, warehouse)
    whole = Warehouse(str(tmp_path / "whole"))
    run_refresh(spark, postgres, whole, upto=done.cut)
    assert contents(warehouse) == contents(whole)


def rename(storage: PostgresStorage, text: LiteralString) -> None:
    """Rename a table away, or back."""
    with storage.connection() as connection:
        connection.execute(storage.sql(text))


def test_a_refresh_is_refused_before_anything_is_touched(
    spark: SparkSession, postgres: PostgresStorage, postgres_url: str, schema_names: Iterator[str], tmp_path: Path
) -> None:
    warehouse = Warehouse(str(tmp_path / "house"))
    write(postgres, [moment for life in random_runs(Random(7), 2, timedelta(hours=1)) for moment in life.moments])
    run_refresh(spark, postgres, warehouse)
    before = contents(warehouse)

    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WarehouseUnavailable, match="cannot write in the warehouse"):
        run_refresh(spark, postgres, Warehouse(str(tmp_path / "file")))
    nowhere = PostgresStorage(postgres_url, "nowhere")
    with pytest.raises(SchemaOutdated):
        run_refresh(spark, nowhere, warehouse)
    nowhere.close()
    with pytest.raises(InvalidArgument, match=r"upto 3 lies before \d+, which the tables cover"):
        run_refresh(spark, postgres, warehouse, upto=3)
    with pytest.raises(InvalidArgument, match=f"upto {2**60} is no cut: the journal is settled up to"):
        run_refresh(spark, postgres, warehouse, upto=2**60)

    other = PostgresStorage(postgres_url, next(schema_names))
    other.upgrade()
    write(other, [moment for life in random_runs(Random(8), 2, timedelta(hours=1)) for moment in life.moments])
    with pytest.raises(ForeignWarehouse, match=r"tables of another journal .* full=True to replace them"):
        run_refresh(spark, other, warehouse)
    other.close()

    manifest = tmp_path / "house" / STAGE / "manifest.json"
    original = manifest.read_text()
    manifest.write_text(original.replace('"layout": 1', '"layout": 99'))
    for full in (False, True):
        with pytest.raises(WarehouseTooNew, match="layout 99"):
            run_refresh(spark, postgres, warehouse, full=full)
    manifest.write_text("{")
    with pytest.raises(WarehouseUnavailable, match="full=True to make all tables anew"):
        run_refresh(spark, postgres, warehouse)
    manifest.write_text(original)
    assert contents(warehouse) == before

    # Rows of another shape, as an older version has left them, are never mixed with new ones: all are made anew.
    manifest.write_text(original.replace("last_position", "older_position"))
    done = run_refresh(spark, postgres, warehouse)
    assert done.full
    assert contents(warehouse) == before


class _Crash(BaseException):
    """The end of a process, at a line of ours."""


@pytest.mark.parametrize("published", range(1 + len(TABLES)))
def test_a_crash_before_any_table_is_published_leaves_all_readable_and_the_next_refresh_right(
    spark: SparkSession, postgres: PostgresStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: int
) -> None:
    random, warehouse = Random(13), Warehouse(str(tmp_path / "house"))
    moments = mixed(random, [life.moments for life in random_runs(random, 5, timedelta(hours=9))])
    write(postgres, moments[:-10])
    run_refresh(spark, postgres, warehouse)
    before = contents(warehouse)
    write(postgres, moments[-10:])
    whole = Warehouse(str(tmp_path / "whole"))
    cut = run_refresh(spark, postgres, whole).cut
    names = (STAGE, *TABLES)

    def publish(self: Warehouse, manifest: Manifest) -> None:
        if manifest.table == names[published]:
            raise _Crash
        real(self, manifest)

    real = Warehouse.publish
    with monkeypatch.context() as crashing:
        crashing.setattr(Warehouse, "publish", publish)
        crashing.setattr(Files, "remove", lambda *_: None)  # nor did it get to put things away
        with pytest.raises(_Crash):
            run_refresh(spark, postgres, warehouse, upto=cut)

    after, actual = contents(whole), contents(warehouse)
    assert actual == {name: (after if names.index(name) < published else before)[name] for name in names}
    run_refresh(spark, postgres, warehouse, upto=cut)
    assert contents(warehouse) == after
    assert not list((tmp_path / "house" / STAGE).glob("*-touched"))


def test_a_file_that_cannot_be_merged_is_told_and_nothing_is_left_of_the_try(
    spark: SparkSession, postgres: PostgresStorage, tmp_path: Path
) -> None:
    random, warehouse = Random(17), Warehouse(str(tmp_path / "house"))
    moments = mixed(random, [life.moments for life in random_runs(random, 3, timedelta(minutes=1))])
    write(postgres, moments[:-3])
    run_refresh(spark, postgres, warehouse)
    before = contents(warehouse)
    write(postgres, moments[-3:])
    (file,) = (tmp_path / "house" / STAGE).glob("*/part=2026-01-01/*.parquet")
    original = file.read_bytes()
    file.write_bytes(b"damaged")
    with pytest.raises(RefreshFailed, match=f"could not write table '{STAGE}'"):
        run_refresh(spark, postgres, warehouse)
    assert not list((tmp_path / "house" / STAGE).glob("*-touched"))
    file.write_bytes(original)
    assert contents(warehouse) == before
