"""Errors of the database under `execute_next`: the result is kept as long as the lease."""

import threading
from datetime import timedelta

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.protocol.errors import ExpiredClaim, StorageUnavailable
from squid_dagster.workflow import Workflow
from tests.faults import Faults
from tests.runtime.workers import until


def test_execute_next_keeps_its_result_until_the_database_takes_it(postgres: PostgresStorage, faults: Faults) -> None:
    workflow, planted = Workflow("one"), faults.raising("53100")
    calls = []

    @workflow.step
    def step() -> None:
        calls.append(1)
        planted.__enter__()

    squid = Squid(postgres, workflow)
    run_id = squid.start("one").run_id

    def free_the_disk() -> None:
        until(lambda: calls and faults.raised() > 4, "several tries")
        planted.__exit__(None, None, None)

    freeing = threading.Thread(target=free_the_disk)
    freeing.start()
    executed = squid.execute_next()
    freeing.join()
    assert executed is not None
    assert (executed.run_id, executed.status, len(calls)) == (run_id, "completed", 1)


def test_execute_next_gives_its_result_up_with_the_lease(postgres: PostgresStorage, faults: Faults) -> None:
    workflow, planted = Workflow("one"), faults.raising("53100")
    workflow.step(name="step")(lambda: planted.__enter__())
    squid = Squid(postgres, workflow)
    squid.start("one")
    with pytest.raises((StorageUnavailable, ExpiredClaim)):  # whichever is found out first
        squid.execute_next(lease=timedelta(milliseconds=300))
    planted.__exit__(None, None, None)
