"""The threads whose damage explains a difference of a run: if one is damaged, the run cannot be checked. Pure.

A lost fact leaves a gap on its thread and rows without a fact. The gap is the cause, so a check of the rows looks for
gaps on these threads.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from squid_dagster.journal.postgres.views.comparison import Difference
from squid_dagster.journal.postgres.views.rows import Row
from squid_dagster.protocol.threads import CATALOG_THREAD, dispatch_thread, run_index_thread, run_thread

_LISTINGS = ("indexed", "cataloged")


class RunThreads(NamedTuple):
    """The threads that have facts of one run."""

    own: str
    queues: frozenset[str]
    indexes: frozenset[str]

    @property
    def working(self) -> frozenset[str]:
        """Those with facts about its execution."""
        return self.queues | {self.own}

    @property
    def every(self) -> frozenset[str]:
        """All of them."""
        return self.working | self.indexes | {CATALOG_THREAD}

    def listing(self, name: str) -> frozenset[str]:
        """Return the threads that list the run: for `indexed` or `cataloged`."""
        return self.indexes if name == "indexed" else frozenset({CATALOG_THREAD})


def threads_of(run_id: str, rows: Iterable[Row]) -> RunThreads:
    """Return a run's threads, by the queues and workflows in its rows of `runs` and `attempts`."""
    queues, workflows = set(), set()
    for row in rows:
        queues.add(row.get("queue"))
        workflows |= {row.get("workflow"), *((row.get("indexed") or [])[:1])}
    return RunThreads(
        run_thread(run_id),
        frozenset(dispatch_thread(queue) for queue in queues if queue),
        frozenset(run_index_thread(workflow) for workflow in workflows if workflow),
    )


def explaining_threads(difference: Difference, threads: RunThreads) -> Iterator[frozenset[str]]:
    """Yield for each differing column, or group of columns, the threads whose damage would explain it."""
    columns = set(difference.columns)
    if difference.table != "runs" or not columns:
        own = {difference.key[0]} if difference.table == "anomalies" else set()
        yield (threads.working | own) if difference.expected or difference.table != "runs" else threads.every
        return
    for name in _LISTINGS:
        if name in columns:
            yield threads.listing(name)
    if "position" in columns:
        yield threads.every
    if columns - {*_LISTINGS, "position"}:
        yield threads.working
