"""The part of the storage contract about cuts: a reader between consecutive cuts finds each entry once."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from squid_dagster.journal.contract import storage as storage_module
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.entries import Entry, run_of
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.testing.example_facts import THREAD, all_entries, facts_of, put, queued, signal


class CutContract:
    """Tests of cuts and of reads between them, while other threads write."""

    def test_consecutive_cuts_give_each_entry_once(self, storage: Storage) -> None:
        # given commits of any size on any thread, with cuts taken at any time
        chance = random.Random(7)
        cuts = [0, storage.cut()]
        for at in range(40):
            runs = chance.sample(["run-1", "run-2", "run-3"], chance.randint(1, 3))
            put(storage, *[signal(run, at=at) for run in runs for _ in range(chance.randint(1, 3))])
            if chance.random() < 0.5:
                cuts.append(storage.cut())
        cuts.append(storage.cut())
        # when everything between consecutive cuts is read
        slices = [storage.read_between(after, upto) for after, upto in pairwise(cuts)]
        # then that is every entry, once, in order
        assert [entry for part in slices for entry in part] == all_entries(storage)
        assert cuts == sorted(cuts)
        assert cuts[-1] == all_entries(storage)[-1].position

    def test_a_slice_can_be_read_in_pages(self, storage: Storage) -> None:
        facts = [signal(at=at) for at in range(7)]
        storage.append(THREAD, facts)
        cut, after, pages = storage.cut(), 0, []
        while page := storage.read_between(after, cut, limit=3):
            pages.append(facts_of(page))
            after = page[-1].position
        assert pages == [facts[:3], facts[3:6], facts[6:]]
        assert storage.read_between(cut, cut) == []
        assert storage.read_between(cut, 0) == []

    def test_a_reader_between_cuts_misses_nothing_while_many_write(self, storage: Storage) -> None:
        # given four writers at work
        writers, commits = 4, 25
        done = threading.Event()

        def write(run: str) -> None:
            for at in range(commits):
                put(storage, signal(run, at=at), queued(run, at=at), signal("shared", at=at))

        def read() -> list[Entry]:
            seen: list[Entry] = []
            after = 0
            while True:
                last_time = done.is_set()
                upto = storage.cut(after)
                assert upto >= after
                seen += storage.read_between(after, upto)
                after = upto
                if last_time:
                    return seen

        with ThreadPoolExecutor(writers + 1) as pool:
            reader = pool.submit(read)
            # when a reader follows them from cut to cut
            for writer in [pool.submit(write, f"run-{n}") for n in range(writers)]:
                writer.result(60)
            done.set()
            seen = reader.result(60)
        newest = seen[-1].position
        assert storage.cut(newest + 1_000) >= newest + 1_000, "a cut is never below the one it is given"
        # then it saw every entry once, in order
        assert seen == all_entries(storage)
        assert len(seen) == writers * commits * 3

    def test_the_facts_of_a_commit_follow_each_other_and_no_cut_is_between_them(self, storage: Storage) -> None:
        if not storage.atomic_across_threads:
            pytest.skip("its commits are not one")
        # given writers whose commits have three facts each, on several threads
        writers, commits = 4, 25

        def write(run: str) -> None:
            for at in range(commits):
                put(storage, signal(run, at=at), queued(run, at=at), signal(f"{run}-other", at=at))

        # when cuts are taken all the time
        cuts = [0]
        with ThreadPoolExecutor(writers) as pool:
            writing = [pool.submit(write, f"run-{n}") for n in range(writers)]
            while not all(writer.done() for writer in writing):
                cuts.append(storage.cut())
            for writer in writing:
                writer.result()
        # then three facts at a time are neighbours and of one writer, and a cut is behind the third
        entries = all_entries(storage)
        threes = [entries[i : i + 3] for i in range(0, len(entries), 3)]
        assert len(threes) == writers * commits
        for three in threes:
            assert [entry.position - three[0].position for entry in three] == [0, 1, 2]
            assert len({str(run_of(entry.fact)).removesuffix("-other") for entry in three}) == 1
        assert set(cuts) <= {0, *(three[-1].position for three in threes)}
        assert min(cuts) >= 0

    def test_a_commit_of_more_facts_than_there_are_places_is_refused(
        self, storage: Storage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(storage_module, "MAX_COMMIT_FACTS", 3)
        with pytest.raises(InvalidArgument, match=r"at most 3 facts, not 4"):
            put(storage, *[signal(at=at) for at in range(4)])
        assert storage.cut() == 0
        put(storage, *[signal(at=at) for at in range(3)])
