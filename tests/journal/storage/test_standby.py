"""A standby is followed while the primary is written to, and then promoted: nothing is missed, nothing split."""

import threading
from concurrent.futures import ThreadPoolExecutor

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import Entry
from tests.facts import queued, signal
from tests.journal.access import all_entries, put, raw
from tests.servers.standby import primary_and_standby, promote, wait_for_replay

_COMMITS = 40


class Follower:
    """Reads from cut to cut, and looks whether every commit is whole."""

    def __init__(self, storage: PostgresStorage) -> None:
        """Start before the first fact."""
        self._storage, self._cut = storage, 0
        self.seen: list[Entry] = []

    def follow(self) -> None:
        """Read what is settled by now."""
        upto = self._storage.cut(self._cut)
        entries = self._storage.read_between(self._cut, upto)
        numbers = [entry.position >> 20 for entry in entries]
        assert all(numbers.count(number) == 3 for number in numbers), "a commit was split"
        self.seen += entries
        self._cut = upto


def test_a_follower_of_a_standby_misses_nothing_and_goes_on_after_a_promotion() -> None:
    with primary_and_standby() as (primary, standby):
        writer, reader = PostgresStorage(primary.url), PostgresStorage(standby.url)
        try:
            writer.upgrade()
            wait_for_replay(primary, standby)
            follower, done = Follower(reader), threading.Event()

            def write(storage: PostgresStorage, run: str) -> None:
                for at in range(_COMMITS):
                    put(storage, signal(run, at=at), queued(run, at=at), signal(f"{run}-other", at=at))

            def publish() -> None:
                while not done.is_set():
                    writer.publish_cut()

            def follow() -> None:
                while not done.is_set():
                    follower.follow()

            # when two write, a worker publishes, and the standby is followed
            with ThreadPoolExecutor(4) as pool:
                looking = [pool.submit(publish), pool.submit(follow)]
                writing = [pool.submit(write, writer, f"run-{n}") for n in range(2)]
                try:
                    for one in writing:
                        one.result(60)
                finally:
                    done.set()
                for one in looking:
                    one.result(60)

            # then everything under the last published cut was read once
            with raw(reader) as connection:
                (last,) = connection.execute("SELECT last_value << 20 FROM journal_numbers").fetchone() or (0,)
            writer.append("squid:run:late", [signal("late", at=at) for at in range(3)])
            wait_for_replay(primary, standby)
            assert reader.cut() < writer.cut()
            assert reader.cut() <= last, "a standby's own sequence runs ahead of what it has"
            writer.publish_cut()
            wait_for_replay(primary, standby)
            assert reader.cut() == writer.cut()
            follower.follow()
            assert follower.seen == all_entries(writer)

            # and when the standby takes over, its readers go on where they were
            primary.stop()
            promote(standby)
            write(reader, "run-after")
            follower.follow()
            assert follower.seen == all_entries(reader)
            assert len(follower.seen) == 3 * (3 * _COMMITS + 1)
        finally:
            writer.close()
            reader.close()
