"""Figures for charts, aggregated in Spark from the history tables: few rows, whatever the size of the tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import Column, DataFrame, GroupedData, Row
from pyspark.sql import functions as f

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
_MOST_BUCKETS, _MOST_STEPS = 62, 12
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The runs that started within an hour or a day."""

    start: datetime
    runs: int
    completed: int
    ended: int
    seconds_p50: float | None  # from start to end, of those that have ended
    seconds_p95: float | None


@dataclass(frozen=True, slots=True)
class AttemptFigures:
    """The attempts that were scheduled within an hour or a day."""

    start: datetime
    attempts: int
    waiting_p50: float | None  # seconds from when it was scheduled to its first claim
    waiting_p95: float | None
    working_p50: float | None  # seconds from its last claim to its outcome
    working_p95: float | None


@dataclass(frozen=True, slots=True)
class StepFigures:
    """A step that was tried more than once."""

    workflow: str
    step: str
    retries: int
    expiries: int


def bucket_for(days: Sequence[str]) -> timedelta:
    """Return the width of a bucket: an hour for one or two days, else a day."""
    return HOUR if len(days) <= 2 else DAY


def run_figures(runs: DataFrame, bucket: timedelta) -> list[RunFigures]:
    """Count the runs of a history by when they started, the latest ones if there are too many buckets."""
    lasted = _percentiles(_seconds("started_at", "ended_at"), "seconds")
    counted = _buckets(runs, "started_at", bucket).agg(
        f.count("*").alias("runs"),
        f.count_if(f.col("status") == "completed").alias("completed"),
        f.count("ended_at").alias("ended"),
        *lasted,
    )
    return [
        RunFigures(start, row.runs, row.completed, row.ended, row.seconds_p50, row.seconds_p95)
        for start, row in _latest(counted, bucket)
    ]


def attempt_figures(attempts: DataFrame, bucket: timedelta) -> list[AttemptFigures]:
    """Count the attempts of a history by when they were scheduled, the latest ones if there are too many buckets."""
    counted = _buckets(attempts, "scheduled_at", bucket).agg(
        f.count("*").alias("attempts"),
        *_percentiles(_seconds("scheduled_at", "first_claimed_at"), "waiting"),
        *_percentiles(_seconds("claimed_at", "settled_at"), "working"),
    )
    return [
        AttemptFigures(start, row.attempts, row.waiting_p50, row.waiting_p95, row.working_p50, row.working_p95)
        for start, row in _latest(counted, bucket)
    ]


def step_figures(attempts: DataFrame) -> list[StepFigures]:
    """Count retries and takeovers by step: the steps that had most of them."""
    counted = (
        attempts.where("step IS NOT NULL")
        .groupBy(f.coalesce("workflow", f.lit("?")).alias("workflow"), "step")
        .agg(
            f.count_if(f.col("attempt_number") > 1).alias("retries"),
            f.coalesce(f.sum("expiries"), f.lit(0)).alias("expiries"),
        )
        .where("retries + expiries > 0")
    )
    worst = counted.orderBy(f.desc(f.col("retries") + f.col("expiries")), "workflow", "step").limit(_MOST_STEPS)
    return [StepFigures(row.workflow, row.step, row.retries, row.expiries) for row in worst.collect()]


def _buckets(rows: DataFrame, time: str, bucket: timedelta) -> GroupedData:
    number = f.floor(f.unix_micros(time) / (bucket // _MICROSECOND)).alias("bucket")
    return rows.where(f.col(time).isNotNull()).groupBy(number)


def _latest(counted: DataFrame, bucket: timedelta) -> list[tuple[datetime, Row]]:
    rows = counted.orderBy(f.desc("bucket")).limit(_MOST_BUCKETS).collect()
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return [(epoch + row["bucket"] * bucket, row) for row in reversed(rows)]


def _seconds(since: str, until: str) -> Column:
    """Return the seconds from one time to the other, of three digits, so that percentiles take bounded memory."""
    number = f"((unix_micros({until}) - unix_micros({since})) / 1000D)"
    scale = f"pow(10D, greatest(floor(log10(greatest({number}, 1D))) - 2, 0))"
    return f.expr(f"round({number} / {scale}) * {scale} / 1000D")


def _percentiles(seconds: Column, name: str) -> list[Column]:
    shares = {"p50": 0.5, "p95": 0.95}
    return [f.percentile(seconds, f.lit(share)).alias(f"{name}_{label}") for label, share in shares.items()]
