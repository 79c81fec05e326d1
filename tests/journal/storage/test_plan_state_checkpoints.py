"""A checkpoint saves folding and decides nothing: lost, damaged or from the future, the state reads the same."""

import pytest

from squid_dagster.journal import MemoryStorage, Storage
from squid_dagster.journal.plan_state.cache import KnownState
from squid_dagster.journal.plan_state.checkpoints import CHECKPOINT_EVERY, keep_checkpoint, load_state
from squid_dagster.protocol import Fact
from squid_dagster.protocol.errors import StorageUnavailable
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection
from tests.facts import RUN, applied, child, planned, runnable, signal, started, step_paused, step_resolved, terminal
from tests.journal.access import THREAD


def _visits(first: int, last: int) -> list[Fact]:
    """Return facts of visits of one step, one after another."""
    recovery = {"compensated": False}
    return [
        fact
        for visit in range(first, last + 1)
        for fact in (planned(runnable(visit=visit, recovery=recovery)), applied(visit=visit, result=visit))
    ]


@pytest.fixture(params=["memory", "postgres"])
def storage(request: pytest.FixtureRequest) -> Storage:
    """Each storage in turn, with a run that has a bit of everything and many facts."""
    made: Storage = MemoryStorage() if request.param == "memory" else request.getfixturevalue("postgres")
    made.append(THREAD, [signal(metadata={"a": 1}), started(), child(), step_paused(), step_resolved()])
    made.append(THREAD, _visits(1, CHECKPOINT_EVERY // 2))
    return made


def _folded(storage: Storage) -> PlanState:
    return PlanState.fold(storage.read(THREAD))


def test_many_facts_leave_a_checkpoint_at_their_revision(storage: Storage) -> None:
    revision, state = load_state(storage, RUN)

    checkpoint = storage.get_checkpoint(THREAD)
    assert checkpoint is not None
    assert checkpoint.revision == revision == storage.revision(THREAD)
    assert PlanState.load(checkpoint.data) == state == _folded(storage)


def test_a_checkpoint_does_not_grow_with_the_run(storage: Storage) -> None:
    def size() -> int:
        load_state(storage, RUN)
        checkpoint = storage.get_checkpoint(THREAD)
        assert checkpoint is not None
        return len(checkpoint.data)

    before = size()
    storage.append(THREAD, _visits(CHECKPOINT_EVERY // 2 + 1, 10 * CHECKPOINT_EVERY))
    assert size() < before + 20


def test_from_a_checkpoint_only_what_came_since_is_read(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    load_state(storage, RUN)
    covered = storage.revision(THREAD)
    storage.append(THREAD, _visits(CHECKPOINT_EVERY // 2 + 1, CHECKPOINT_EVERY // 2 + 3))
    read, asked = storage.read, list[int]()

    def reading(thread: str, after: int = 0, limit: int | None = None) -> object:
        asked.append(after)
        return read(thread, after, limit)

    monkeypatch.setattr(storage, "read", reading)
    revision, state = load_state(storage, RUN)
    monkeypatch.undo()

    assert asked == [covered]
    assert (revision, state) == (covered + 6, _folded(storage))


def test_a_new_checkpoint_is_written_when_as_much_has_come_since_as_it_holds(storage: Storage) -> None:
    # given a state of twice the size of what makes a checkpoint worth its while
    width = CHECKPOINT_EVERY
    storage.append(THREAD, [planned(*(runnable(step=f"s{n}") for n in range(width))), *[signal()] * 2 * width])
    _, state = load_state(storage, RUN)
    size, covered = state.size, storage.revision(THREAD)
    assert size > 2 * width
    # when less has come since, then it stays
    storage.append(THREAD, [signal()] * (size - 1))
    load_state(storage, RUN)
    checkpoint = storage.get_checkpoint(THREAD)
    assert checkpoint is not None
    assert checkpoint.revision == covered
    # when as much has come, then it is written anew
    storage.append(THREAD, [signal()])
    load_state(storage, RUN)
    checkpoint = storage.get_checkpoint(THREAD)
    assert checkpoint is not None
    assert checkpoint.revision == storage.revision(THREAD)


@pytest.mark.parametrize(
    "data", ["{}", "[]", '{"run_id": 5}', '{"version": 1, "digest": "a", "run": {}}', '{"version": 2}', '"x"']
)
def test_a_damaged_checkpoint_costs_time_only(storage: Storage, data: str) -> None:
    storage.put_checkpoint(THREAD, 3, data)

    revision, state = load_state(storage, RUN)

    assert revision == storage.revision(THREAD)
    assert state == _folded(storage)
    checkpoint = storage.get_checkpoint(THREAD)
    assert checkpoint is not None
    assert checkpoint.data == state.dump()


def test_a_checkpoint_from_the_future_is_ignored(storage: Storage) -> None:
    storage.put_checkpoint(THREAD, 10_000, PlanState().dump())
    assert load_state(storage, RUN).state == _folded(storage)


def test_a_lost_checkpoint_is_made_again(storage: Storage) -> None:
    load_state(storage, RUN)
    storage.delete_checkpoint(THREAD)
    assert load_state(storage, RUN).state == _folded(storage)
    assert storage.get_checkpoint(THREAD) is not None


def test_a_thread_that_holds_what_the_planner_never_writes_is_read_whole_and_leaves_none(storage: Storage) -> None:
    storage.append(THREAD, [applied(visit=1, result="another")])
    revision, state = load_state(storage, RUN)
    assert revision == storage.revision(THREAD)
    assert state == PlanState.of(RunProjection.fold(storage.read(THREAD)))
    assert storage.get_checkpoint(THREAD) is None


def test_a_run_that_has_ended_leaves_none(storage: Storage) -> None:
    storage.append(THREAD, [terminal()])
    assert load_state(storage, RUN).state.terminal
    assert storage.get_checkpoint(THREAD) is None


def test_a_checkpoint_that_cannot_be_written_is_no_error(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bool:
        raise StorageUnavailable("away")

    monkeypatch.setattr(storage, "put_checkpoint", refuse)
    revision, state = load_state(storage, RUN)
    keep_checkpoint(storage, RUN, revision, state)
    assert KnownState(revision, state) == KnownState(storage.revision(THREAD), _folded(storage))
