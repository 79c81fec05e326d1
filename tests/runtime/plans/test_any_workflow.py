"""Any workflow, whatever happens to it: a run ends or waits for a person, and its journal keeps the rules."""

from collections import Counter
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.verification import verify
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run_unit import RunUnit, apply_unit
from squid_dagster.protocol.folds.visits import COMPENSATE, visits
from squid_dagster.testing import assert_invariants, golden
from squid_dagster.workflow import Workflow
from squid_dagster.workflow.planner.planner import plan_settled
from squid_dagster.workflow.planner.schedule import unprogressed
from tests.facts import T0
from tests.plan_states import assert_same_state
from tests.runtime.plans.random_runs import RandomRun
from tests.runtime.plans.random_workflows import Script, dependencies, outcomes, routes


def check_journal(squid: Squid, run_id: str) -> None:
    """Check what must hold of every run, from its facts alone."""
    entries = squid.journal.read_run(run_id)
    facts = [entry.fact for entry in entries]
    whole = RunUnit.fold(entries)
    assert whole.anomalies == []
    applied: list[Any] = [fact for fact in facts if fact.type == "runnable_applied"]
    planned = {key: plan.runnable for key, plan in whole.run.planned.items()}
    per_visit = Counter(planned[fact.runnable_key].idempotency_key for fact in applied)  # type: ignore[union-attr]
    assert set(per_visit.values()) <= {1}, "a visit is applied once"
    for fact in applied:
        settled = whole.dispatch.attempts[fact.runnable_key].status
        ok = (fact.transition or {}).get("on") != "error"
        assert settled == "completed" if ok else settled in ("failed", "dead_lettered")
    ends = [index for index, fact in enumerate(facts) if fact.type == "run_terminal"]
    assert len(ends) == whole.run.terminal
    if whole.run.terminal:
        assert list(whole.dispatch.open_attempts()) == []
        own = [fact.type for fact in facts[ends[0] + 1 :]]
        assert set(own) <= {"run_fenced", "run_indexed", "run_cataloged"}, "nothing happens after the end"


def check_end(squid: Squid, run_id: str) -> None:
    """Check that a run which has ended did all that it had to."""
    run = RunUnit.fold(squid.journal.read_run(run_id)).run
    definition = squid.runtime.registry.current("random")
    assert definition is not None
    done = list(visits(run))
    if run.terminal_status == "completed" and definition.mode == "dependencies":
        assert {visit.runnable.step for visit in done} == set(definition.steps)
    if run.terminal_status == "failed":
        undone = [v.runnable.idempotency_key for v in done if v.runnable.step.startswith(COMPENSATE)]
        due = [
            visit.runnable.idempotency_key.replace(f"{run_id}:", f"{run_id}:{COMPENSATE}", 1)
            for visit in done
            if visit.succeeded
            and visit.runnable.step in definition.steps
            and definition.steps[visit.runnable.step].compensation is not None
        ]
        assert sorted(undone) == sorted(due), "whatever was done is undone, once"
        if definition.mode == "routes":
            assert undone == due[::-1], "newest first"
        assert run.terminal_error


def check_prefixes(squid: Squid, run_id: str) -> None:
    """Check that every earlier state can be folded, planned for and looked at, and that the planner's fold agrees."""
    entries = squid.journal.read_run(run_id)
    definition = squid.runtime.registry.current("random")
    assert definition is not None
    state, planning = RunUnit(), PlanState()
    for entry in entries:
        apply_unit(state, entry)
        planning.add(entry)
        assert planning.plain, "the planner's fold follows whatever the planner writes"
        assert_same_state(planning, state.run)
        stuck = unprogressed(state.run, state.dispatch.attempts)
        plan_settled(definition, state.run, stuck, state.dispatch.attempts, entry.fact.occurred_at)
        assert sum(f":{COMPENSATE}" in key for key in PlanState.of(state.run).open) <= 1, "undone one after another"
    assert state == RunUnit.fold(entries)
    for revision in range(1, squid.journal.revision(f"squid:run:{run_id}") + 1):
        squid.inspect_run(run_id, at_revision=revision)


def lead(chance: Random, workflow: Workflow, flag: int, *, atomic: bool) -> None:
    clock = VirtualClock(T0)
    squid = Squid(MemoryStorage(clock, atomic_across_threads=atomic), workflow)
    run_id = squid.start("random", {"flag": flag}).run_id
    snapshot = RandomRun(chance, squid, clock, run_id).to_the_end()
    event(snapshot.status)
    assert snapshot.status in ("completed", "failed", "paused") or snapshot.reason == "dead_letter"
    check_journal(squid, run_id)
    check_end(squid, run_id)
    check_prefixes(squid, run_id)
    squid.recover()
    assert squid.recover().repaired == 0
    check_journal(squid, run_id)
    assert_invariants(squid)


chances = st.randoms(use_true_random=False)
flags = st.integers(0, 3)


@settings(max_examples=150)
@given(st.data(), chances, outcomes, flags, st.booleans())
def test_a_run_of_any_routes_ends_or_waits_for_a_person(
    data: st.DataObject, chance: Random, said: list[str], flag: int, atomic: bool
) -> None:
    lead(chance, data.draw(routes(Script(said))), flag, atomic=atomic)


@settings(max_examples=150)
@given(st.data(), chances, outcomes, flags, st.booleans())
def test_a_run_of_any_dependencies_ends_or_waits_for_a_person(
    data: st.DataObject, chance: Random, said: list[str], flag: int, atomic: bool
) -> None:
    lead(chance, data.draw(dependencies(Script(said))), flag, atomic=atomic)


# --- one history on all storages ------------------------------------------------------------------------------------

numbers = count(1)


@pytest.fixture(scope="module")
def journal(postgres_url: str, schema_names: Iterator[str]) -> Iterator[PostgresStorage]:
    """A journal on Postgres that all examples share: each has a run and a queue of its own."""
    storage = PostgresStorage(postgres_url, next(schema_names), clock=VirtualClock(T0))
    storage.upgrade()
    yield storage
    assert verify(storage) == []
    storage.close()


def history(storage: Storage, clock: VirtualClock, workflow: Workflow, seed: int, run_id: str) -> str:
    """Start a run, let the same things happen to it as to every other of that seed, and tell what was written."""
    clock.advance(T0 - clock.now())
    squid = Squid(storage, workflow)
    squid.start("random", run_id=run_id, queue=run_id)
    RandomRun(Random(seed), squid, clock, run_id, queue=run_id).to_the_end()
    squid.runtime.notifier.close()
    return golden(storage, run_id)


@settings(max_examples=25)
@given(st.data(), outcomes, st.booleans(), st.integers(0, 2**32))
def test_postgres_and_memory_write_the_same_history(
    journal: PostgresStorage, data: st.DataObject, said: list[str], routed: bool, seed: int
) -> None:
    script = Script(said)
    workflow = data.draw(routes(script) if routed else dependencies(script))
    run_id = f"r{next(numbers)}"
    clock = VirtualClock(T0)
    in_memory = history(MemoryStorage(clock), clock, workflow, seed, run_id)
    script.again()
    assert isinstance(journal.clock, VirtualClock)
    assert history(journal, journal.clock, workflow, seed, run_id) == in_memory
