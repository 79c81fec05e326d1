"""A table of the user's in the journal's database, and a connection that can lose an answer."""

from collections.abc import Iterator

import pytest

from squid_dagster.journal import PostgresStorage
from tests.journal.access import LossyProxy, raw


@pytest.fixture
def table(postgres: PostgresStorage) -> str:
    """A table of the user's, in the journal's database; nothing in it keeps a row from being written twice."""
    with raw(postgres) as connection:
        connection.execute("CREATE TABLE bookings (run_id text, token int, side text)")
    return f"{postgres.schema}.bookings"


@pytest.fixture
def lossy_proxy(postgres_url: str) -> Iterator[LossyProxy]:
    """A proxy to the server that can lose an answer."""
    made = LossyProxy(postgres_url)
    yield made
    made.close()
