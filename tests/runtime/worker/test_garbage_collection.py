"""What is set aside from collection comes back, once, and only if it was we who set it aside."""

import gc
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import MemoryStorage
from squid_dagster.runtime.worker.garbage_collection import frozen_heap
from squid_dagster.workflow import Workflow


@pytest.fixture(autouse=True)
def nothing_aside() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_objects_are_aside_within_the_block_and_back_after_it() -> None:
    with frozen_heap():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_they_are_back_after_an_error_too() -> None:
    with pytest.raises(KeyError), frozen_heap():
        raise KeyError
    assert gc.get_freeze_count() == 0


def test_they_stay_aside_until_the_last_of_several_ends_in_whatever_order() -> None:
    first, second = frozen_heap(), frozen_heap()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_freeze_count() > 0
    second.__exit__(None, None, None)
    assert gc.get_freeze_count() == 0


def test_what_the_application_has_set_aside_stays_aside() -> None:
    # given an application that did so before it began to work
    gc.freeze()
    # when workers come and go
    with frozen_heap(), frozen_heap():
        pass
    # then nothing of it was brought back
    assert gc.get_freeze_count() > 0
    # and once the application has brought it back, the next worker does as usual
    gc.unfreeze()
    with frozen_heap():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_an_application_that_brings_everything_back_meanwhile_does_no_harm() -> None:
    with frozen_heap():
        gc.unfreeze()
    assert gc.get_freeze_count() == 0


def test_workers_that_run_at_once_leave_nothing_aside() -> None:
    one = Workflow("one")

    @one.step
    def step() -> None:
        """Return nothing: only that it ran matters."""

    squid = Squid(MemoryStorage(), [one])
    squid.start_many("one", [None] * 20)
    workers = [squid.new_worker(["default"], until_idle=True, grace=timedelta(seconds=5)) for _ in range(3)]
    threads = [threading.Thread(target=worker.run) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(worker.report.completed for worker in workers) == 20
    assert gc.get_freeze_count() == 0
