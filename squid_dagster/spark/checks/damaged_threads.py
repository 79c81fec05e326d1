"""Which threads explain what is wrong with a run: if one of them is damaged, the run cannot be judged. Pure.

A fact that is gone leaves a gap on its thread, and rows that no fact explains any more. The gap is what is wrong; so
whoever looks at the rows must know on which threads to look for one.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from squid_dagster.journal.postgres.views.comparison import Difference
from squid_dagster.journal.postgres.views.rows import Row
from squid_dagster.protocol.threads import CATALOG_THREAD, dispatch_thread, run_index_thread, run_thread

_LISTINGS = ("indexed", "cataloged")


class RunThreads(NamedTuple):
    """The threads that tell of one run."""

    own: str
    queues: frozenset[str]
    indexes: frozenset[str]

    @property
    def working(self) -> frozenset[str]:
        """Those that say what the run does."""
        return self.queues | {self.own}

    @property
    def every(self) -> frozenset[str]:
        """All of them."""
        return self.working | self.indexes | {CATALOG_THREAD}

    def listing(self, name: str) -> frozenset[str]:
        """Those that a run is listed on: `indexed` or `cataloged`."""
        return self.indexes if name == "indexed" else frozenset({CATALOG_THREAD})


def threads_of(run_id: str, rows: Iterable[Row]) -> RunThreads:
    """Find a run's threads by what any of its rows of `runs` and `attempts` says of queue and workflow."""
    queues, workflows = set(), set()
    for row in rows:
        queues.add(row.get("queue"))
        workflows |= {row.get("workflow"), *((row.get("indexed") or [])[:1])}
    return RunThreads(
        run_thread(run_id),
        frozenset(dispatch_thread(queue) for queue in queues if queue),
        frozenset(run_index_thread(workflow) for workflow in workflows if workflow),
    )


def suspects(difference: Difference, threads: RunThreads) -> Iterator[frozenset[str]]:
    """Give for each thing that differs the threads that would explain it."""
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
