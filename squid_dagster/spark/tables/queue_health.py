"""The health of queues at a time: open attempts, and the outcomes of the day before. Pure: tallies of runs, summed.

Each task tallies the runs that it reads. The size of a tally depends on the number of queues, not on that of runs.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

WINDOW = timedelta(days=1)
_OF_ATTEMPTS = (
    *("queue", "status", "applied", "deliveries", "expiries", "scheduled_at", "visible_at"),
    *("first_claimed_at", "claimed_at", "lease_until", "settled_at"),
)
COLUMNS = (
    *("run_id", "queues", "latest", "run.ended_at", "run.fenced", "run.quarantined"),
    *(f"attempts.list.element.{name}" for name in _OF_ATTEMPTS),
)
"""The columns of folded runs that a tally needs, by their names in Parquet. Other columns are ignored."""

_TIME = pa.timestamp("us", tz="UTC")
_WAITING, _OPEN = ["available", "retry_scheduled"], ["available", "retry_scheduled", "claimed", "dead_lettered"]
_OUTCOMES = ("completed", "failed", "dead_lettered")
_COUNTS = ("scheduled", "due", "claimed", "lease_over", "dead_letters", "deliveries", "expiries", *_OUTCOMES)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class QueueTally:
    """Counts by queue for some runs, as of a time. Queues with neither open nor recent attempts are left out."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    oldest_due: dict[str, int] = field(default_factory=dict)  # microseconds
    waited: Counter[tuple[str, float]] = field(default_factory=Counter)  # milliseconds, rounded to three digits
    paused: dict[str, bool] = field(default_factory=dict)

    def add_runs(self, runs: pa.RecordBatch, as_of: datetime) -> None:
        """Add folded runs, which must have `COLUMNS`."""
        for queues in runs.column("queues").to_pylist():
            self.paused.update({queue["queue"]: queue["paused"] for queue in queues or ()})
        attempts = _attempts(runs, as_of)
        sums = attempts.group_by("queue").aggregate([*((name, "sum") for name in _COUNTS), ("due_since", "min")])
        for row in sums.to_pylist():
            counts = self.counts.setdefault(row["queue"], Counter())
            counts.update({name: row[f"{name}_sum"] or 0 for name in _COUNTS})
            self._note_due(row["queue"], row["due_since_min"])
        waits = attempts.group_by(["queue", "waited"]).aggregate([([], "count_all")])
        for queue, waited, count in zip(*(waits[name].to_pylist() for name in waits.column_names), strict=True):
            if waited is not None:
                self.waited[queue, waited] += count

    def add(self, other: "QueueTally") -> None:
        """Add the tally of other runs. Only one tally has the paused queues."""
        for queue, counts in other.counts.items():
            self.counts.setdefault(queue, Counter()).update(counts)
        for queue, due in other.oldest_due.items():
            self._note_due(queue, due)
        self.waited.update(other.waited)
        self.paused.update(other.paused)

    def rows(self, as_of: datetime) -> list[dict[str, Any]]:
        """Return a row for each queue that has open attempts, had deliveries within a day, or was ever paused.

        Deliveries, expiries, outcomes and waiting times are those of attempts last claimed, settled or first claimed
        within that day.
        """
        waited: dict[str, list[tuple[float, int]]] = {}
        for (queue, milliseconds), count in sorted(self.waited.items()):
            waited.setdefault(queue, []).append((milliseconds, count))
        return [
            {
                "queue": queue,
                "paused": self.paused.get(queue, False),
                **{name: self.counts.get(queue, Counter())[name] for name in _COUNTS},
                "oldest_due_at": _from_micros(self.oldest_due.get(queue)),
                "waiting_p50_ms": percentile(waited.get(queue, []), 0.5),
                "waiting_p95_ms": percentile(waited.get(queue, []), 0.95),
                "as_of": as_of,
            }
            for queue in sorted(self.counts.keys() | self.paused.keys())
        ]

    def dump(self) -> str:
        """Return the tally as JSON, to be sent from a task to the driver."""
        waited = [[*key, count] for key, count in self.waited.items()]
        return json.dumps([self.counts, self.oldest_due, waited, self.paused])

    @classmethod
    def load(cls, text: str) -> "QueueTally":
        """Parse the text that `dump` returned."""
        counts, oldest_due, waited, paused = json.loads(text)
        return cls(
            {queue: Counter(of_queue) for queue, of_queue in counts.items()},
            oldest_due,
            Counter({(queue, milliseconds): count for queue, milliseconds, count in waited}),
            paused,
        )

    def _note_due(self, queue: str, since: int | None) -> None:
        if since is not None:
            self.oldest_due[queue] = min(since, self.oldest_due.get(queue, since))


def percentile(counted: Iterable[tuple[float, int]], share: float) -> float | None:
    """Return a percentile of sorted values with their counts, interpolated between two values."""
    values = list(counted)
    if not values:
        return None
    place = (sum(count for _, count in values) - 1) * share
    low, high = int(place), -int(-place // 1)
    below, above = _at(values, low), _at(values, high)
    return below if low == high else below * (high - place) + above * (place - low)


def _at(values: list[tuple[float, int]], index: int) -> float:
    for value, count in values:
        if index < count:
            return value
        index -= count
    raise IndexError(index)


def _attempts(runs: pa.RecordBatch, as_of: datetime) -> pa.Table:
    """Return the attempts that count, each with 0 or 1 for each figure."""
    now, since = pa.scalar(as_of, _TIME), pa.scalar(as_of - WINDOW, _TIME)
    run = _fields(runs.column("run"))
    unended = pc.and_(pc.is_null(run["ended_at"]), pc.is_valid(runs.column("run_id")))
    runs = runs.append_column("live", pc.and_(unended, _no(pc.or_(run["fenced"], run["quarantined"]))))
    runs = runs.filter(pc.or_(unended, _yes(pc.greater(runs.column("latest"), since))))
    lists = runs.column("attempts")
    live = runs.column("live").take(pc.list_parent_indices(lists))
    one = _fields(pc.list_flatten(lists))
    is_open = pc.and_(pc.and_(live, pc.is_in(one["status"], pa.array(_OPEN))), _no(one["applied"]))
    claimed_lately = _yes(pc.greater(one["claimed_at"], since))
    settled_lately = _yes(pc.greater(one["settled_at"], since))
    counting = pc.and_(pc.is_valid(one["status"]), pc.or_(pc.or_(is_open, claimed_lately), settled_lately))
    attempts = pa.table({**one, "is_open": is_open, "claimed_lately": claimed_lately, "settled_lately": settled_lately})
    return _with_counts(attempts.filter(counting), now, since)


def _with_counts(attempts: pa.Table, now: pa.Scalar, since: pa.Scalar) -> pa.Table:
    status, is_open, visible_at = attempts["status"], attempts["is_open"], attempts["visible_at"]
    waiting = pc.and_(is_open, pc.is_in(status, pa.array(_WAITING)))
    held = pc.and_(is_open, pc.equal(status, "claimed"))
    due = pc.and_(waiting, _yes(pc.less_equal(visible_at, now)))
    over = pc.and_(held, _yes(pc.less_equal(attempts["lease_until"], now)))
    # From the time it could first be claimed to its first claim; a deferral moves the start.
    first, scheduled_at = attempts["first_claimed_at"], attempts["scheduled_at"]
    later = pc.and_(pc.greater(visible_at, scheduled_at), pc.less_equal(visible_at, first))
    waited = pc.subtract(_micros(first), _micros(pc.if_else(_yes(later), visible_at, scheduled_at)))
    lately = attempts["claimed_lately"]
    flags = {
        "scheduled": pc.and_(waiting, _yes(pc.greater(visible_at, now))),
        "due": due,
        "claimed": pc.and_(held, _yes(pc.greater(attempts["lease_until"], now))),
        "lease_over": over,
        "dead_letters": pc.and_(is_open, pc.equal(status, "dead_lettered")),
        **{name: pc.and_(attempts["settled_lately"], pc.equal(status, name)) for name in _OUTCOMES},
    }
    none = pa.scalar(None, pa.int64())
    due_since = pc.if_else(due, _micros(visible_at), pc.if_else(over, _micros(attempts["lease_until"]), none))
    return pa.table(
        {
            "queue": attempts["queue"],
            **{name: flag.cast(pa.int64()) for name, flag in flags.items()},
            **{name: pc.if_else(lately, attempts[name], none) for name in ("deliveries", "expiries")},
            "due_since": due_since,
            "waited": pc.if_else(_yes(pc.greater(first, since)), _three_digits(waited), pa.scalar(None, pa.float64())),
        }
    )


def _three_digits(micros: Any) -> Any:
    """Return milliseconds rounded to three digits, so that percentiles take bounded memory."""
    number = pc.divide(micros.cast(pa.float64()), 1000.0)
    digits = pc.floor(pc.log10(pc.max_element_wise(number, pa.scalar(1.0))))
    scale = pc.power(10.0, pc.max_element_wise(pc.subtract(digits, 2.0), pa.scalar(0.0)))
    return pc.multiply(pc.round(pc.divide(number, scale), round_mode="half_towards_infinity"), scale)


def _fields(structs: Any) -> dict[str, Any]:
    return dict(zip([field.name for field in structs.type], structs.flatten(), strict=True))


def _micros(times: Any) -> Any:
    return times.cast(pa.int64())


def _yes(flags: Any) -> Any:
    return pc.fill_null(flags, False)


def _no(flags: Any) -> Any:
    return pc.invert(_yes(flags))


def _from_micros(micros: int | None) -> datetime | None:
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)
