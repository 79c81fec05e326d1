"""The warehouse's tables, cut from the stage: part by part where they have days, as a whole where they have none."""

from collections.abc import Callable, Collection
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from squid_dagster.spark import tables
from squid_dagster.spark.manifest import ALL, LOOSE, Manifest, Part, empty_manifest
from squid_dagster.spark.tables import STAGE_SCHEMA
from squid_dagster.spark.warehouse import PART, QUEUE_HEALTH, STAGE, Warehouse, directory_of
from squid_dagster.spark.warehouse_files import Written
from squid_dagster.spark.warehouse_queues import WINDOW, queue_health

CUTS: dict[str, tuple[Callable[..., DataFrame], tuple[str, ...]]] = {
    "run_index": (tables.run_index, ("indexed",)),
    "run_catalog": (tables.run_catalog, ("cataloged",)),
    "run_history": (tables.run_history, ("first_position", "last_position", "entries", "run")),
    "attempt_history": (tables.attempt_history, ("attempts",)),
    "journal_anomalies": (tables.anomalies, ("anomalies",)),
}
"""The tables that have days, each with what cuts it from folded runs, and from which of their columns."""

_QUEUES_FROM = ("run_id", "run", "attempts", "queues", "latest")
_WITH_ALL = ("run_id", "day")
_columns = {STAGE: STAGE_SCHEMA.json()}  # found once: this code never changes its mind
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


def columns_of(spark: SparkSession, table: str) -> str:
    """Give a table's names and types, as its manifest keeps them. Nothing is run for it."""
    if table not in _columns:
        none = spark.createDataFrame([], STAGE_SCHEMA)
        cut = CUTS[table][0](none, "day") if table in CUTS else queue_health(none, _LONG_AGO)
        _columns[table] = cut.schema.json()
    return _columns[table]


def fitting(spark: SparkSession, found: Manifest | None, table: str) -> Manifest:
    """Give the manifest to go on from: an empty one where there is none, or rows have other columns by now."""
    columns = columns_of(spark, table)
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


def cut_table(
    spark: SparkSession,
    warehouse: Warehouse,
    stage: Manifest,
    table: Manifest,
    parts: Collection[str],
    generation: str,
) -> Manifest:
    """Cut some parts of a table from the stage and write them; gives the manifest that is to be published.

    Parts that the stage has no longer are dropped as soon as all others are up to date: their runs are in these now.
    """
    wanted = stage.parts.keys() & set(parts)
    filled = {name for name in wanted if stage.parts[name].directory is not None}
    written: dict[str, Written] = {}
    if filled:
        cut, columns = CUTS[table.table]
        rows = warehouse.read_parts(spark, stage, filled, (*_WITH_ALL, *columns))
        loose = f.when(f.col("run_id").isNull(), LOOSE).otherwise("unknown")
        named = rows.withColumn(PART, f.coalesce(f.col("day").cast("string"), loose))
        written = warehouse.write(cut(named, "day", PART), table.table, generation)
    changed = {name: _cut_part(stage.parts[name], name, written.get(name), generation) for name in wanted}
    behind = stale_parts(stage, table) - wanted
    gone = set() if behind else table.parts.keys() - stage.parts.keys()
    covered = table.covered if behind else stage.covered
    return _following(stage, table, generation, changed, gone, covered)


def cut_queues(
    spark: SparkSession, warehouse: Warehouse, stage: Manifest, table: Manifest, generation: str
) -> Manifest:
    """Make the health of queues anew, from the days that can say anything about it; gives the manifest."""
    as_of = stage.as_of
    since = None if as_of is None else as_of - WINDOW
    telling = {
        name
        for name, part in stage.parts.items()
        if name == LOOSE or part.open_runs or (since and part.latest and part.latest > since)
    }
    rows = queue_health(warehouse.read_parts(spark, stage, telling, _QUEUES_FROM), as_of or _LONG_AGO)
    whole = rows.coalesce(1).withColumn(PART, f.lit(ALL))
    written = warehouse.write(whole, QUEUE_HEALTH, generation).get(ALL)
    part = Part(
        directory=directory_of(generation, ALL) if written else None,
        source=stage.generation,
        covered=stage.covered,
        rows=written.rows if written else 0,
    )
    return _following(stage, table, generation, {ALL: part}, (), stage.covered)


def _cut_part(source: Part, name: str, written: Written | None, generation: str) -> Part:
    directory = directory_of(generation, name) if written else None
    return source.model_copy(update={"directory": directory, "rows": written.rows if written else 0})


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
