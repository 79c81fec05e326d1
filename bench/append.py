"""Appending batches of 100 facts, views kept, beside a bare multi-row INSERT of the same rows into a copy."""

import time
from itertools import chain, islice
from statistics import median
from typing import Any

from bench.journals import by_thread, claim_fact, end_facts, life, new_journal, start_facts
from bench.report import Measure, progress
from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.postgres.connection.pool import pooled_connection
from squid_dagster.protocol import Fact, encode

BATCH, ROUNDS = 100, 60
_COLUMNS = "position, thread, seq, type, run_id, occurred_at, data, digest"
_INSERT = f"INSERT INTO bench.copy ({_COLUMNS}) VALUES " + ", ".join(["(%s, %s, %s, %s, %s, %s, %s, %s)"] * BATCH)


def measure() -> list[Measure]:
    """Measure batches of several kinds. Each round writes with the storage and by a bare INSERT, in turn."""
    with new_journal() as storage:
        with pooled_connection(storage.engine) as connection:
            connection.execute("CREATE TABLE bench.copy (LIKE bench.journal_entries INCLUDING ALL)")
        lives = _batches(chain.from_iterable(life(f"life-{n}") for n in range(100_000)))
        runs = [f"stage-{n}" for n in range(BATCH * ROUNDS)]
        starts = _batches(chain.from_iterable(map(start_facts, runs)))
        claims = _batches(map(claim_fact, runs))
        ends = _batches(chain.from_iterable(map(end_facts, runs)))
        measures = [
            _race(storage, "append, whole lives of runs", list(islice(lives, ROUNDS)), 0.5),
            _race(storage, "append, starts of runs", list(starts), None),
        ]
        measures.append(_race(storage, "append, raw claims (claim_attempts is the usual way)", list(claims), None))
        return [*measures, _race(storage, "append, ends of runs", list(ends), None)]


def _batches(facts: Any) -> Any:
    facts = iter(facts)
    while len(batch := list(islice(facts, BATCH))) == BATCH:
        yield batch


def _race(storage: PostgresStorage, name: str, batches: list[list[Fact]], target: float | None) -> Measure:
    ours, theirs = [], []
    with pooled_connection(storage.engine) as connection:
        first = connection.execute("SELECT coalesce(max(position), 0) FROM bench.copy").fetchone()
        position = first[0] if first else 0
        for number, batch in enumerate(batches):
            progress(name, number, len(batches))
            appends = by_thread(batch)
            rows: list[Any] = []
            for fact in batch:
                position += 1
                stored = encode(fact)
                rows += [position, fact.thread, position, stored.type, stored.run_id, stored.occurred_at, stored.data]
                rows.append(bytes(16))

            begin = time.perf_counter()
            connection.execute(_INSERT.encode(), rows)
            between = time.perf_counter()
            storage.commit(appends)
            theirs.append(between - begin)
            ours.append(time.perf_counter() - between)
    ratio = median(theirs) / median(ours)
    detail = f"{BATCH / median(ours):,.0f} facts/s beside {BATCH / median(theirs):,.0f}"
    return Measure(name, "times the rate of a bare INSERT", ratio, at_least=target, detail=detail)
