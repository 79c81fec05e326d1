"""The schemas of folded runs, and of the tables that are made from them."""

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
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
    """Return a struct of columns, named by type. Spark's own notation can be parsed only in a running session."""
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
        StructField("day", DateType()),
        StructField("latest", TimestampType()),
    ]
)
"""A folded run, as `folds.fold_runs` returns it and the stage stores it.

`day` is that of its start in UTC, `latest` when an attempt last changed. The row without a
run id has the facts of no run.
"""

CHANGED_SCHEMA = StructType([*UNIT_SCHEMA, *_struct(text="part", flag="moving")])
"""A run that was folded again, with its part, and whether its former row may be in another part."""

_RUN_ID, _DAY = StructField("run_id", StringType()), StructField("day", DateType())

TABLE_SCHEMAS = {
    "run_index": StructType([_RUN_ID, *_SUMMARY, _DAY]),
    "run_catalog": StructType([_RUN_ID, *_SUMMARY, _DAY]),
    "run_history": StructType([_RUN_ID, *_struct(number="first_position last_position entries"), *_RUN, _DAY]),
    "attempt_history": StructType([_RUN_ID, *_ATTEMPT, _DAY]),
    "child_links": StructType([_RUN_ID, *_CHILD, _DAY]),
    "journal_anomalies": StructType([*_ANOMALY, _DAY]),
    "queue_health": StructType(
        [
            *_struct(text="queue", flag="paused", number="scheduled due claimed lease_over dead_letters"),
            *_struct(time="oldest_due_at", number="deliveries expiries completed failed dead_lettered"),
            StructField("waiting_p50_ms", DoubleType()),
            StructField("waiting_p95_ms", DoubleType()),
            StructField("as_of", TimestampType()),
        ]
    ),
}
"""The schema of each table."""
