"""Reading one run out of many beside reading it out of few."""

import time
from statistics import median

from bench.journals import by_thread, life, new_journal
from bench.report import Measure, progress
from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.postgres.connection.pool import pooled_connection

FEW, MANY, READS, SEED_BATCH = 100, 100_000, 300, 200


def measure(many: int = MANY) -> list[Measure]:
    """Read the same runs in a journal with few other runs, then with many."""
    with new_journal() as storage:
        _fill(storage, 0, FEW)
        few = _read(storage)
        _fill(storage, FEW, many)
        many_around = _read(storage)
    detail = f"{many_around * 1e3:.2f} ms beside {few * 1e3:.2f} ms, {many:,} runs beside {FEW}"
    return [Measure("read one run, many beside few", "times as long", many_around / few, at_most=1.5, detail=detail)]


def _fill(storage: PostgresStorage, start: int, end: int) -> None:
    for first in range(start, end, SEED_BATCH):
        progress("filling runs", first, end)
        facts = [fact for n in range(first, min(first + SEED_BATCH, end)) for fact in life(f"run-{n}")]
        storage.commit(by_thread(facts))
    with pooled_connection(storage.engine) as connection:
        connection.execute("VACUUM ANALYZE bench.journal_entries")


def _read(storage: PostgresStorage) -> float:
    times = []
    for n in range(READS):
        begin = time.perf_counter()
        entries = storage.read_run(f"run-{n % FEW}")
        times.append(time.perf_counter() - begin)
        assert len(entries) == 12
    return median(times)
