"""Steps that wait for the test, and errors that the database is made to raise."""

from collections.abc import Iterator

import pytest

from squid_dagster.journal import PostgresStorage
from tests.faults import Faults
from tests.runtime.outages.two_steps import Steps


@pytest.fixture
def steps() -> Steps:
    """Steps that wait."""
    return Steps()


@pytest.fixture
def faults(postgres: PostgresStorage) -> Iterator[Faults]:
    """Faults on order."""
    made = Faults(postgres)
    yield made
    made.close()
