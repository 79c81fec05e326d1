"""What tasks tell of the runs that they judge: everything counted, the first of each kind by name, all anomalies."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from squid_dagster.journal.postgres.views.rows import Row
from squid_dagster.spark.checks.results import NAMED, Named


class Kind(StrEnum):
    """What is told of."""

    RUN = "run"  # counted only
    DIFFERS = "differs"
    HURT = "hurt"  # differs, for a thread that runs share is damaged
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
"""A thing that is wrong with a run (`count` 0); or how many of a kind a task has found."""

_ANOMALY = ("run_id", "thread", "reason", "seq", "ordinal", "position")


@dataclass(slots=True)
class Tally:
    """What one task has found. What follows from damage that another check names is `excused`."""

    counts: Counter[tuple[Kind, bool]] = field(default_factory=Counter)
    named: list[Row] = field(default_factory=list)  # but for anomalies, which are told one by one

    def add(self, kind: Kind, run_id: str | None, what: str, *, excused: bool, thread: str | None = None) -> None:
        """Count a run, and name it if there are not enough names yet; `thread` is the damaged one."""
        self.counts[kind, excused] += 1
        if self.counts[kind, excused] <= NAMED:
            told = {"kind": kind.value, "excused": excused, "run_id": run_id, "what": what, "thread": thread}
            self.named.append({**told, "count": 0})

    def anomaly(self, row: Row, *, excused: bool) -> Row:
        """Count an anomaly, a row as the view has it, and give what is told of it."""
        self.counts[Kind.ANOMALY, excused] += 1
        subject = f" ({row['subject']})" if row["subject"] else ""
        what = f"{row['entry_type']} at {row['thread']}/{row['seq']}: {row['reason']}{subject}"
        kept = {name: row[name] for name in _ANOMALY}
        return {**kept, "kind": Kind.ANOMALY.value, "what": what, "excused": excused, "count": 0}

    def rows(self) -> Iterator[Row]:
        """Give the names, and then the counts."""
        yield from self.named
        for (kind, excused), count in self.counts.items():
            yield {"kind": kind.value, "excused": excused, "count": count}


@dataclass(slots=True)
class Outcomes:
    """What all tasks told, but for the anomalies."""

    counts: Counter[tuple[str, bool]] = field(default_factory=Counter)
    named: list[Any] = field(default_factory=list)

    @classmethod
    def read(cls, rows: Iterable[Any]) -> "Outcomes":
        """Bring together what tasks told."""
        found = cls()
        for row in rows:
            if row["count"]:
                found.counts[row["kind"], row["excused"]] += row["count"]
            else:
                found.named.append(row)
        found.named.sort(key=lambda row: (row["kind"], row["run_id"] or "", row["what"]))
        return found

    def names(self, *kinds: Kind) -> list[Named]:
        """Give the names of these kinds; none that is excused."""
        return [Named(row["run_id"], row["what"]) for row in self.named if row["kind"] in kinds and not row["excused"]]

    def hurt(self) -> list[Named]:
        """Give the runs that suffer from damage of a thread that they share."""
        of_kind = (row for row in self.named if row["kind"] == Kind.HURT)
        return [Named(row["run_id"], f"{row['what']}, for {row['thread']} is damaged") for row in of_kind]

    def count(self, *kinds: Kind, excused: bool = False) -> int:
        """Tell how many there are of these kinds."""
        return sum(self.counts[kind.value, excused] for kind in kinds)
