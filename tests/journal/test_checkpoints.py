"""A checkpoint saves folding and decides nothing: lost, damaged or from the future, the run reads the same."""

import pytest

from squid_dagster.journal import MemoryStorage, Storage, load_run
from squid_dagster.journal.checkpoints import CHECKPOINT_EVERY
from squid_dagster.protocol import RunProjection
from tests.facts import RUN, applied, child, planned, quarantined, runnable, signal, started, step_paused, step_resolved
from tests.journal.contract import THREAD


@pytest.fixture(params=["memory", "postgres"])
def storage(request: pytest.FixtureRequest) -> Storage:
    """Each storage in turn, with a run that has a bit of everything and many facts."""
    made: Storage = MemoryStorage() if request.param == "memory" else request.getfixturevalue("postgres")
    steps = [runnable(step=f"s{n}") for n in range(CHECKPOINT_EVERY)]
    made.append(
        THREAD, [signal(metadata={"a": 1}), started(), planned(*steps), child(), step_paused(), step_resolved()]
    )
    made.append(THREAD, [applied(step=step.step) for step in steps])
    return made


def _folded(storage: Storage) -> RunProjection:
    return RunProjection.fold(storage.read(THREAD))


def test_many_facts_leave_a_checkpoint_at_their_revision(storage: Storage) -> None:
    revision, run = load_run(storage, RUN)

    checkpoint = storage.get_checkpoint(THREAD)
    assert checkpoint is not None
    assert checkpoint.revision == revision == storage.revision(THREAD)
    assert run == _folded(storage)


def test_a_run_read_from_its_checkpoint_is_the_same(storage: Storage) -> None:
    load_run(storage, RUN)
    checkpoint = storage.get_checkpoint(THREAD)
    assert checkpoint is not None
    assert RunProjection.load(checkpoint.data) == _folded(storage)
    storage.append(THREAD, [applied(at=60, result={"ok": 1}), quarantined(at=61)])

    revision, run = load_run(storage, RUN)

    assert revision == storage.revision(THREAD)
    assert run == _folded(storage)
    assert run.anomalies


@pytest.mark.parametrize("data", ["{}", "[]", '{"run_id": 5}', '{"planned": "x"}', '"x"'])
def test_a_damaged_checkpoint_costs_time_only(storage: Storage, data: str) -> None:
    storage.put_checkpoint(THREAD, 3, data)

    revision, run = load_run(storage, RUN)

    assert revision == storage.revision(THREAD)
    assert run == _folded(storage)


def test_a_checkpoint_from_the_future_is_ignored(storage: Storage) -> None:
    storage.put_checkpoint(THREAD, 10_000, RunProjection().dump())

    _, run = load_run(storage, RUN)

    assert run == _folded(storage)


def test_a_lost_checkpoint_is_made_again(storage: Storage) -> None:
    load_run(storage, RUN)
    storage.delete_checkpoint(THREAD)

    _, run = load_run(storage, RUN)

    assert run == _folded(storage)
    assert storage.get_checkpoint(THREAD) is not None
