"""Which runs other sessions have locked: returned at once, by any row that a writer of the run would wait for."""

import time

import pytest

from squid_dagster.journal.postgres.dispatch.locked_runs import LockedRuns
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import StorageUnavailable
from tests.facts import scheduled
from tests.journal.access import raw
from tests.journal.dispatch_fixture import DispatchFixture, start

RUNS = ["run-1", "run-2", "run-3"]
HELD = {
    "its row": "SELECT FROM runs WHERE run_id = 'run-2' FOR UPDATE",
    "its row, for a reference": "SELECT FROM runs WHERE run_id = 'run-2' FOR KEY SHARE",
    "an attempt": "SELECT FROM attempts WHERE run_id = 'run-2' FOR UPDATE",
    "its thread": "SELECT FROM journal_threads WHERE id = 'squid:run:run-2' FOR UPDATE",
    "a change of it": "UPDATE runs SET status = status WHERE run_id = 'run-2'",
}


@pytest.mark.parametrize("held", HELD)
def test_a_run_is_locked_by_any_row_of_its_own(postgres_dispatch: DispatchFixture, held: str) -> None:
    storage = postgres_dispatch.storage
    assert isinstance(storage, PostgresStorage)
    start(postgres_dispatch, *RUNS)
    locked = LockedRuns(storage)
    assert locked.find(RUNS) == set()
    locked.check(RUNS)
    with raw(storage, autocommit=False) as connection:
        connection.execute(HELD[held])
        assert locked.find(RUNS) == {"run-2"}
        assert locked.find(["run-1"]) == set()
        # it is remembered until it is looked at again
        locked.check(["run-1", "run-3"])
        with pytest.raises(StorageUnavailable):
            locked.check(RUNS)
    assert locked.find(RUNS) == set()
    locked.check(RUNS)


def test_what_is_shared_with_other_runs_or_not_there_locks_none(postgres_dispatch: DispatchFixture) -> None:
    storage = postgres_dispatch.storage
    assert isinstance(storage, PostgresStorage)
    start(postgres_dispatch, "run-1")
    postgres_dispatch.put(scheduled("run-2"))  # it has no thread of its own
    with raw(storage, autocommit=False) as connection:
        connection.execute("SELECT FROM journal_threads WHERE id LIKE 'squid:dispatch:%' FOR UPDATE")
        assert LockedRuns(storage).find(["run-1", "run-2", "nowhere"]) == set()


def test_a_table_that_is_locked_locks_none_of_its_runs_and_is_not_waited_for(
    postgres_dispatch: DispatchFixture,
) -> None:
    storage = postgres_dispatch.storage
    assert isinstance(storage, PostgresStorage)
    start(postgres_dispatch, "run-1")
    with raw(storage, autocommit=False) as connection:
        connection.execute("LOCK TABLE attempts")
        began = time.monotonic()
        assert LockedRuns(storage).find(["run-1"]) == set()
        assert time.monotonic() - began < 15
