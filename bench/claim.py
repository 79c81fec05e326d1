"""Claiming from a deep queue beside a shallow one: half of the deep one is of higher priority and not due."""

import time
from datetime import timedelta
from statistics import median

from bench.journals import T0, attempt, by_thread, new_journal
from bench.report import Measure, progress
from squid_dagster.journal import PostgresDispatchStore, PostgresStorage
from squid_dagster.journal.postgres.connection.pool import pooled_connection

SHALLOW, DEEP, CLAIMS, SEED_BATCH = 1_000, 1_000_000, 200, 2_000
LATER = T0 + timedelta(days=36_500)


def measure(deep: int = DEEP) -> list[Measure]:
    """Fill both queues through the storage, then claim from them in turn."""
    with new_journal() as storage:
        _fill(storage, "shallow", SHALLOW)
        _fill(storage, "deep", deep)
        with pooled_connection(storage.engine) as connection:
            connection.execute("VACUUM ANALYZE bench.attempts")
        store = PostgresDispatchStore(storage)
        return [_race(store, 1, CLAIMS, deep), _race(store, 10, 20, deep)]


def _fill(storage: PostgresStorage, queue: str, count: int) -> None:
    for start in range(0, count, SEED_BATCH):
        progress(f"filling {queue}", start, count)
        facts = [
            attempt(f"{queue}-{n}", queue, *((5, LATER) if n % 2 else (0, T0)))
            for n in range(start, min(start + SEED_BATCH, count))
        ]
        storage.commit(by_thread([*facts]))


def _race(store: PostgresDispatchStore, limit: int, rounds: int, deep: int) -> Measure:
    times: dict[str, list[float]] = {"shallow": [], "deep": []}
    for _ in range(rounds):
        for queue, seconds in times.items():
            begin = time.perf_counter()
            claims = store.claim(queue, "bench", limit=limit)
            seconds.append(time.perf_counter() - begin)
            assert len(claims) == limit
    shallow, deeper = median(times["shallow"]), median(times["deep"])
    detail = f"{deeper * 1e3:.2f} ms beside {shallow * 1e3:.2f} ms, {deep:,} attempts beside {SHALLOW:,}"
    return Measure(
        f"claim of {limit}, deep beside shallow", "times as long", deeper / shallow, at_most=1.5, detail=detail
    )
