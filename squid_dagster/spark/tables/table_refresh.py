"""The refresh of tables from the stage: by part where they have days, completely where they have none.

Writes files and returns manifests; publishes none.
"""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import SparkSession

from squid_dagster.spark.tables.columns import TABLE_SCHEMAS, UNIT_SCHEMA
from squid_dagster.spark.tables.manifest import ALL, LOOSE, Manifest, Part, empty_manifest
from squid_dagster.spark.tables.projection import FileProjection, ProjectionResult, project_files
from squid_dagster.spark.tables.queue_health import WINDOW
from squid_dagster.spark.tables.run_tables import arrow_schema
from squid_dagster.spark.tables.warehouse import QUEUE_HEALTH, STAGE, Warehouse, directory_of

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_FILE = "queues.parquet"


def columns_of(table: str) -> str:
    """Return the columns of a table, as its manifest has them."""
    return (UNIT_SCHEMA if table == STAGE else TABLE_SCHEMAS[table]).json()


def current_manifest(manifest: Manifest | None, table: str) -> Manifest:
    """Return the manifest to start from: an empty one if there is none; all parts outdated if the columns changed."""
    columns = columns_of(table)
    if manifest is None:
        return empty_manifest(table, columns)
    if manifest.columns != columns:
        # All parts are to be replaced; until then their directories stay for readers.
        outdated = {name: part.model_copy(update={"source": ""}) for name, part in manifest.parts.items()}
        return manifest.model_copy(update={"columns": columns, "parts": outdated, "covered": 0})
    return manifest


def stale_parts(stage: Manifest, table: Manifest) -> set[str]:
    """Return the parts of a table that are older than those of the stage. Pure."""
    sources = {name: part.source for name, part in table.parts.items()}
    return {name for name, part in stage.parts.items() if sources.get(name) != part.source}


def queue_parts(stage: Manifest) -> set[str]:
    """Return the parts of the stage that count for the health of queues. Pure."""
    since = None if stage.as_of is None else stage.as_of - WINDOW
    return {
        name
        for name, part in stage.parts.items()
        if name == LOOSE or part.open_runs or (since and part.latest and part.latest > since)
    }


def project_tables(
    spark: SparkSession, warehouse: Warehouse, stage: Manifest, wanted: Mapping[str, Collection[str]], generation: str
) -> ProjectionResult:
    """Project the wanted parts of each table from the stage, and write them as a new generation.

    Readers do not see them before a manifest names them.

    Raises:
        PySparkException: Spark failed.
        WarehouseUnavailable: the stage cannot be read.
    """
    projections = []
    for part in sorted(stage.parts.keys() & {part for parts in wanted.values() for part in parts}):
        directory = stage.parts[part].directory
        tables = [table for table, parts in wanted.items() if part in parts and table != QUEUE_HEALTH]
        for file in warehouse.files.parquet_files(f"{STAGE}/{directory}") if directory else ():
            targets = {table: f"{table}/{directory_of(generation, part)}/{file.base_name}" for table in tables}
            projections.append(
                FileProjection(file.name, part, file.size, targets, part in wanted.get(QUEUE_HEALTH, ()))
            )
    return project_files(spark, warehouse.files, projections, stage.as_of or _LONG_AGO)


def manifest_after_projection(
    stage: Manifest, table: Manifest, parts: Collection[str], result: ProjectionResult, generation: str
) -> Manifest:
    """Return the manifest of a table after some of its parts were projected. Pure.

    Parts that the stage has no longer are dropped once all others are up to date: their runs are in these now.
    """
    wanted = stage.parts.keys() & set(parts)
    changed = {
        name: stage.parts[name].model_copy(
            update={"directory": directory_of(generation, name) if rows else None, "rows": rows}
        )
        for name in wanted
        for rows in (result.rows[table.table, name],)
    }
    behind = stale_parts(stage, table) - wanted
    gone = set() if behind else table.parts.keys() - stage.parts.keys()
    return _next_manifest(stage, table, generation, changed, gone, table.covered if behind else stage.covered)


def manifest_after_tally(
    warehouse: Warehouse, stage: Manifest, table: Manifest, result: ProjectionResult, generation: str
) -> Manifest:
    """Write the health of queues, and return the manifest of its table. Raises `WarehouseUnavailable`."""
    rows = result.queues.rows(stage.as_of or _LONG_AGO)
    directory = directory_of(generation, ALL)
    if rows:
        batch = pa.Table.from_pylist(rows, schema=arrow_schema(QUEUE_HEALTH))
        warehouse.files.write(f"{QUEUE_HEALTH}/{directory}/{_FILE}", batch)
    part = Part(directory=directory if rows else None, source=stage.generation, covered=stage.covered, rows=len(rows))
    return _next_manifest(stage, table, generation, {ALL: part}, (), stage.covered)


def _next_manifest(
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
