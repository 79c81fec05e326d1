"""Injected faults come at exactly the append that was named, leave what a crash leaves, and nothing else changes."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from squid_dagster import StepContext, Workflow
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Append, Storage
from squid_dagster.journal.fold_store.dispatch_store import FoldDispatchStore
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import Conflict, InvalidArgument, InvalidFact
from squid_dagster.testing import (
    CRASH_EXIT_CODE,
    Crashed,
    InjectedStorage,
    Plan,
    SquidFactory,
    VirtualSquid,
    assert_invariants,
    drain,
    execute_until_blocked,
    golden,
    make_squid,
)
from tests.facts import planned, queue_paused, queued, scheduled, signal, started
from tests.journal.access import QUEUE_THREAD, THREAD, all_entries, facts_of
from tests.processes import Child, children
from tests.testing.flows import Script, circle, deferring, diamond, family, review, saga, scripted

START = [Append(THREAD, [signal(), started()], 0), Append(QUEUE_THREAD, [queued(), scheduled()])]


# --- what is listed -------------------------------------------------------------------------------------------------


def test_it_is_a_storage(storage: Storage) -> None:
    wrapped: Storage = InjectedStorage(storage)
    assert isinstance(wrapped, Storage)


def test_every_append_is_listed_with_its_threads_and_facts() -> None:
    storage = InjectedStorage(MemoryStorage())
    storage.commit(START)
    storage.append(THREAD, [planned()])
    assert [(boundary.number, boundary.label) for boundary in storage.boundaries] == [
        (1, "run[run_signal_received, run_started] + dispatch[run_queued, attempt_scheduled]"),
        (2, "run[runnables_planned]"),
    ]
    assert [part.thread for part in storage.boundaries[0].parts] == [THREAD, QUEUE_THREAD]


def test_where_commits_are_split_every_append_is_a_boundary() -> None:
    storage = InjectedStorage(MemoryStorage(), atomic_across_threads=False)
    assert storage.commit(START) == {THREAD: 2, QUEUE_THREAD: 2}
    assert [boundary.label for boundary in storage.boundaries] == [
        "run[run_signal_received, run_started]",
        "dispatch[run_queued, attempt_scheduled]",
    ]


def test_what_writes_nothing_is_not_listed() -> None:
    storage, commit_id = InjectedStorage(MemoryStorage()), uuid4()
    storage.commit(START, commit_id)
    storage.commit(START, commit_id)
    with pytest.raises(Conflict):
        storage.commit(START)
    with pytest.raises(InvalidFact):
        storage.append(QUEUE_THREAD, [started()])
    assert len(storage.boundaries) == 1


def test_a_revision_that_is_only_checked_goes_with_the_append_after_it(
    postgres_virtual: PostgresStorage, clock: VirtualClock
) -> None:
    for inner in (MemoryStorage(clock), postgres_virtual):
        storage = InjectedStorage(inner, atomic_across_threads=False)
        storage.append(THREAD, [signal()])
        commit_id = uuid4()
        guarded = [Append(THREAD, (), 1), Append(QUEUE_THREAD, [queue_paused()])]
        first = storage.commit(guarded, commit_id)
        assert first == {THREAD: 1, QUEUE_THREAD: 1} == storage.find_commit(commit_id)
        with pytest.raises(Conflict):
            storage.commit([Append(THREAD, (), 2), Append(QUEUE_THREAD, [queue_paused()])])
        assert storage.revision(QUEUE_THREAD) == 1


def test_a_squid_on_it_uses_the_dispatch_for_any_storage(postgres_virtual: PostgresStorage) -> None:
    with make_squid(circle(), storage=InjectedStorage(postgres_virtual)) as app:
        assert isinstance(app.runtime.dispatch, FoldDispatchStore)


# --- conflicts ------------------------------------------------------------------------------------------------------


def test_conflicts_come_as_often_as_planned_where_one_is_possible() -> None:
    storage = InjectedStorage(MemoryStorage(), Plan(conflicts=2))
    storage.commit(START)  # expects an empty thread: no conflict there could go away
    storage.append(QUEUE_THREAD, [queue_paused()])  # expects nothing
    for _ in range(2):
        with pytest.raises(Conflict) as refused:
            storage.append(THREAD, [planned()], expected_rev=2)
        assert (refused.value.thread, refused.value.expected, refused.value.actual) == (THREAD, 2, 3)
    assert storage.revision(THREAD) == 2
    assert storage.append(THREAD, [planned()], expected_rev=2) == 3


def test_conflicts_come_where_they_were_named() -> None:
    storage = InjectedStorage(MemoryStorage(), Plan(conflict_at={2}))
    storage.append(THREAD, [signal()])
    assert storage.append(THREAD, [started()], expected_rev=1) == 2
    with pytest.raises(Conflict):
        storage.append(THREAD, [planned()], expected_rev=2)
    assert storage.append(THREAD, [planned()], expected_rev=2) == 3


@pytest.mark.parametrize("atomic", [True, False])
def test_conflicts_change_nothing_about_a_run(squid: SquidFactory, atomic: bool) -> None:
    def history(plan: Plan) -> str:
        clock, script = VirtualClock(), Script(ValueError("no"), deferring())
        storage = InjectedStorage(MemoryStorage(clock), plan, atomic_across_threads=atomic)
        app = squid(scripted(), storage=storage, clock=clock, resources={"script": script})
        execute_until_blocked(app, app.start("scripted").run_id)
        assert_invariants(app)
        return golden(app, "run-1")

    assert history(Plan(conflicts=20)) == history(Plan(conflict_at=range(2, 40, 3))) == history(Plan())


# --- races ----------------------------------------------------------------------------------------------------------


def test_somebody_else_can_act_right_before_an_append(squid: SquidFactory, clock: VirtualClock) -> None:
    # given a run that is cancelled while its step's outcome is on its way: after the start and the claim
    storage = InjectedStorage(MemoryStorage(clock))
    app = squid(circle(1), storage=storage, clock=clock)
    storage.arm(Plan(meanwhile={3: lambda: app.cancel("run-1")}))
    app.start("circle")
    # when it is executed
    assert drain(app) == 1
    # then the outcome was refused
    assert app.inspect_run("run-1").status == "cancelled"
    assert [boundary.label for boundary in storage.boundaries][2:] == [
        "dispatch[run_fenced] + run[run_signal_received, run_terminal]"
    ]
    assert_invariants(app)


# --- crashes --------------------------------------------------------------------------------------------------------


def test_a_crash_before_an_append_leaves_it_unwritten_and_one_after_it_leaves_it_written() -> None:
    for plan, written in ((Plan(crash_before=2), 1), (Plan(crash_after=2), 2)):
        storage = InjectedStorage(MemoryStorage(), plan)
        storage.append(THREAD, [signal()])
        with pytest.raises(Crashed, match=r"crashed at append 2: run\[run_started\]") as crashed:
            storage.append(THREAD, [started()])
        assert crashed.value.boundary.number == 2
        assert len(storage.boundaries) == storage.revision(THREAD) == written


def test_a_crash_splits_a_commit_only_where_commits_can_be_split() -> None:
    for atomic, written in ((True, 4), (False, 2)):
        storage = InjectedStorage(MemoryStorage(), Plan(crash_after=1), atomic_across_threads=atomic)
        with pytest.raises(Crashed):
            storage.commit(START)
        assert len(all_entries(storage)) == written


def test_after_a_crash_nothing_is_written_until_it_is_armed_again() -> None:
    storage = InjectedStorage(MemoryStorage(), Plan(crash_before=1))
    writes: list[Callable[[], Any]] = [
        lambda: storage.append(THREAD, [signal()]),
        lambda: storage.commit(START),
        lambda: storage.put_checkpoint(THREAD, 0, "{}"),
        lambda: storage.delete_checkpoint(THREAD),
        lambda: storage.delete_thread(THREAD),
    ]
    for write in writes:
        with pytest.raises(Crashed):
            write()
    assert all_entries(storage) == []
    storage.arm(Plan(crash_after=2))
    storage.append(THREAD, [signal()])
    assert len(storage.boundaries) == 1
    with pytest.raises(Crashed):
        storage.append(THREAD, [started()])


def test_a_step_that_catches_everything_does_not_survive_a_crash(squid: SquidFactory, clock: VirtualClock) -> None:
    # given a step that starts a child, and goes on whatever happens
    parent, child = family()
    survived: list[Exception] = []

    @parent.step
    def careful(ctx: StepContext, spawn: str) -> None:
        try:
            ctx.start_child_run(child, {"amount": 1}, child_key="another")
        except Exception as error:  # noqa: BLE001
            survived.append(error)

    storage = InjectedStorage(MemoryStorage(clock))
    app = squid([parent, child], storage=storage, clock=clock)
    run_id = app.start("parent", priority=5).run_id
    app.execute_next()
    # when the process ends before the child is there: after the claim
    storage.arm(Plan(crash_before=2))
    with pytest.raises(Crashed):
        drain(app)
    # then the step is gone with it, and the next worker runs it again
    assert not survived
    assert (
        execute_until_blocked(squid([parent, child], storage=storage.inner, clock=clock), run_id).status == "completed"
    )
    assert len(app.inspect_run(run_id).child_runs) == 2
    assert_invariants(storage)


def test_a_commit_that_was_cut_in_two_is_completed_by_its_id_and_written_once(
    postgres_virtual: PostgresStorage, clock: VirtualClock
) -> None:
    for inner in (MemoryStorage(clock), postgres_virtual):
        # given a commit of which a crash left the first half
        commit_id = uuid4()
        storage = InjectedStorage(inner, Plan(crash_after=1), atomic_across_threads=False)
        with pytest.raises(Crashed):
            storage.commit(START, commit_id)
        assert storage.find_commit(commit_id) is None
        # when another process repeats it
        again = InjectedStorage(inner, atomic_across_threads=False)
        answer = again.commit(START, commit_id)
        # then the other half is written, and no more
        assert answer == {THREAD: 2, QUEUE_THREAD: 2} == again.find_commit(commit_id) == again.commit(START, commit_id)
        assert len(again.boundaries) == 1
        assert len(all_entries(inner)) == 4


def test_a_crash_can_be_a_real_one(postgres_url: str, postgres_virtual: PostgresStorage, squid: SquidFactory) -> None:
    # given a process that ends between the run's facts and its queue's
    with children() as started_:
        child = Child("tests.testing.crashing", postgres_url, postgres_virtual.schema, "1")
        started_.append(child)
        # then it says nothing more, and leaves half of a start behind
        assert child.end() == CRASH_EXIT_CODE, child.errors()
        assert child.lines == []
    assert [fact.type for fact in facts_of(all_entries(postgres_virtual))] == [
        "run_signal_received",
        "run_started",
        "runnables_planned",
    ]
    # and recovery brings the run to where it would have come
    app = squid(review(), storage=postgres_virtual)
    assert app.recover().scheduled == 1
    assert execute_until_blocked(app, "run-1").status == "paused"
    assert_invariants(app)


# --- every boundary -------------------------------------------------------------------------------------------------


def _start_and_finish(app: VirtualSquid, workflow: str) -> None:
    """Run what a user and a worker do, from wherever an earlier process stopped."""
    run_id = app.start(workflow, {"amount": 3}, idempotency_key="once").run_id
    app.recover()
    while (seen := execute_until_blocked(app, run_id)).manual_state is not None:
        if seen.manual_state.kind == "approval":
            app.approve(run_id, actor="ada", idempotency_key="yes")
        else:
            app.resume(run_id, idempotency_key="go on")
    for child in seen.child_runs:
        execute_until_blocked(app, child.child_run_id)


def _end(app: VirtualSquid, undone: list[str]) -> dict[str, Any]:
    """Return what is to be the same however often a process crashed on the way; how often a step was tried is not."""
    ends: dict[str, Any] = {"undone": list(dict.fromkeys(undone))}
    for row in app.list_runs().runs:
        seen = app.inspect_run(row.run_id)
        outputs = {name: value for name, value in seen.outputs.items() if name in ("quote", "paid", "right", "grow")}
        visits = [key.rpartition(":")[0] for key in seen.applied_runnable_keys]
        message = seen.error and seen.error["message"]
        ends[row.run_id] = (seen.workflow, seen.status, outputs, visits, message)
    return ends


@pytest.mark.parametrize("workflow", ["review", "scripted", "diamond", "saga", "parent"])
@pytest.mark.parametrize("atomic", [True, False], ids=["whole commits", "split commits"])
def test_wherever_a_process_crashes_another_brings_the_run_to_the_same_end(
    squid: SquidFactory, workflow: str, atomic: bool
) -> None:
    def run(plan: Plan) -> tuple[int, dict[str, Any]]:
        clock, undone = VirtualClock(), list[str]()
        journal = MemoryStorage(clock)
        storage = InjectedStorage(journal, plan, atomic_across_threads=atomic)
        script = Script(deferring(), *[ValueError("no")] * (workflow == "scripted"))
        flows: dict[str, Callable[[], list[Workflow]]] = {
            "review": lambda: [review()],
            "scripted": lambda: [scripted()],
            "diamond": lambda: [diamond()],
            "saga": lambda: [saga(undone)],
            "parent": family,
        }
        mine = flows[workflow]()
        healthy = squid(mine, storage=journal, clock=clock, resources={"script": script})
        try:
            _start_and_finish(squid(mine, storage=storage, clock=clock, resources={"script": script}), workflow)
        except Crashed:
            _start_and_finish(healthy, workflow)
        assert_invariants(journal)
        return len(storage.boundaries), _end(healthy, undone)

    appends, expected = run(Plan())
    assert appends >= 6
    for number in range(1, appends + 1):
        assert run(Plan(crash_before=number))[1] == expected
        assert run(Plan(crash_after=number))[1] == expected


# --- plans that make no sense ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan",
    [
        {"conflicts": -1},
        {"conflicts": True},
        {"conflict_at": {0}},
        {"crash_before": 0},
        {"crash_after": -3},
        {"crash_after": "2"},
        {"meanwhile": {0: print}},
    ],
    ids=str,
)
def test_a_plan_that_can_never_happen_is_refused(plan: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="number"):
        Plan(**plan)


def test_a_storage_cannot_be_made_to_do_more_than_it_can() -> None:
    with pytest.raises(InvalidArgument, match="do not span threads"):
        InjectedStorage(MemoryStorage(atomic_across_threads=False), atomic_across_threads=True)
    assert not InjectedStorage(MemoryStorage(atomic_across_threads=False)).atomic_across_threads
