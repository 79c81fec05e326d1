"""The warehouse's tables, cut from the stage: part by part where they have days, as a whole where they have none."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import SparkSession

from squid_dagster.spark.tables.columns import STAGE_SCHEMA, TABLE_SCHEMAS
from squid_dagster.spark.tables.manifest import ALL, LOOSE, Manifest, Part, empty_manifest
from squid_dagster.spark.tables.projection import Made, Order, cut_files
from squid_dagster.spark.tables.queue_health import WINDOW
from squid_dagster.spark.tables.run_tables import arrow_schema
from squid_dagster.spark.tables.warehouse import QUEUE_HEALTH, STAGE, Warehouse, directory_of

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_FILE = "queues.parquet"


def columns_of(table: str) -> str:
    """Give a table's names and types, as its manifest keeps them."""
    return (STAGE_SCHEMA if table == STAGE else TABLE_SCHEMAS[table]).json()


def fitting(found: Manifest | None, table: str) -> Manifest:
    """Give the manifest to go on from: an empty one where there is none, or rows have other columns by now."""
    columns = columns_of(table)
    if found is None:
        return empty_manifest(table, columns)
    if found.columns != columns:
        # Its parts are to be replaced, all of them, and their directories stay until then for those who read them.
        outdated = {name: part.model_copy(update={"source": ""}) for name, part in found.parts.items()}
        return found.model_copy(update={"columns": columns, "parts": outdated, "covered": 0})
    return found


def stale_parts(stage: Manifest, table: Manifest) -> set[str]:
    """Tell which parts of a table are not those of the stage as it is now. Pure."""
    held = {name: part.source for name, part in table.parts.items()}
    return {name for name, part in stage.parts.items() if held.get(name) != part.source}


def telling_parts(stage: Manifest) -> set[str]:
    """Tell which parts of the stage can say anything about the health of queues. Pure."""
    since = None if stage.as_of is None else stage.as_of - WINDOW
    return {
        name
        for name, part in stage.parts.items()
        if name == LOOSE or part.open_runs or (since and part.latest and part.latest > since)
    }


def cut_tables(
    spark: SparkSession, warehouse: Warehouse, stage: Manifest, wanted: Mapping[str, Collection[str]], generation: str
) -> Made:
    """Cut parts of tables from the stage, for each table those that are wanted, and write them as a new generation.

    Nobody sees them before a manifest names them.

    Raises:
        PySparkException: Spark failed.
        WarehouseUnavailable: the stage cannot be read.
    """
    orders = []
    for part in sorted(stage.parts.keys() & {part for parts in wanted.values() for part in parts}):
        directory = stage.parts[part].directory
        cut = [table for table, parts in wanted.items() if part in parts and table != QUEUE_HEALTH]
        for file in warehouse.files.parquet_files(f"{STAGE}/{directory}") if directory else ():
            targets = {table: f"{table}/{directory_of(generation, part)}/{file.base_name}" for table in cut}
            orders.append(Order(file.name, part, file.size, targets, part in wanted.get(QUEUE_HEALTH, ())))
    return cut_files(spark, warehouse.files, orders, stage.as_of or _LONG_AGO)


def after_cut(stage: Manifest, table: Manifest, parts: Collection[str], made: Made, generation: str) -> Manifest:
    """Give the manifest of a table some parts of which were cut. Pure.

    Parts that the stage has no longer are dropped as soon as all others are up to date: their runs are in these now.
    """
    wanted = stage.parts.keys() & set(parts)
    changed = {
        name: stage.parts[name].model_copy(
            update={"directory": directory_of(generation, name) if rows else None, "rows": rows}
        )
        for name in wanted
        for rows in (made.rows[table.table, name],)
    }
    behind = stale_parts(stage, table) - wanted
    gone = set() if behind else table.parts.keys() - stage.parts.keys()
    return _following(stage, table, generation, changed, gone, table.covered if behind else stage.covered)


def after_tally(warehouse: Warehouse, stage: Manifest, table: Manifest, made: Made, generation: str) -> Manifest:
    """Write what the stage says about queues, and give the manifest. Raises `WarehouseUnavailable`."""
    rows = made.queues.rows(stage.as_of or _LONG_AGO)
    directory = directory_of(generation, ALL)
    if rows:
        told = pa.Table.from_pylist(rows, schema=arrow_schema(QUEUE_HEALTH))
        warehouse.files.write(f"{QUEUE_HEALTH}/{directory}/{_FILE}", told)
    part = Part(directory=directory if rows else None, source=stage.generation, covered=stage.covered, rows=len(rows))
    return _following(stage, table, generation, {ALL: part}, (), stage.covered)


def _following(
    stage: Manifest, table: Manifest, generation: str, changed: dict[str, Part], gone: Collection[str], covered: int
) -> Manifest:
    return table.replaced(
        generation=generation,
        covered=covered,
        as_of=stage.as_of,
        origin=stage.origin,
        changed=changed,
        gone=gone,
    )
