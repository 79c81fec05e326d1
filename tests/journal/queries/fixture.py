"""What the suites of queries share: a journal, its queries, and the clock of both."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.queries import JournalQueries, RunFilter
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol import Fact
from tests.facts import planned, queued, runnable, scheduled, started
from tests.journal.access import put

T = TypeVar("T")


@dataclass
class QueriesFixture:
    """A journal and its queries."""

    storage: Storage
    queries: JournalQueries
    clock: VirtualClock

    def put(self, *facts: Fact) -> None:
        """Write facts."""
        put(self.storage, *facts)

    def wait(self, seconds: float) -> None:
        """Advance the clock."""
        self.clock.advance(timedelta(seconds=seconds))

    def start(self, *runs: str, **fields: Any) -> None:
        """Start healthy runs: planned and scheduled."""
        for run in runs:
            self.put(started(run, **fields), planned(runnable(run), run=run), queued(run), scheduled(run))

    def listed(self, before: int | None = None, limit: int = 100, **filters: Any) -> list[str]:
        """Return the ids of the runs that a listing shows."""
        return [row.run_id for row in self.queries.list_runs(RunFilter(**filters), before, limit)]

    def to_repair(self, queue: str | None = None) -> list[str]:
        """Return all runs to repair."""
        return self.queries.runs_to_repair("", 100, queue)


def pages(ask: Callable[[Any, int], list[T]], cursor: Callable[[T], Any], first: Any, limit: int) -> list[T]:
    """Return everything that comes in pages of that many; assert that each page but the last is full."""
    items: list[T] = []
    after = first
    while page := ask(after, limit):
        assert after is first or cursor(page[-1]) != after, "the next page ends where this one did"
        items += page
        after = cursor(page[-1])
        if len(page) < limit:
            break
    return items
