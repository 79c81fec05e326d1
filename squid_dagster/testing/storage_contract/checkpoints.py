"""The part of the storage contract about checkpoints: kept beside a thread, and never ahead of it."""

from squid_dagster.journal.contract.storage import Checkpoint, Storage
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.testing.example_facts import AWKWARD, OTHER, OTHER_THREAD, THREAD, planned, signal, started


class CheckpointContract:
    """Tests of checkpoints: one per thread, for exactly one revision."""

    def test_a_checkpoint_comes_back_as_it_was_put_with_the_revision_that_it_covers(self, storage: Storage) -> None:
        # given a thread and a projection of it
        storage.append(THREAD, [signal(payload=AWKWARD), started(), planned()])
        data = PlanState.fold(storage.read(THREAD)).dump()
        # when it is kept
        assert storage.get_checkpoint(THREAD) is None
        assert storage.put_checkpoint(THREAD, 3, data) is True
        # then it is there, to the last sign, for this thread only
        assert storage.get_checkpoint(THREAD) == Checkpoint(THREAD, 3, data)
        assert storage.get_checkpoint(OTHER_THREAD) is None
        assert PlanState.load(data) == PlanState.fold(storage.read(THREAD))

    def test_an_older_checkpoint_does_not_replace_a_newer_one(self, storage: Storage) -> None:
        storage.append(THREAD, [signal(), started(), planned()])
        assert storage.put_checkpoint(THREAD, 2, "[2]")
        assert not storage.put_checkpoint(THREAD, 1, "[1]")
        assert storage.get_checkpoint(THREAD) == Checkpoint(THREAD, 2, "[2]")
        assert storage.put_checkpoint(THREAD, 2, "[2, 2]")
        assert storage.get_checkpoint(THREAD) == Checkpoint(THREAD, 2, "[2, 2]")
        assert storage.put_checkpoint(THREAD, 3, "[3]")
        assert storage.get_checkpoint(THREAD) == Checkpoint(THREAD, 3, "[3]")

    def test_a_checkpoint_beyond_its_thread_is_ignored_and_may_be_replaced(self, storage: Storage) -> None:
        # given a checkpoint that claims more than the thread holds
        storage.append(THREAD, [signal(), started()])
        storage.put_checkpoint(THREAD, 5, "[5]")
        assert storage.get_checkpoint(THREAD) is None
        # when one comes that is true, although it covers less
        assert storage.put_checkpoint(THREAD, 1, "[1]")
        # then that one stands
        assert storage.get_checkpoint(THREAD) == Checkpoint(THREAD, 1, "[1]")

    def test_a_checkpoint_of_an_empty_thread_covers_revision_zero(self, storage: Storage) -> None:
        storage.put_checkpoint(THREAD, 1, "[1]")
        assert storage.get_checkpoint(THREAD) is None
        assert storage.put_checkpoint(THREAD, 0, "[0]")
        assert storage.get_checkpoint(THREAD) == Checkpoint(THREAD, 0, "[0]")

    def test_a_deleted_checkpoint_is_gone_and_deleting_none_is_no_error(self, storage: Storage) -> None:
        storage.append(THREAD, [signal()])
        storage.append(OTHER_THREAD, [signal(OTHER)])
        storage.put_checkpoint(THREAD, 1, "[1]")
        storage.put_checkpoint(OTHER_THREAD, 1, "[1]")
        storage.delete_checkpoint(THREAD)
        storage.delete_checkpoint(THREAD)
        assert storage.get_checkpoint(THREAD) is None
        assert storage.get_checkpoint(OTHER_THREAD) is not None
        assert storage.put_checkpoint(THREAD, 0, "[0]")
        assert storage.read(THREAD) != []
