"""A journal that grows by two writers at the same time, since one alone leaves half of the machine idle."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta

import psycopg

from bench.report import progress
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.spark.journal_generator import Generated, Plan, generate

SCHEMA = "bench"
_WRITERS = 2
_EVERY = timedelta(seconds=10)  # between starts of one writer's runs: a million facts are three or four days


@dataclass(slots=True)
class GrowingJournal:
    """A journal on a server, and the next run of each of its writers."""

    url: str
    storage: PostgresStorage
    facts: int = 0
    _next: dict[int, int] = field(default_factory=dict)  # the next run of each writer

    def grow(self, facts: int) -> None:
        """Write until there are about so many facts, then vacuum and checkpoint."""
        progress("writing facts", self.facts, facts)
        share = -(-(facts - self.facts) // _WRITERS)
        with ProcessPoolExecutor(_WRITERS, multiprocessing.get_context("spawn")) as pool:
            runs = max(1, min(500, share // 200))  # a share is not overshot by much
            plans = [self._plan(share, seed, runs_per_commit=runs) for seed in range(_WRITERS)]
            self._note(zip(range(_WRITERS), pool.map(_write, [self.url] * _WRITERS, plans), strict=True))
        self.settle()

    def add(self, facts: int) -> int:
        """Write so many more facts, about new runs. Return how many were written."""
        plan = self._plan(facts, 0, runs_per_commit=10)
        done = generate(self.storage, plan)
        self._note([(0, done)])
        return done.facts

    def settle(self) -> None:
        """Run VACUUM ANALYZE and CHECKPOINT, which Postgres would run later."""
        with psycopg.connect(self.url.replace("+psycopg", "", 1), autocommit=True) as connection:
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")

    def _plan(self, facts: int, seed: int, *, runs_per_commit: int) -> Plan:
        return Plan(facts, seed, every=_EVERY, runs_per_commit=runs_per_commit, first_run=self._next.get(seed, 0))

    def _note(self, done: "zip[tuple[int, Generated]] | list[tuple[int, Generated]]") -> None:
        for seed, generated in done:
            self.facts += generated.facts
            self._next[seed] = generated.next_run


def new_journal(url: str) -> GrowingJournal:
    """Create an empty journal on a server."""
    storage = PostgresStorage(url, SCHEMA)
    storage.upgrade()
    return GrowingJournal(url, storage)


def _write(url: str, plan: Plan) -> Generated:
    storage = PostgresStorage(url, SCHEMA)
    try:
        return generate(storage, plan)
    finally:
        storage.close()
