"""Real processes on one journal, killed at any moment: no fact lost, doubled or reordered, and no deadlock."""

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable

from squid_dagster.journal import PostgresStorage, verify
from squid_dagster.protocol import Entry, RunSignalReceived, run_thread
from tests.journal.writers import SHARED
from tests.processes import Child, children

Mark = tuple[int, int]  # writer, commit


def _deadlocks(storage: PostgresStorage) -> int:
    storage.rows("SELECT pg_stat_force_next_flush()")
    rows = storage.rows("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    return int(rows[0][0])


def _mark(entry: Entry) -> tuple[Mark, int]:
    assert isinstance(entry.fact, RunSignalReceived)
    payload: dict[str, int] = entry.fact.payload  # type: ignore[assignment]  # the writers put numbers there
    return (payload["writer"], payload["commit"]), payload["threads"]


class _Reader(threading.Thread):
    """Reads between cuts while others write; each commit must come whole, and once."""

    def __init__(self, storage: PostgresStorage, going_on: Callable[[], bool]) -> None:
        super().__init__()
        self._storage, self._going_on = storage, going_on
        self.seen: Counter[Mark] = Counter()
        self.torn: list[Mark] = []
        self.windows = 0

    def run(self) -> None:
        after, last_round = 0, False
        while not last_round:
            last_round = not self._going_on()
            upto = self._storage.cut(after)
            window: Counter[Mark] = Counter()
            threads: dict[Mark, int] = {}
            for entry in self._storage.read_between(after, upto):
                mark, threads_of_commit = _mark(entry)
                window[mark] += 1
                threads[mark] = threads_of_commit
            self.torn += [mark for mark, count in window.items() if count != threads[mark]]
            self.seen.update(window.keys())
            self.windows += bool(window)
            after = upto


def _run_writers(storage: PostgresStorage, url: str, kind: str, commits: int) -> tuple[dict[int, Child], _Reader]:
    """Run 8 writers; kill each second one in the middle and start another in its place."""
    rng = random.Random(7)
    everybody: dict[int, Child] = {}

    def to_be_killed(number: int) -> bool:
        return number < 8 and number % 2 == 0

    def begin(number: int) -> Child:
        # One that is to be killed writes without an end: it never exits by itself before the kill.
        count = 10**9 if to_be_killed(number) else commits
        everybody[number] = Child("tests.journal.writers", kind, url, storage.schema, str(number), str(count))
        crowd.append(everybody[number])
        return everybody[number]

    with children() as crowd:
        going = threading.Event()
        reader = _Reader(storage, lambda: not going.is_set())
        first = [begin(number) for number in range(8)]
        reader.start()
        try:
            for number, child in enumerate(first[::2]):
                child.wait_for_lines(rng.randint(1, commits))
                child.kill()
                begin(100 + number)
            for number, child in everybody.items():
                assert child.end() == (-9 if to_be_killed(number) else 0), child.errors()
        finally:
            going.set()
            reader.join()
    return everybody, reader


def _check(entries: dict[str, list[Entry]], everybody: dict[int, Child], reader: _Reader) -> int:
    places: dict[Mark, list[str]] = defaultdict(list)
    spans: dict[Mark, int] = {}
    for thread, on_thread in entries.items():
        assert [entry.seq for entry in on_thread] == list(range(1, len(on_thread) + 1))
        assert [entry.position for entry in on_thread] == sorted(entry.position for entry in on_thread)
        order: dict[int, int] = {}
        for entry in on_thread:
            mark, spans_of_commit = _mark(entry)
            assert order.get(mark[0], -1) < mark[1], f"{mark} came late or twice on {thread}"
            order[mark[0]] = mark[1]
            places[mark].append(thread)
            spans[mark] = spans_of_commit
    for mark, threads in places.items():
        assert len(threads) == spans[mark], f"{mark} is there in part"
    answered = {
        (writer, int(line.split()[1]))
        for writer, child in everybody.items()
        for line in child.lines
        if line.startswith("ack")
    }
    assert answered <= places.keys(), "an answered commit was lost"
    assert not reader.torn
    assert reader.seen == dict.fromkeys(places, 1), "a reader between cuts missed a commit or saw it twice"
    assert reader.windows > 5
    return len(places)


def test_writers_that_compare_and_append_to_one_thread(postgres: PostgresStorage, postgres_url: str) -> None:
    before = _deadlocks(postgres)

    everybody, reader = _run_writers(postgres, postgres_url, "contend", 60)

    commits = _check({run_thread(SHARED): postgres.read(run_thread(SHARED))}, everybody, reader)
    assert commits >= 8 * 60
    assert _deadlocks(postgres) == before
    assert verify(postgres) == []


def test_writers_that_commit_over_many_threads_in_random_order(postgres: PostgresStorage, postgres_url: str) -> None:
    before = _deadlocks(postgres)

    everybody, reader = _run_writers(postgres, postgres_url, "scatter", 300)

    threads = [run_thread(f"scatter-{n}") for n in range(100)]
    commits = _check({thread: postgres.read(thread) for thread in threads}, everybody, reader)
    assert commits >= 8 * 300
    assert _deadlocks(postgres) == before
    assert verify(postgres) == []
