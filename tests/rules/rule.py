"""What a rule of the table is."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from squid_dagster.protocol import Fact
from tests.facts import RUN, key, t

Columns = dict[str, Any]
FIRST, SECOND = key(), key(attempt=2)


@dataclass(frozen=True)
class Rule:
    """Facts about run-1, and what is to be seen afterwards; an attempt that maps to None has no row."""

    name: str
    facts: Sequence[Fact]
    attempts: dict[str, Columns | None] = field(default_factory=dict)
    run: Columns = field(default_factory=dict)
    anomalies: Sequence[str] = ()
    queues: dict[str, bool] = field(default_factory=dict)

    def assert_holds(
        self,
        attempts: Sequence[Columns],
        runs: Sequence[Columns],
        anomalies: Sequence[Columns],
        queues: Sequence[Columns],
    ) -> None:
        """Assert that these rows say what the rule says, in each column that it names."""
        by_key = {row["runnable_key"]: row for row in attempts}
        for attempt, columns in self.attempts.items():
            if columns is None:
                assert attempt not in by_key
            else:
                assert {name: by_key[attempt][name] for name in columns} == columns
        by_id = {row["run_id"]: row for row in runs}
        assert {name: by_id[RUN][name] for name in self.run} == self.run
        assert [row["reason"] for row in anomalies] == list(self.anomalies)
        assert {row["queue"]: row["paused"] for row in queues} == self.queues


def at(seconds: float) -> str:
    """Format a time as rows do."""
    return t(seconds).isoformat()


def attempt_columns(**columns: Any) -> dict[str, Columns | None]:
    return {FIRST: columns}


AVAILABLE = {"status": "available", "claim_id": None, "due_at": at(0)}
HELD_BY_A = {"status": "claimed", "claim_id": "a", "lease_until": at(70), "due_at": at(70), "fencing_token": 1}
