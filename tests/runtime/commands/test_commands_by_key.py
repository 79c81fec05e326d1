"""Commands on any storage, decided by what is kept and by the whole run: the same answers, and the same journals."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from squid_dagster import Receipt, Signal
from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.command_target import CommandDecision, CommandedRun, CommandTarget
from squid_dagster.journal.fold_store.dispatch_store import FoldDispatchStore
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol import Fact, RunUnit
from squid_dagster.protocol.errors import SquidError
from squid_dagster.runtime.commands.external_outcomes import waiting_externals
from squid_dagster.workflow import Retry, Workflow
from tests.facts import T0
from tests.runtime.runs import everything

_SECRET = {"claim_id", "claim_token_hash"}


class _WholeRunStore(FoldDispatchStore):
    """A store whose commands read their runs whole."""

    def command(self, targets: Sequence[CommandTarget], decision: CommandDecision) -> list[Fact]:
        by_id = {target.run_id: target for target in targets}

        def whole(units: Mapping[str, RunUnit], now: datetime) -> Sequence[Fact]:
            return decision({run_id: CommandedRun.of(units[run_id], target) for run_id, target in by_id.items()}, now)

        return self.decide(by_id.keys(), whole)


def rounds() -> Workflow:
    """Build a step that kills its worker now and then, an approval and an external step, in a loop."""
    workflow = Workflow("rounds", entry="turn")
    workflow.step(name="turn", max_visits=100, max_deliveries=1)(lambda: None)
    workflow.approval("review", max_visits=100)
    workflow.external("train", "dagster_job", job="train", max_visits=100, retry=Retry(max_attempts=2))
    workflow.route("turn", to="review")
    workflow.route("review", to="train")
    workflow.route("review", on="error", to="turn")
    workflow.route("train", to="turn")
    workflow.route("train", on="error", to="fail")
    return workflow


_KEYS = st.sampled_from((None, "a", "b", "c"))
_STEPS, _VISITS = (
    st.sampled_from(("turn", "train", "train", "nothing")),
    st.sampled_from((0, 0, 0, 1, 2, 3)),
)  # 0: that of the external step which waits
_MOVES = st.one_of(
    st.just(("round",)),
    st.just(("round",)),
    st.just(("work",)),
    st.just(("die",)),
    st.tuples(st.sampled_from(("approve", "approve", "reject", "resume")), _KEYS),
    st.tuples(st.just("retry"), _KEYS),
    st.tuples(st.just("retry this"), _STEPS, _VISITS, _KEYS),
    st.tuples(st.sampled_from(("requested", "completed", "completed", "failed")), _STEPS, _VISITS, _KEYS),
    st.tuples(st.sampled_from(("cancel", *("approve",) * 7)), _KEYS),
    st.tuples(st.sampled_from(("requested", "completed", "completed", "failed")), st.just("train"), st.just(0), _KEYS),
)


class _Actor:
    """A journal in memory, and who works and commands there."""

    def __init__(self, atomic: bool, store: type[FoldDispatchStore]) -> None:
        self.clock, numbers = VirtualClock(T0), count(1)
        self.storage = MemoryStorage(self.clock, atomic_across_threads=atomic)
        squid = Squid(self.storage, [rounds()], random_unit=lambda: 0.0, new_run_id=lambda: f"run-{next(numbers)}")
        squid.runtime = replace(squid.runtime, dispatch=store(self.storage))
        self.squid, self.run_id = squid, squid.start("rounds").run_id

    def act(self, move: tuple[Any, ...]) -> object:
        """Execute a move; return the answer."""
        self.clock.advance(timedelta(seconds=1))
        try:
            said = self._act(*move)
        except SquidError as error:
            return type(error), str(error)
        return (said.received_at, said.idempotency_key, said.repeated) if isinstance(said, Receipt) else None

    def _act(self, name: str, *given: Any) -> object:
        squid, run_id = self.squid, self.run_id
        match name:
            case "work":
                return squid.execute_next()
            case "round":
                return self._go_round()
            case "die":
                squid.runtime.dispatch.claim("default", "gone", definitions=squid.runtime.registry.keys)
                self.clock.advance(timedelta(hours=1))
                return squid.runtime.dispatch.dead_letter_expired("default")
            case "approve" | "reject" | "resume":
                return getattr(squid, name)(run_id, actor="ada", idempotency_key=given[0])
            case "cancel":
                return squid.cancel(run_id, idempotency_key=given[0])
            case "retry":
                return squid.retry_attempt(run_id, idempotency_key=given[0])
        return self._about_an_attempt(name, *given)

    def _go_round(self) -> object:
        squid = self.squid
        while squid.execute_next():
            pass
        if squid.inspect_run(self.run_id).manual_state is not None:
            squid.approve(self.run_id, actor="ada")
        for waiting, _ in waiting_externals(squid.runtime, ["default"]):
            self._signal("completed", waiting.attempt.runnable_key, None)
        return None

    def _about_an_attempt(self, name: str, step: str, visit: int, key: str | None) -> object:
        if visit == 0:
            visit = 1 + sum(fact.type == "runnable_applied" and ":train:" in fact.runnable_key for fact in self.facts)
        named = f"{self.run_id}:{step}:{visit}:1"
        if name == "retry this":
            return self.squid.retry_attempt(self.run_id, named, idempotency_key=key)
        return self._signal(name, named, key)

    def _signal(self, name: str, runnable_key: str, key: str | None) -> Receipt:
        payload: dict[str, JsonValue] = {"run_id": self.run_id, "runnable_key": runnable_key}
        if name == "requested":
            asked = Signal(type="external_requested", payload={**payload, "launcher": "here"}, idempotency_key=key)
            return self.squid.apply_signal(asked)
        payload["succeeded"] = name == "completed"
        return self.squid.apply_signal(Signal(type="external_completed", payload=payload, idempotency_key=key))

    @property
    def facts(self) -> list[Any]:
        """Everything about the run."""
        return [entry.fact for entry in self.storage.read_run(self.run_id)]

    def journal(self) -> list[tuple[str, int, dict[str, Any]]]:
        """Return everything but what is drawn at random."""
        return [(e.thread, e.seq, _plain(e.fact)) for e in everything(self.storage)]


def _plain(fact: Any) -> dict[str, Any]:
    return {k: v for k, v in fact.model_dump(mode="json").items() if k not in _SECRET and k != "owner_id"}


@pytest.mark.parametrize("atomic", [True, False])
@given(moves=st.lists(_MOVES, min_size=8, max_size=30))
@settings(max_examples=80, deadline=None)
def test_commands_decided_by_key_and_by_the_whole_run_are_the_same(
    atomic: bool, moves: Collection[tuple[Any, ...]]
) -> None:
    by_key, whole = _Actor(atomic, FoldDispatchStore), _Actor(atomic, _WholeRunStore)
    for move in moves:
        assert by_key.act(move) == whole.act(move), move
    assert by_key.journal() == whole.journal()
