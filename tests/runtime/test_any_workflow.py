"""Any workflow, whatever happens to it: a run ends or waits for a person, and its journal keeps the rules."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from squid_dagster.api import Squid
from squid_dagster.inspection import RunSnapshot
from squid_dagster.journal.clock import VirtualClock
from squid_dagster.journal.dispatch import Answer, Settlement
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol.unit import RunUnit, apply_unit
from squid_dagster.runtime.executor import Executor
from squid_dagster.runtime.settlement import settle
from squid_dagster.workflow import Workflow
from squid_dagster.workflow.context import Cancellation
from squid_dagster.workflow.planning import plan_settled
from squid_dagster.workflow.scheduling import unprogressed
from squid_dagster.workflow.state import COMPENSATE, open_visits, visits
from tests.facts import T0
from tests.runtime.random_workflows import Script, dependencies, outcomes, routes

LEASE = timedelta(seconds=20)
_TURNS = 1500


def drive(data: st.DataObject, squid: Squid, clock: VirtualClock, run_id: str) -> RunSnapshot:
    """Let workers, crashes, recoveries and people act in any order, until nothing more happens by itself."""
    crashes = 12
    for _ in range(_TURNS):
        snapshot = squid.inspect_run(run_id)
        if snapshot.terminal:
            return snapshot
        if snapshot.manual_state is not None:
            decision = data.draw(st.sampled_from(["decide", "decide", "leave"]), label="person")
            if decision == "leave":
                return snapshot
            decide(data, squid, run_id, snapshot.manual_state.kind)
        elif not work(data, squid, crashes):
            if not wait(squid, clock, snapshot):
                squid.recover()
                snapshot = squid.inspect_run(run_id)
                if snapshot.status == "dead_letter" and data.draw(st.booleans(), label="retry"):
                    squid.retry_attempt(run_id, snapshot.dead_letters[0].runnable_key)
                elif snapshot.status == "dead_letter":
                    return snapshot
        else:
            crashes -= 1
    raise AssertionError(f"still at work after {_TURNS} turns: {squid.explain_run(run_id).summary}")


def decide(data: st.DataObject, squid: Squid, run_id: str, kind: str) -> None:
    if kind == "pause":
        squid.resume(run_id)
    else:
        data.draw(st.sampled_from([squid.approve, squid.reject]))(run_id, actor="ada")


def work(data: st.DataObject, squid: Squid, crashes: int) -> bool:
    """Claim some, run them, and settle them together or one by one, in any order; or vanish with them."""
    runtime = squid.runtime
    limit = data.draw(st.integers(1, 3), label="claims")
    held = runtime.dispatch.claim("default", "w", limit=limit, lease=LEASE, definitions=runtime.registry.keys)
    if not held:
        return False
    if crashes > 0 and data.draw(st.integers(0, 9), label="crash") == 0:
        return True
    done = []
    for claim in data.draw(st.permutations(held)):
        came = Executor(runtime, asyncio.run).perform(claim, Cancellation())
        assert not isinstance(came, Answer)
        done.append(Settlement(claim.ref, came))
    groups = [done] if data.draw(st.booleans(), label="together") else [[each] for each in done]
    for group in groups:
        for answer in settle(runtime, group).answers:
            # A sibling may have ended the run meanwhile; nothing else can be wrong with a fresh claim.
            assert answer.error is None or type(answer.error).__name__ == "TerminalRun"
    return True


def wait(squid: Squid, clock: VirtualClock, snapshot: RunSnapshot) -> bool:
    """Move the clock to when something is due; tell whether anything ever will be."""
    dues = [each.visible_at for each in snapshot.scheduled_attempts]
    dues += [each.lease_until for each in snapshot.attempts if each.status == "claimed" and each.lease_until]
    later = [due for due in dues if due > clock.now()]
    if later:
        clock.advance(min(later) - clock.now())
    return bool(later)


def check_journal(squid: Squid, run_id: str) -> None:
    """Check what must hold of every run, from its facts alone."""
    entries = squid.journal.read_run(run_id)
    found = [entry.fact for entry in entries]
    whole = RunUnit.fold(entries)
    assert whole.anomalies == []
    applied: list[Any] = [fact for fact in found if fact.type == "runnable_applied"]
    planned = {key: each.runnable for key, each in whole.run.planned.items()}
    per_visit = Counter(planned[fact.runnable_key].idempotency_key for fact in applied)  # type: ignore[union-attr]
    assert set(per_visit.values()) <= {1}, "a visit is applied once"
    for fact in applied:
        settled = whole.dispatch.attempts[fact.runnable_key].status
        ok = (fact.transition or {}).get("on") != "error"
        assert settled == "completed" if ok else settled in ("failed", "dead_lettered")
    ends = [index for index, fact in enumerate(found) if fact.type == "run_terminal"]
    assert len(ends) == whole.run.terminal
    if whole.run.terminal:
        assert list(whole.dispatch.open_attempts()) == []
        own = [fact.type for fact in found[ends[0] + 1 :]]
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
    """Check that every earlier state can be folded, planned for and looked at."""
    entries = squid.journal.read_run(run_id)
    definition = squid.runtime.registry.current("random")
    assert definition is not None
    state = RunUnit()
    for entry in entries:
        apply_unit(state, entry)
        stuck = unprogressed(state.run, state.dispatch.attempts)
        plan_settled(definition, state.run, stuck, state.dispatch.attempts, entry.fact.occurred_at)
        assert sum(f":{COMPENSATE}" in key for key in open_visits(state.run)) <= 1, "undone one after another"
    assert state == RunUnit.fold(entries)
    for revision in range(1, squid.journal.revision(f"squid:run:{run_id}") + 1):
        squid.inspect_run(run_id, at_revision=revision)


def lead(data: st.DataObject, workflow: Workflow, *, atomic: bool) -> None:
    clock = VirtualClock(T0)
    squid = Squid(MemoryStorage(clock, atomic_across_threads=atomic), workflow)
    run_id = squid.start("random", {"flag": data.draw(st.integers(0, 3), label="flag")}).run_id
    snapshot = drive(data, squid, clock, run_id)
    event(snapshot.status)
    assert snapshot.status in ("completed", "failed", "paused", "dead_letter")
    check_journal(squid, run_id)
    check_end(squid, run_id)
    check_prefixes(squid, run_id)
    squid.recover()
    assert squid.recover().repaired == 0
    check_journal(squid, run_id)


@settings(max_examples=150)
@given(st.data(), outcomes, st.booleans())
def test_a_run_of_any_routes_ends_or_waits_for_a_person(data: st.DataObject, said: list[str], atomic: bool) -> None:
    lead(data, data.draw(routes(Script(said))), atomic=atomic)


@settings(max_examples=150)
@given(st.data(), outcomes, st.booleans())
def test_a_run_of_any_dependencies_ends_or_waits_for_a_person(
    data: st.DataObject, said: list[str], atomic: bool
) -> None:
    lead(data, data.draw(dependencies(Script(said))), atomic=atomic)
