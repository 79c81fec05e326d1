"""The health of queues, from folded runs as they stood at a time: what is open, and what the day before it was like."""

from datetime import UTC, datetime, timedelta

from pyspark.sql import DataFrame

WINDOW = timedelta(days=1)
_MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# One statement: a column at a time, Spark would look at the whole plan again for each of them.
_HEALTH = """
WITH attempts AS (
    SELECT run.ended_at IS NULL AND NOT run.fenced AND NOT run.quarantined AS live, explode(attempts) AS one
      FROM {{units}} WHERE run_id IS NOT NULL AND (run.ended_at IS NULL OR latest > {since})
), paused AS (
    SELECT explode(queues) AS one FROM {{units}} WHERE run_id IS NULL
), told AS (
    SELECT one.queue, one.status, one.visible_at, one.lease_until, one.scheduled_at, one.first_claimed_at,
           one.deliveries, one.expiries, NULL AS paused,
           live AND one.status IN ('available', 'retry_scheduled', 'claimed', 'dead_lettered') AND NOT one.applied
               AS is_open,
           one.claimed_at > {since} AS claimed_lately, one.settled_at > {since} AS settled_lately
      FROM attempts WHERE one.status IS NOT NULL
    UNION ALL
    SELECT one.queue, NULL, NULL, NULL, NULL, NULL, NULL, NULL, one.paused, NULL, NULL, NULL FROM paused
), judged AS (
    SELECT *,
           is_open AND status IN ('available', 'retry_scheduled') AND visible_at > {now} AS later,
           is_open AND status IN ('available', 'retry_scheduled') AND visible_at <= {now} AS is_due,
           is_open AND status = 'claimed' AND lease_until <= {now} AS over,
           -- From when it could be claimed to its first claim; a deferral moves the former again.
           if(visible_at > scheduled_at AND visible_at <= first_claimed_at, visible_at, scheduled_at) AS claimable_at,
           CASE WHEN first_claimed_at > {since} THEN {waited} END AS waited
      FROM told WHERE is_open OR claimed_lately OR settled_lately OR paused IS NOT NULL
)
SELECT queue,
       coalesce(max(paused), false) AS paused,
       count_if(later) AS scheduled,
       count_if(is_due) AS due,
       count_if(is_open AND status = 'claimed' AND lease_until > {now}) AS claimed,
       count_if(over) AS lease_over,
       count_if(is_open AND status = 'dead_lettered') AS dead_letters,
       min(CASE WHEN is_due THEN visible_at WHEN over THEN lease_until END) AS oldest_due_at,
       coalesce(sum(CASE WHEN claimed_lately THEN deliveries END), 0) AS deliveries,
       coalesce(sum(CASE WHEN claimed_lately THEN expiries END), 0) AS expiries,
       count_if(settled_lately AND status = 'completed') AS completed,
       count_if(settled_lately AND status = 'failed') AS failed,
       count_if(settled_lately AND status = 'dead_lettered') AS dead_lettered,
       percentile(waited, 0.5) AS waiting_p50_ms,
       percentile(waited, 0.95) AS waiting_p95_ms,
       max({now}) AS as_of
  FROM judged GROUP BY queue
"""


def queue_health(units: DataFrame, as_of: datetime) -> DataFrame:
    """Give a row for each queue that has open attempts, had any delivered within a day of `as_of`, or was ever paused.

    `units` must hold the runs that are open and those that have changed within that day; others make no difference.
    Counts of deliveries, expiries and outcomes, and waiting times, are of that day: of attempts that were last claimed,
    settled or first claimed in it.
    """
    text = _HEALTH.format(
        now=_time(as_of),
        since=_time(as_of - WINDOW),
        waited=three_digits(milliseconds("claimable_at", "first_claimed_at")),
    )
    return units.sparkSession.sql(text, units=units)


def milliseconds(since: str, until: str) -> str:
    """Say in SQL how long it is from one time to another."""
    return f"((unix_micros({until}) - unix_micros({since})) / 1000D)"


def three_digits(number: str) -> str:
    """Round a number, given in SQL, to three digits: a percentile of any number of times then takes bounded memory."""
    scale = f"pow(10D, greatest(floor(log10(greatest({number}, 1D))) - 2, 0))"
    return f"(round({number} / {scale}) * {scale})"


def _time(time: datetime) -> str:
    return f"timestamp_micros({(time - _EPOCH) // _MICROSECOND})"
