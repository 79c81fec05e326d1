"""What a process caches of threads that it has read: the same as a fold of the whole thread, whatever is on it."""

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal import FoldDispatchStore, MemoryStorage
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.fold_store.queue_index import QueueIndex
from squid_dagster.protocol import DispatchProjection, Entry, RunProjection, dispatch_thread, run_thread
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.workflow import StepContext, Workflow, path
from tests.facts import QUEUE, QUEUES, RUNS, t
from tests.histories import journals
from tests.journal.dispatch_fixture import DispatchFixture, work

TIMES = st.lists(st.integers(0, 120), min_size=1, max_size=4)


@given(journal=journals(), times=TIMES)
def test_a_view_shows_what_the_fold_of_the_whole_thread_shows(journal: list[Entry], times: list[int]) -> None:
    for queue in QUEUES:
        view, read = QueueIndex(), list[Entry]()
        for entry in (entry for entry in journal if entry.thread == dispatch_thread(queue)):
            # when an entry is folded in place, and the view looked at again and again, also by a clock that goes back
            view.add(entry)
            read.append(entry)
            whole = DispatchProjection.fold(read)
            # then it equals the fold from the beginning
            for at in map(t, times):
                assert list(view.claimable(at, None)) == whole.claimable(at)
                assert list(view.visible(at, None)) == whole.visible(at)
                assert list(view.expired(at, None)) == whole.expired(at)
            for run_id, run in whole.runs.items():
                part = view.part(run_id, run.attempts)
                assert (part.queue, part.fenced, part.quarantined) == (run.queue, run.fenced, run.quarantined)
                if not run.fenced:
                    assert (part.attempts, part.tokens) == (run.attempts, run.tokens)


@given(journal=journals())
def test_a_planners_state_knows_whether_its_run_has_stopped_whatever_is_on_the_thread(journal: list[Entry]) -> None:
    for run_id in RUNS:
        mine = [entry for entry in journal if entry.thread == run_thread(run_id)]
        state, run = PlanState.fold(mine), RunProjection.fold(mine)
        assert (state.terminal, state.quarantined) == (run.terminal, run.quarantine is not None)


def test_a_part_holds_the_attempts_of_the_visits_that_are_named_and_no_others() -> None:
    storage = MemoryStorage(VirtualClock(t(0)))
    DispatchFixture(storage, FoldDispatchStore(storage), VirtualClock(t(0))).put(
        work("run-1"), work("run-1", step="other"), work("run-2")
    )
    view = QueueIndex()
    for entry in storage.read(dispatch_thread(QUEUE)):
        view.add(entry)
    (first, *_) = view.visible(t(60), None)
    assert list(view.part(first.run_id, [first.runnable_key]).attempts) == [first.runnable_key]


def test_a_store_goes_on_after_its_queue_was_deleted(clock: VirtualClock) -> None:
    # given a store that has read a queue
    storage = MemoryStorage(clock)
    dispatch = DispatchFixture(storage, FoldDispatchStore(storage), clock)
    dispatch.put(work("run-1"), work("run-2"))
    clock.advance(timedelta(hours=1))
    assert len(dispatch.store.claim(QUEUE, "worker")) == 1
    # when the queue is deleted, and others write to it anew
    storage.delete_thread(dispatch_thread(QUEUE))
    dispatch.put(work("run-3"))
    # then claims are of what there is
    (claim,) = dispatch.store.claim(QUEUE, "worker")
    assert claim.attempt.run_id == "run-3"


def test_two_stores_over_one_storage_see_what_the_other_one_wrote(clock: VirtualClock) -> None:
    storage = MemoryStorage(clock)
    stores = [FoldDispatchStore(storage), FoldDispatchStore(storage)]
    dispatch = DispatchFixture(storage, stores[0], clock)
    dispatch.put(*(work(f"run-{number}") for number in range(6)))
    clock.advance(timedelta(hours=1))
    claims = [stores[number % 2].claim(QUEUE, "worker")[0] for number in range(6)]
    assert {claim.attempt.run_id for claim in claims} == {f"run-{number}" for number in range(6)}
    # what one of them has claimed is released by the other
    for number, claim in enumerate(claims):
        stores[(number + 1) % 2].release([claim.ref])[0].unwrap()
    assert all(len(store.visible(QUEUE)) == 6 for store in stores)


class _Counted(MemoryStorage):
    """A storage that counts the entries that it returns."""

    given = 0

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        entries = super().read(thread, after, limit)
        self.given += len(entries)
        return entries

    def read_run(self, run_id: str, before: int | None = None) -> list[Entry]:
        entries = super().read_run(run_id, before)
        self.given += len(entries)
        return entries


class Payload(BaseModel):
    """The payload of runs."""

    n: int = 0


def test_a_worker_reads_no_entry_of_a_long_run_again_and_again() -> None:
    workflow = Workflow("turning", payload=Payload)

    @workflow.step(output="count", max_visits=60)
    def turn(count: int = 0) -> int:
        return count + 1

    workflow.route("turn", to="turn", when=path("count") < 60)
    workflow.route("turn", to="complete")
    storage = _Counted()
    squid = Squid(storage, [workflow])
    run_id = squid.start("turning", {}).run_id
    squid.worker(until_idle=True)
    assert len(storage.read(run_thread(run_id))) > 60
    assert storage.given < 2 * storage.cut()


def test_a_late_child_reads_as_many_entries_as_an_early_one() -> None:
    parent, child = Workflow("parent", payload=Payload), Workflow("child", payload=Payload)
    storage, counts = _Counted(), list[int]()

    @child.step
    def work_on(n: int) -> int:
        return n

    @parent.step
    def start_all(ctx: StepContext) -> None:
        for number in range(40):
            before = storage.given
            ctx.start_child_run("child", {"n": number}, child_key=f"c-{number}")
            counts.append(storage.given - before)

    squid = Squid(storage, [parent, child])
    squid.start("parent", {})
    squid.execute_next()
    assert set(counts[5:]) == {counts[5]}
