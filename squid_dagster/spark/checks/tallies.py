"""The results of check tasks as rows: counts of everything, the first runs of each kind by name, all anomalies."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from squid_dagster.journal.postgres.views.rows import Row
from squid_dagster.spark.checks.results import NAMED, RunProblem


class Kind(StrEnum):
    """What a row reports."""

    RUN = "run"  # counted only
    DIFFERS = "differs"
    AFFECTED = "affected"  # differs because a shared thread is damaged
    UNLISTED = "unlisted"
    WAITING = "waiting"  # started a moment ago, and not listed yet
    UNKNOWN_RUN = "unknown_run"  # listed, and never started
    ANOMALY = "anomaly"


OUTCOMES = StructType(
    [
        *(StructField(name, StringType()) for name in ("kind", "run_id", "what", "thread", "reason")),
        *(StructField(name, LongType()) for name in ("seq", "ordinal", "position", "count")),
        StructField("excused", BooleanType()),
    ]
)
"""One problem of a run (`count` is 0), or the count of a kind in one task."""

_ANOMALY = ("run_id", "thread", "reason", "seq", "ordinal", "position")


@dataclass(slots=True)
class Tally:
    """The results of one task. A problem is `excused` if it follows from damage that another check reports."""

    counts: Counter[tuple[Kind, bool]] = field(default_factory=Counter)
    named: list[Row] = field(default_factory=list)  # without anomalies, which are all reported

    def add(self, kind: Kind, run_id: str | None, what: str, *, excused: bool, thread: str | None = None) -> None:
        """Count a run, and name it if fewer than `NAMED` are named; `thread` is the damaged one."""
        self.counts[kind, excused] += 1
        if self.counts[kind, excused] <= NAMED:
            row = {"kind": kind.value, "excused": excused, "run_id": run_id, "what": what, "thread": thread}
            self.named.append({**row, "count": 0})

    def anomaly(self, row: Row, *, excused: bool) -> Row:
        """Count an anomaly, given as a row of the view, and return the row that reports it."""
        self.counts[Kind.ANOMALY, excused] += 1
        subject = f" ({row['subject']})" if row["subject"] else ""
        what = f"{row['entry_type']} at {row['thread']}/{row['seq']}: {row['reason']}{subject}"
        return {
            **{name: row[name] for name in _ANOMALY},
            "kind": Kind.ANOMALY.value,
            "what": what,
            "excused": excused,
            "count": 0,
        }

    def rows(self) -> Iterator[Row]:
        """Yield the rows of named runs, then the counts."""
        yield from self.named
        for (kind, excused), count in self.counts.items():
            yield {"kind": kind.value, "excused": excused, "count": count}


@dataclass(slots=True)
class Outcomes:
    """The results of all tasks, without anomalies."""

    counts: Counter[tuple[str, bool]] = field(default_factory=Counter)
    named: list[Any] = field(default_factory=list)

    @classmethod
    def read(cls, rows: Iterable[Any]) -> "Outcomes":
        """Collect the rows of all tasks."""
        outcomes = cls()
        for row in rows:
            if row["count"]:
                outcomes.counts[row["kind"], row["excused"]] += row["count"]
            else:
                outcomes.named.append(row)
        outcomes.named.sort(key=lambda row: (row["kind"], row["run_id"] or "", row["what"]))
        return outcomes

    def names(self, *kinds: Kind) -> list[RunProblem]:
        """Return the named runs of these kinds that are not excused."""
        return [
            RunProblem(row["run_id"], row["what"]) for row in self.named if row["kind"] in kinds and not row["excused"]
        ]

    def affected(self) -> list[RunProblem]:
        """Return the named runs that differ because of a damaged shared thread."""
        of_kind = (row for row in self.named if row["kind"] == Kind.AFFECTED)
        return [RunProblem(row["run_id"], f"{row['what']}, for {row['thread']} is damaged") for row in of_kind]

    def count(self, *kinds: Kind, excused: bool = False) -> int:
        """Return the count of these kinds."""
        return sum(self.counts[kind.value, excused] for kind in kinds)
