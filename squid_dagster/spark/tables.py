"""The tables that are cut from folded runs, and the one schema that they share."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_TYPES: dict[str, DataType] = {
    "text": StringType(),
    "time": TimestampType(),
    "number": LongType(),
    "flag": BooleanType(),
}


def _struct(**names: str) -> StructType:
    """Give a struct of columns, named by type; Spark's own spelling would need a running session to be read."""
    return StructType([StructField(name, _TYPES[kind]) for kind, text in names.items() for name in text.split()])


_RUN = _struct(
    text="""workflow trigger queue status definition_version definition_fingerprint parent_run_id
        replayed_from_run_id error paused_step""",
    time="window_start started_at ended_at",
    flag="quarantined fenced",
    number="""planned_visits applied_visits attempts retries expiries children commands resolutions anomalies""",
)
_SUMMARY = _struct(text="workflow queue", time="indexed_at")
_ATTEMPT = _struct(
    text="runnable_key idempotency_key workflow queue step status owner_id error",
    time="scheduled_at visible_at first_claimed_at claimed_at lease_until settled_at last_at",
    flag="planned applied",
    number="attempt_number priority max_deliveries deliveries claims expiries fencing_token position",
)
_CHILD = _struct(text="child_run_id child_workflow child_trigger child_key", time="started_at")
_ANOMALY = _struct(text="reason entry_type run_id subject thread", number="seq position ordinal")
_QUEUE = _struct(text="queue", flag="paused")
_VIEWS = _struct(text="runs attempts children queues anomalies")

UNIT_SCHEMA = StructType(
    [
        *_struct(text="run_id", number="first_position last_position entries"),
        StructField("run", _RUN),
        StructField("indexed", _SUMMARY),
        StructField("cataloged", _SUMMARY),
        StructField("attempts", ArrayType(_ATTEMPT)),
        StructField("children", ArrayType(_CHILD)),
        StructField("queues", ArrayType(_QUEUE)),
        StructField("anomalies", ArrayType(_ANOMALY)),
        StructField("views", _VIEWS),
    ]
)
"""A folded run, as `folds.fold_runs` gives it; a row without a run id stands for the facts that belong to no run."""


STAGE_SCHEMA = StructType(
    [
        *(each for each in UNIT_SCHEMA if each.name != "views"),
        StructField("day", DateType()),
        StructField("latest", TimestampType()),
    ]
)
"""A folded run as the warehouse keeps it, with the day of its start and the time at which an attempt last changed."""

# Whatever zone a session is in: days are days of UTC.
_DAY = "date_from_unix_date(cast(floor(unix_micros(run.started_at) / 86400000000) AS int))"


def staged(units: DataFrame) -> DataFrame:
    """Give folded runs in the columns of `STAGE_SCHEMA`; a run without a start has no day."""
    dated = units.drop("views").withColumn("day", f.expr(_DAY))
    return dated.withColumn("latest", f.expr("array_max(attempts.last_at)"))


def run_index(units: DataFrame, *keep: str) -> DataFrame:
    """Give the runs that can be found under their workflow: run_id, workflow, queue, indexed_at.

    Of the columns beside what was folded, each table has those that are to be kept, at its end.
    """
    return units.where("indexed IS NOT NULL").select("run_id", "indexed.*", *keep)


def run_catalog(units: DataFrame, *keep: str) -> DataFrame:
    """Give the runs that can be found among all: run_id, workflow, queue, indexed_at."""
    return units.where("cataloged IS NOT NULL").select("run_id", "cataloged.*", *keep)


def run_history(units: DataFrame, *keep: str) -> DataFrame:
    """Give a row for each run that any fact names, with what its facts say of it."""
    named = units.where("run_id IS NOT NULL")
    return named.select("run_id", "first_position", "last_position", "entries", "run.*", *keep)


def attempt_history(units: DataFrame, *keep: str) -> DataFrame:
    """Give a row for each attempt; one that was planned and never scheduled has no status."""
    return _exploded(units, "attempts", keep)


def child_links(units: DataFrame, *keep: str) -> DataFrame:
    """Give a row for each linked child."""
    return _exploded(units, "children", keep)


def anomalies(units: DataFrame, *keep: str) -> DataFrame:
    """Give a row for each anomaly, also of facts that belong to no run."""
    return units.select(f.explode("anomalies").alias("one"), *keep).select("one.*", *keep)


def _exploded(units: DataFrame, column: str, keep: tuple[str, ...]) -> DataFrame:
    named = units.where("run_id IS NOT NULL")
    return named.select("run_id", f.explode(column).alias("one"), *keep).select("run_id", "one.*", *keep)
