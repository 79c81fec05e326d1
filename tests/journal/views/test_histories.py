"""Whatever is appended, in whichever commits: the live views equal those folded from the journal."""

from collections.abc import Iterator
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from squid_dagster.journal import PostgresStorage, rebuild_views, verify
from squid_dagster.protocol import Fact
from tests.facts import queue_paused, queue_resumed
from tests.histories import histories, renamed
from tests.journal.access import WITHOUT_SHRINKING, assert_views_agree_with_the_journal, put, raw

_numbers = count(1)


def pieces(facts: list[Fact], sizes: list[int]) -> Iterator[list[Fact]]:
    """Split a history into pieces of these sizes."""
    rest = list(facts)
    while rest:
        size = sizes.pop() if sizes else 1
        yield rest[:size]
        rest = rest[size:]


@settings(max_examples=60)
@given(facts=histories(max_size=25), sizes=st.lists(st.integers(1, 8), max_size=25))
def test_kept_views_equal_folded_ones(journal: PostgresStorage, facts: list[Fact], sizes: list[int]) -> None:
    for thread in [row[0] for row in journal.rows("SELECT id FROM {schema}.journal_threads")]:
        journal.delete_thread(thread)

    for piece in pieces(facts, sizes):
        put(journal, *piece)

    assert verify(journal) == []


def test_the_last_example_is_rebuilt_to_the_same(journal: PostgresStorage) -> None:
    rebuild_views(journal)

    assert verify(journal) == []


@given(history=histories(), size=st.integers(1, 6))
@settings(max_examples=50, phases=WITHOUT_SHRINKING)
def test_views_equal_the_fold_of_the_journal_after_any_history(
    postgres_shared: PostgresStorage, history: list[Fact], size: int
) -> None:
    # given any history, about runs and queues of its own
    prefix = f"history{next(_numbers)}"
    mine = [renamed(fact, prefix) for fact in history]
    # when it is committed in pieces of any size
    for start in range(0, len(mine), size):
        put(postgres_shared, *mine[start : start + size])
    # then the rows are what a fold of the journal gives
    runs = {run for fact in mine if (run := getattr(fact, "run_id", None)) is not None}
    assert_views_agree_with_the_journal(postgres_shared, sorted(runs))


def test_a_resumed_queue_is_no_longer_paused_in_the_views(postgres: PostgresStorage) -> None:
    put(postgres, queue_paused())
    put(postgres, queue_resumed())
    put(postgres, queue_resumed("slow"), queue_paused("slow"))
    with raw(postgres) as connection:
        rows = connection.execute("SELECT queue, paused FROM queues ORDER BY queue").fetchall()
    assert rows == [("default", False), ("slow", True)]
