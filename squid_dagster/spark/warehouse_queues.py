"""The health of queues, from folded runs as they stood at a time: what is open, and what the day before it was like."""

from datetime import datetime, timedelta

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from squid_dagster.spark.tables import queues

WINDOW = timedelta(days=1)
_OPEN = ("available", "retry_scheduled", "claimed", "dead_lettered")
_DELAYED = ("available", "retry_scheduled")


def queue_health(units: DataFrame, as_of: datetime) -> DataFrame:
    """Give a row for each queue that has open attempts, had any delivered within a day of `as_of`, or was ever paused.

    `units` must hold the runs that are open and those that have changed within that day; others make no difference.
    Counts of deliveries, expiries and outcomes, and waiting times, are of that day: of attempts that were last claimed,
    settled or first claimed in it.
    """
    now, since = f.lit(as_of), f.lit(as_of - WINDOW)
    live = units.where("run_id IS NOT NULL").select(
        f.expr("run.ended_at IS NULL AND NOT run.fenced AND NOT run.quarantined").alias("live"),
        f.explode("attempts").alias("one"),
    )
    attempts = live.select("live", "one.*").where("status IS NOT NULL")
    rows = attempts.unionByName(queues(units), allowMissingColumns=True)
    status, visible, lease = f.col("status"), f.col("visible_at"), f.col("lease_until")
    is_open = f.col("live") & status.isin(*_OPEN) & ~f.col("applied")
    delayed, claimed = is_open & status.isin(*_DELAYED), is_open & (status == "claimed")
    due, over = delayed & (visible <= now), claimed & (lease <= now)
    recent = {name: f.col(name) > since for name in ("claimed_at", "settled_at", "first_claimed_at")}
    waited = f.when(recent["first_claimed_at"], three_digits(_waited()))
    told = rows.where(is_open | recent["claimed_at"] | recent["settled_at"] | f.col("paused").isNotNull())
    return told.groupBy("queue").agg(
        f.coalesce(f.max("paused"), f.lit(False)).alias("paused"),
        f.count_if(delayed & (visible > now)).alias("scheduled"),
        f.count_if(due).alias("due"),
        f.count_if(claimed & (lease > now)).alias("claimed"),
        f.count_if(over).alias("lease_over"),
        f.count_if(is_open & (status == "dead_lettered")).alias("dead_letters"),
        f.min(f.when(due, visible).when(over, lease)).alias("oldest_due_at"),
        _sum_if(recent["claimed_at"], "deliveries"),
        _sum_if(recent["claimed_at"], "expiries"),
        *(f.count_if(recent["settled_at"] & (status == each)).alias(each) for each in ("completed", "failed")),
        f.count_if(recent["settled_at"] & (status == "dead_lettered")).alias("dead_lettered"),
        f.percentile(waited, f.lit(0.5)).alias("waiting_p50_ms"),
        f.percentile(waited, f.lit(0.95)).alias("waiting_p95_ms"),
        f.max(now).alias("as_of"),
    )


def three_digits(milliseconds: Column) -> Column:
    """Round to three digits, so that a percentile of any number of times takes bounded memory, and is exact in them."""
    scale = f.pow(f.lit(10.0), f.greatest(f.floor(f.log10(f.greatest(milliseconds, f.lit(1.0)))) - 2, f.lit(0)))
    return f.round(milliseconds / scale) * scale


def _waited() -> Column:
    """Milliseconds from when an attempt could be claimed to its first claim; a deferral moves the former again."""
    scheduled, visible, claimed = f.col("scheduled_at"), f.col("visible_at"), f.col("first_claimed_at")
    since = f.when((visible > scheduled) & (visible <= claimed), visible).otherwise(scheduled)
    return (f.unix_micros(claimed) - f.unix_micros(since)) / 1000.0


def _sum_if(condition: Column, name: str) -> Column:
    return f.coalesce(f.sum(f.when(condition, f.col(name))), f.lit(0)).alias(name)
