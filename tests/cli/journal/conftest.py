"""Journals to export, and one that imports must leave empty."""

from collections.abc import Iterator
from typing import Any

import pytest

from squid_dagster.journal import PostgresStorage
from tests.cli.journal.exports import Maker, busy, dump, exported


@pytest.fixture(scope="module")
def make(postgres_url: str, schema_names: Iterator[str]) -> Iterator[Maker]:
    """Makes empty journals, by the database's clock unless told otherwise."""
    made: list[PostgresStorage] = []

    def new(**options: Any) -> PostgresStorage:
        made.append(PostgresStorage(postgres_url, next(schema_names), **options))
        made[-1].upgrade()
        return made[-1]

    yield new
    for storage in made:
        storage.close()


@pytest.fixture(scope="module")
def lines(make: Maker) -> list[bytes]:
    """An export of a small journal that holds something of everything."""
    return exported(busy(make()))


@pytest.fixture(scope="module")
def empty(make: Maker) -> Iterator[PostgresStorage]:
    """A journal that stays empty whatever is tried: its positions too are as they were."""
    storage = make()
    before = dump(storage)
    yield storage
    assert dump(storage) == before
    assert storage.rows("SELECT {schema}.cut(), is_called FROM {schema}.journal_numbers") == [(0, False)]
    assert not storage.rows("SELECT FROM pg_tables WHERE schemaname = %s AND tablename LIKE '%%shadow'", storage.schema)
