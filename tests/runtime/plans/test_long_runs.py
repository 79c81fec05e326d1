"""Commands, external outcomes and claims by key of a long run: what is read does not depend on how long it is."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from squid_dagster import Signal
from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Claim
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.plan_state import checkpoints
from squid_dagster.journal.postgres import entry_reader, storage, transaction
from squid_dagster.journal.postgres.dispatch import run_states
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import run_thread
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.errors import ConflictingCommand, InvalidTransition, NotFound, SquidError
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.runtime.commands.external_outcomes import launch_of, waiting_externals
from squid_dagster.runtime.leases.claim_by_key import Refused, claim_item
from squid_dagster.workflow import Retry, StepContext, Workflow, path
from tests.facts import applied
from tests.plan_states import assert_same_state
from tests.runtime.runs import drain

ROUNDS = 12  # of which each writes ten entries of its run's thread
EVERY = 40  # entries after which a checkpoint is written here
FEW = 12  # entries


def rounds() -> Workflow:
    """Build a step, an approval and an external step, in a loop."""
    workflow = Workflow("rounds", entry="turn")

    @workflow.step(output="count", max_visits=10_000)
    def turn(ctx: StepContext, count: int = 0) -> int:
        assert ctx.state.get("count", 0) == count
        return count + 1

    workflow.approval("review", max_visits=10_000)
    workflow.external("train", "dagster_job", job="train_model", max_visits=10_000, retry=Retry(max_attempts=2))
    workflow.route("turn", to="review")
    workflow.route("review", to="train")
    workflow.route("review", on="error", to="fail")
    workflow.route("train", to="turn", when=path("count") < 10_000)
    workflow.route("train", to="complete")
    return workflow


def _note(run_id: str, number: int, kind: str = "external_requested") -> Signal:
    payload: dict[str, Any] = {"run_id": run_id, "runnable_key": f"{run_id}:train:{number}:1", "launcher": "here"}
    if kind == "external_started":
        payload["external_run_id"] = f"dagster-{number}"
    return Signal(type=kind, payload=payload, idempotency_key=f"{kind}:{number}")


def _outcome(run_id: str, number: int, **payload: Any) -> Signal:
    content = {"run_id": run_id, "runnable_key": f"{run_id}:train:{number}:1", "succeeded": True, **payload}
    return Signal(type="external_completed", payload=content, idempotency_key=f"dagster:{number}")


def go_round(squid: Squid, run_id: str, number: int) -> None:
    """Execute the run to its next turn."""
    drain(squid)
    squid.approve(run_id, actor="ada", idempotency_key=f"approval:{number}")
    squid.apply_signal(_note(run_id, number))
    squid.apply_signal(_note(run_id, number, "external_started"))
    squid.apply_signal(_outcome(run_id, number))


@pytest.fixture
def long_run(postgres_virtual: PostgresStorage, monkeypatch: pytest.MonkeyPatch) -> tuple[Squid, str]:
    """A run that has gone round many times, and waits for an approval."""
    monkeypatch.setattr(checkpoints, "CHECKPOINT_EVERY", EVERY)
    squid = Squid(postgres_virtual, [rounds()])
    run_id = squid.start("rounds").run_id
    for number in range(1, ROUNDS + 1):
        go_round(squid, run_id, number)
    drain(squid)
    assert squid.journal.revision(run_thread(run_id)) > 2 * EVERY + FEW
    return squid, run_id


@pytest.fixture
def entries_read(monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    """Every entry of a run's own thread that is read, wherever."""
    entries_seen: list[Entry] = []

    def reading_entries(rows: Sequence[tuple[Any, ...]]) -> list[Entry]:
        entries = entry_reader.read_entries(rows)
        entries_seen.extend(entry for entry in entries if entry.thread.startswith(run_thread("")))
        return entries

    for module in (storage, transaction, run_states):
        monkeypatch.setattr(module, "read_entries", reading_entries)
    return entries_seen


class _CountingStorage(MemoryStorage):
    """A storage that counts the entries that it gives."""

    given = 0

    def read(self, thread: str, after: int = 0, limit: int | None = None) -> list[Entry]:
        entries = super().read(thread, after, limit)
        self.given += len(entries)
        return entries

    def read_run(self, run_id: str, before: int | None = None) -> list[Entry]:
        entries = super().read_run(run_id, before)
        self.given += len(entries)
        return entries


@pytest.fixture(params=[True, False], ids=["memory", "memory, thread by thread"])
def long_run_in_memory(request: pytest.FixtureRequest, clock: VirtualClock) -> tuple[Squid, str, _CountingStorage]:
    """A run in memory that has gone round many times, and waits for an approval."""
    storage = _CountingStorage(clock, atomic_across_threads=request.param)
    squid = Squid(storage, [rounds()])
    run_id = squid.start("rounds").run_id
    for number in range(1, ROUNDS + 1):
        go_round(squid, run_id, number)
    drain(squid)
    return squid, run_id, storage


def _approve(squid: Squid, run_id: str) -> object:
    return squid.approve(run_id, actor="ada", idempotency_key="approval:last")


def _note_launch(squid: Squid, run_id: str) -> object:
    return squid.apply_signal(_note(run_id, ROUNDS + 1))


def _look_at_launch(squid: Squid, run_id: str) -> object:
    ((waiting, _),) = waiting_externals(squid.runtime, ["default"])
    return launch_of(squid.runtime, waiting.attempt)


def _complete(squid: Squid, run_id: str) -> object:
    return squid.apply_signal(_outcome(run_id, ROUNDS + 1))


def _fail(squid: Squid, run_id: str) -> object:
    return squid.apply_signal(_outcome(run_id, ROUNDS + 1, succeeded=False))


def _cancel(squid: Squid, run_id: str) -> object:
    return squid.cancel(run_id, idempotency_key="enough")


def _reject(squid: Squid, run_id: str) -> object:
    return squid.reject(run_id, actor="ada")


def _repeat(squid: Squid, run_id: str) -> object:
    receipt = squid.approve(run_id, actor="ada", idempotency_key="approval:1")
    assert receipt.repeated
    return receipt


def _repeat_outcome(squid: Squid, run_id: str) -> object:
    receipt = squid.apply_signal(_outcome(run_id, 2))
    assert receipt.repeated
    return receipt


def _repeat_with_another_content(squid: Squid, run_id: str) -> object:
    with pytest.raises(ConflictingCommand, match="dagster:2"):
        squid.apply_signal(_outcome(run_id, 2, result="other"))
    return True


def _retry_nothing(squid: Squid, run_id: str) -> object:
    with pytest.raises(InvalidTransition, match="0 dead letters"):
        squid.retry_attempt(run_id)
    with pytest.raises(InvalidTransition, match=r"gone on|only a dead letter"):
        squid.retry_attempt(run_id, f"{run_id}:turn:3:1")
    with pytest.raises(NotFound):
        squid.retry_attempt(run_id, f"{run_id}:turn:3:9")
    return True


def _claim_turn(squid: Squid, run_id: str, number: int) -> Claim | Refused:
    return claim_item(squid.runtime, run_id, f"{run_id}:turn:{number}", "worker", timedelta(seconds=60))


def _claim(squid: Squid, run_id: str) -> object:
    claim = _claim_turn(squid, run_id, ROUNDS + 2)
    assert isinstance(claim, Claim)
    return claim.ref.runnable_key == f"{run_id}:turn:{ROUNDS + 2}:1"


def _claim_what_is_done(squid: Squid, run_id: str) -> object:
    claim = _claim_turn(squid, run_id, 3)
    return isinstance(claim, Refused) and claim.done


def _claim_what_is_not_there(squid: Squid, run_id: str) -> object:
    claim = _claim_turn(squid, run_id, ROUNDS + 3)
    return isinstance(claim, Refused) and not claim.done


AT_REVIEW = {
    "approve": _approve,
    "reject": _reject,
    "cancel": _cancel,
    "repeat": _repeat,
    "repeat an outcome": _repeat_outcome,
    "a key that was used for something else": _repeat_with_another_content,
    "retry what cannot be": _retry_nothing,
}
AT_TRAIN = {
    "note a launch": _note_launch,
    "complete": _complete,
    "fail": _fail,
    "cancel": _cancel,
}
AT_TURN = {
    "claim": _claim,
    "claim what is done": _claim_what_is_done,
    "claim what is not there": _claim_what_is_not_there,
}
COMMANDS = {**AT_REVIEW, **{f"{name}, while it waits": command for name, command in AT_TRAIN.items()}, **AT_TURN}
Command = Callable[[Squid, str], object]


def _given(squid: Squid, run_id: str, name: str) -> None:
    if name not in AT_REVIEW:
        squid.approve(run_id, actor="ada")
    if name in AT_TURN:
        squid.apply_signal(_outcome(run_id, ROUNDS + 1))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_reads_next_to_nothing_of_a_run_that_is_known(
    long_run: tuple[Squid, str], entries_read: list[Entry], name: str
) -> None:
    squid, run_id = long_run
    _given(squid, run_id, name)
    entries_read.clear()
    assert COMMANDS[name](squid, run_id)
    assert len(entries_read) <= FEW


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_in_memory_reads_what_is_new_of_a_run_that_is_known(
    long_run_in_memory: tuple[Squid, str, _CountingStorage], name: str
) -> None:
    squid, run_id, storage = long_run_in_memory
    _given(squid, run_id, name)
    storage.given = 0
    assert COMMANDS[name](squid, run_id)
    assert storage.given <= 2 * FEW  # both threads


def test_a_command_in_memory_that_was_refused_costs_the_next_one_nothing(
    long_run_in_memory: tuple[Squid, str, _CountingStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    squid, run_id, storage = long_run_in_memory
    with monkeypatch.context() as patch:
        patch.setattr(storage, "max_fact_bytes", 10)  # refused when everything is decided
        with pytest.raises(SquidError):
            squid.approve(run_id, actor="ada")
    storage.given = 0
    assert _approve(squid, run_id)
    assert storage.given <= FEW


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_of_another_process_reads_a_checkpoint_and_what_came_since(
    long_run: tuple[Squid, str], entries_read: list[Entry], name: str
) -> None:
    squid, run_id = long_run
    _given(squid, run_id, name)
    checkpoint = squid.journal.get_checkpoint(run_thread(run_id))
    assert checkpoint is not None
    since = squid.journal.revision(run_thread(run_id)) - checkpoint.revision
    assert since <= EVERY
    other = Squid(squid.journal, [rounds()])
    entries_read.clear()
    assert COMMANDS[name](other, run_id)
    assert len(entries_read) <= since * (3 if "retry" in name else 1) + FEW


def test_a_step_that_is_settled_by_another_process_reads_a_checkpoint_and_what_came_since(
    long_run: tuple[Squid, str], entries_read: list[Entry]
) -> None:
    squid, run_id = long_run
    squid.approve(run_id, actor="ada")
    squid.apply_signal(_outcome(run_id, ROUNDS + 1))
    other = Squid(squid.journal, [rounds()])
    entries_read.clear()
    other.worker(until_idle=True)
    # the settlement, and the step that looks at the run's state
    assert 0 < len(entries_read) <= 2 * EVERY + FEW
    assert other.inspect_run(run_id).manual_state is not None


def test_the_launch_of_an_open_attempt_is_looked_up_by_the_state(
    long_run: tuple[Squid, str], entries_read: list[Entry]
) -> None:
    squid, run_id = long_run
    _approve(squid, run_id)
    assert _look_at_launch(squid, run_id) is None
    squid.apply_signal(_note(run_id, ROUNDS + 1))
    squid.apply_signal(_note(run_id, ROUNDS + 1, "external_started"))
    entries_read.clear()
    launch: Any = _look_at_launch(squid, run_id)
    assert (launch.launcher, launch.count, launch.external_run_id) == ("here", 1, f"dagster-{ROUNDS + 1}")
    assert len(entries_read) <= EVERY


def test_the_receipt_of_a_start_and_the_family_of_a_run_take_a_few_entries(
    long_run: tuple[Squid, str], entries_read: list[Entry]
) -> None:
    squid, _ = long_run
    receipt = squid.start("rounds", idempotency_key="once")
    for number in range(1, 4):
        go_round(squid, receipt.run_id, number)
    entries_read.clear()
    assert squid.start("rounds", idempotency_key="once").repeated
    assert len(entries_read) <= FEW
    entries_read.clear()
    squid.cancel(receipt.run_id, cascade=True)
    assert len(entries_read) <= FEW


def test_a_thread_that_holds_what_the_planner_never_writes_is_read_whole_and_the_command_is_the_same(
    long_run: tuple[Squid, str], entries_read: list[Entry]
) -> None:
    squid, run_id = long_run
    squid.journal.append(run_thread(run_id), [applied(run_id, step="turn", result="another")])
    revision = squid.journal.revision(run_thread(run_id))
    entries_read.clear()
    _approve(squid, run_id)
    assert len(entries_read) >= revision
    assert _repeat(squid, run_id)
    _complete(squid, run_id)
    drain(squid)
    assert squid.inspect_run(run_id).manual_state is not None


def test_the_checkpoint_of_a_long_run_says_what_the_whole_of_it_does(long_run: tuple[Squid, str]) -> None:
    squid, run_id = long_run
    checkpoint = squid.journal.get_checkpoint(run_thread(run_id))
    assert checkpoint is not None
    thread = squid.journal.read(run_thread(run_id))
    state = PlanState.load(checkpoint.data)
    for entry in thread[checkpoint.revision :]:
        state.add(entry)
    assert state == PlanState.fold(thread)
    assert_same_state(state, RunProjection.fold(thread))


def test_a_child_of_a_parent_with_many_is_started_and_started_again_from_a_few_entries(
    postgres_virtual: PostgresStorage, entries_read: list[Entry]
) -> None:
    # given a parent that has started many children
    parent, child = Workflow("parent"), Workflow("child")

    @parent.step
    def begin() -> None:
        """Wait for the test."""

    @child.step
    def work() -> None:
        return None

    squid = Squid(postgres_virtual, [parent, child])
    squid.start("parent")
    claim = squid.dispatch_agent("default").claim_next("worker")
    assert claim is not None
    many = 3 * FEW
    receipts = [squid.start_child_run(claim, "child", child_key=f"c-{n}") for n in range(many)]
    # when one more is started, and all are started again
    entries_read.clear()
    squid.start_child_run(claim, "child", child_key="last")
    assert len(entries_read) <= FEW
    for number, first in enumerate(receipts):
        entries_read.clear()
        again = squid.start_child_run(claim, "child", child_key=f"c-{number}")
        # then they are found by their keys
        assert (again.run_id, again.repeated) == (first.run_id, True)
        assert len(entries_read) <= FEW
    with pytest.raises(ConflictingCommand, match="c-1"):
        squid.start_child_run(claim, "child", {"other": 1}, child_key="c-1")
