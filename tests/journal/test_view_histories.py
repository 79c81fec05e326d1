"""Whatever is appended, in whichever commits: the views kept on the way equal those folded from the journal."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squid_dagster.journal import Append, PostgresStorage, rebuild_views, verify
from squid_dagster.protocol import Fact
from tests.histories import histories


@pytest.fixture(scope="module")
def journal(postgres_url: str, schema_names: Iterator[str]) -> Iterator[PostgresStorage]:
    """One journal for all examples: each one takes it back to nothing."""
    storage = PostgresStorage(postgres_url, next(schema_names))
    storage.upgrade()
    yield storage
    storage.close()


def commits(facts: list[Fact], sizes: list[int]) -> Iterator[list[Append]]:
    """Cut a history into commits of these sizes; within a commit, facts are grouped by thread."""
    rest = list(facts)
    while rest:
        size = sizes.pop() if sizes else 1
        group: dict[str, list[Fact]] = {}
        for fact in rest[:size]:
            group.setdefault(fact.thread, []).append(fact)
        rest = rest[size:]
        yield [Append(thread, members) for thread, members in group.items()]


@settings(max_examples=60)
@given(facts=histories(max_size=25), sizes=st.lists(st.integers(1, 8), max_size=25))
def test_kept_views_equal_folded_ones(journal: PostgresStorage, facts: list[Fact], sizes: list[int]) -> None:
    for thread in [row[0] for row in journal.rows("SELECT id FROM {schema}.journal_threads")]:
        journal.delete_thread(thread)

    for appends in commits(facts, sizes):
        journal.commit(appends)

    assert verify(journal) == []


def test_the_last_example_is_rebuilt_to_the_same(journal: PostgresStorage) -> None:
    rebuild_views(journal)

    assert verify(journal) == []
