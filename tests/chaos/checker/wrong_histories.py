"""Changes to an honest history, each of which breaks one promise."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from squid_dagster.protocol import Fact
from squid_dagster.protocol.entries import StoredFact
from squid_dagster.protocol.facts import (
    AttemptClaimed,
    AttemptCompleted,
    ChildRunStarted,
    RunnableApplied,
    RunSignalReceived,
    RunStarted,
    RunTerminal,
)
from tests.chaos.checker.evidence import Evidence, Row, Run
from tests.facts import OnThread, entries, fence, with_fields

# --- planting -------------------------------------------------------------------------------------------------------


Plant = Callable[[Evidence], Evidence]


def run_of(evidence: Evidence, workflow: str, *, odd: bool | None = None) -> Run:
    return next(run for run in evidence.of(workflow) if odd is None or run.number % 2 == odd)


def _first(run: Run, kind: type[Any], **fields: Any) -> Any:
    """Return the first fact of a kind, of a step if one is named."""
    step = fields.get("step")
    facts = (fact for fact in run.facts if isinstance(fact, kind))
    return next(fact for fact in facts if step is None or f":{step}:" in fact.runnable_key)


def _with_facts(evidence: Evidence, change: Callable[[StoredFact], list[StoredFact]]) -> Evidence:
    """Return the history with each fact replaced by some, in its place; sequences stay whole."""
    items = [OnThread(entry.thread, fact) for entry in evidence.entries for fact in change(entry.fact)]
    return replace(evidence, entries=entries(items))


def _without(evidence: Evidence, *facts: StoredFact) -> Evidence:
    return _with_facts(evidence, lambda fact: [] if any(fact is other for other in facts) else [fact])


def _after(evidence: Evidence, place: StoredFact, *facts: StoredFact) -> Evidence:
    return _with_facts(evidence, lambda fact: [fact, *facts] if fact is place else [fact])


def _with(evidence: Evidence, place: Fact, **fields: Any) -> Evidence:
    return _with_facts(evidence, lambda fact: [with_fields(place, **fields)] if fact is place else [fact])


def _lines(evidence: Evidence, change: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> Evidence:
    return replace(evidence, lines=[line for original in evidence.lines for line in change(original)])


# --- runs -----------------------------------------------------------------------------------------------------------


def lose_a_run(evidence: Evidence) -> Evidence:
    return _without(evidence, *run_of(evidence, "chain").facts)


def never_start_a_run(evidence: Evidence) -> Evidence:
    run = run_of(evidence, "chain").run_id
    return _lines(lose_a_run(evidence), lambda line: [] if line.get("run") == run else [line])


def start_a_run_twice(evidence: Evidence) -> Evidence:
    run = run_of(evidence, "failing")
    copies = [_renamed(fact, run.run_id, "another") for fact in run.facts]
    return _after(evidence, run.facts[-1], *copies)


def _renamed(fact: Any, old: str, new: str) -> Any:
    return type(fact).model_validate_json(fact.model_dump_json().replace(old, new))


def acknowledge_a_start_as_two_runs(evidence: Evidence) -> Evidence:
    return _lines(evidence, lambda e: [e, {**e, "run": "another"}] if e["kind"] == "started" and not e["n"] else [e])


def acknowledge_another_workflow(evidence: Evidence) -> Evidence:
    return _with(evidence, _first(run_of(evidence, "chain"), RunStarted), workflow="slow")


def lose_a_command(evidence: Evidence) -> Evidence:
    approval = next(
        fact
        for fact in run_of(evidence, "reviewed", odd=False).facts
        if isinstance(fact, RunSignalReceived) and fact.signal_type == "approve_run"
    )
    return _without(evidence, approval)


def leave_a_run_open(evidence: Evidence) -> Evidence:
    return _without(evidence, _first(run_of(evidence, "fan"), RunTerminal))


def end_a_run_otherwise(evidence: Evidence) -> Evidence:
    return _with(evidence, _first(run_of(evidence, "fan"), RunTerminal), status="cancelled")


def end_a_run_twice(evidence: Evidence) -> Evidence:
    end = _first(run_of(evidence, "fan"), RunTerminal)
    return _after(evidence, end, end.model_copy())


def lose_a_child(evidence: Evidence) -> Evidence:
    link = _first(run_of(evidence, "parent"), ChildRunStarted)
    return _without(evidence, *evidence.runs[link.child_run_id].facts)


def lose_a_link(evidence: Evidence) -> Evidence:
    return _without(evidence, _first(run_of(evidence, "parent"), ChildRunStarted))


def start_a_child_too_many(evidence: Evidence) -> Evidence:
    link = _first(run_of(evidence, "parent"), ChildRunStarted)
    return _after(evidence, link, with_fields(link, child_run_id=run_of(evidence, "fan").run_id))


def adopt_a_child(evidence: Evidence) -> Evidence:
    parent, other = run_of(evidence, "parent"), run_of(evidence, "loop")
    link = _first(parent, ChildRunStarted)
    return _after(evidence, other.facts[-2], with_fields(link, run_id=other.run_id))


# --- results --------------------------------------------------------------------------------------------------------


def apply_a_result_twice(evidence: Evidence) -> Evidence:
    result = _first(run_of(evidence, "chain"), RunnableApplied)
    return _after(evidence, result, result.model_copy())


def apply_two_results_of_a_visit(evidence: Evidence) -> Evidence:
    result = _first(run_of(evidence, "chain"), RunnableApplied)
    return _after(evidence, result, with_fields(result, result=77))


def apply_a_result_after_the_end(evidence: Evidence) -> Evidence:
    run = run_of(evidence, "chain")
    last = _first(run, RunnableApplied, step="third")
    return _after(_without(evidence, last), _first(run, RunTerminal), last)


def complete_after_the_end(evidence: Evidence) -> Evidence:
    run = run_of(evidence, "failing")
    claim = _first(run, AttemptClaimed)
    late = AttemptCompleted(
        run_id=run.run_id,
        queue=claim.queue,
        runnable_key=claim.runnable_key,
        claim_id=claim.claim_id,
        claim_token_hash=claim.claim_token_hash,
        result=1,
        occurred_at=claim.occurred_at,
    )
    return _after(evidence, _first(run, RunTerminal), late)


def lose_a_result(evidence: Evidence) -> Evidence:
    return _without(evidence, _first(run_of(evidence, "loop"), RunnableApplied))


def mix_up_results(evidence: Evidence) -> Evidence:
    run = run_of(evidence, "chain")
    done, applied = _first(run, AttemptCompleted), _first(run, RunnableApplied)
    return _with(_with(evidence, done, result=99), applied, result=99)


# --- leases ---------------------------------------------------------------------------------------------------------


def overlap_two_leases(evidence: Evidence) -> Evidence:
    claim = _first(run_of(evidence, "chain"), AttemptClaimed)
    at = claim.lease_until - timedelta(microseconds=1)
    second = with_fields(
        claim, **fence("b"), fencing_token=2, occurred_at=at, lease_until=claim.lease_until + timedelta(seconds=1)
    )
    return _after(evidence, claim, second)


def complete_under_a_lost_claim(evidence: Evidence) -> Evidence:
    return _with(evidence, _first(run_of(evidence, "chain"), AttemptCompleted), **fence("b"))


def complete_after_the_lease(evidence: Evidence) -> Evidence:
    run = run_of(evidence, "chain")
    until = _first(run, AttemptClaimed).lease_until
    return _with(evidence, _first(run, AttemptCompleted), occurred_at=until)


def reuse_a_token(evidence: Evidence) -> Evidence:
    claim = _first(run_of(evidence, "chain"), AttemptClaimed)
    later = {"occurred_at": claim.lease_until, "lease_until": claim.lease_until + timedelta(seconds=9)}
    return _after(evidence, claim, with_fields(claim, **fence("b"), **later))


# --- what steps did outside -----------------------------------------------------------------------------------------


def lose_an_effect(evidence: Evidence) -> Evidence:
    run = run_of(evidence, "chain").run_id
    return _lines(evidence, lambda line: [] if line.get("run") == run and line.get("step") == "second" else [line])


def execute_a_claim_twice(evidence: Evidence) -> Evidence:
    run = run_of(evidence, "chain").run_id
    return _lines(evidence, lambda line: [line] * (2 if line.get("run") == run and line.get("step") == "first" else 1))


def execute_without_a_claim(evidence: Evidence) -> Evidence:
    run = run_of(evidence, "chain").run_id
    wrong = {"token": 7}
    return _lines(
        evidence, lambda line: [line, {**line, **wrong}] if line.get("run") == run and "token" in line else [line]
    )


def execute_an_unknown_run(evidence: Evidence) -> Evidence:
    line = {"kind": "step", "pid": 1, "run": "gone", "workflow": "chain", "step": "first", "key": "gone:first:1"}
    return replace(evidence, lines=[*evidence.lines, {**line, "attempt": 1, "token": 1}])


def lose_a_row(evidence: Evidence) -> Evidence:
    return replace(evidence, rows=evidence.rows[1:])


def double_a_row(evidence: Evidence) -> Evidence:
    return replace(evidence, rows=[*evidence.rows, evidence.rows[0]])


def write_a_row_of_nothing(evidence: Evidence) -> Evidence:
    return replace(evidence, rows=[*evidence.rows, Row("gone:enter:1", "gone", 5)])


def lose_a_compensation(evidence: Evidence) -> Evidence:
    run = run_of(evidence, "saga", odd=True).run_id
    gone = ("undo", "compensate:book_flight")
    return _lines(evidence, lambda e: [] if e.get("run") == run and (e["kind"], e.get("step")) == gone else [e])


def end_before_the_last_compensation(evidence: Evidence) -> Evidence:
    run = run_of(evidence, "saga", odd=True)
    end = _first(run, RunTerminal)
    last = _first(run, AttemptCompleted, step="compensate:book_flight")
    return _with_facts(evidence, lambda fact: [] if fact is end else [end, fact] if fact is last else [fact])


def compensate_oldest_first(evidence: Evidence) -> Evidence:
    undone = [line for line in evidence.lines if line["kind"] == "undo"]
    others = [line for line in evidence.lines if line["kind"] != "undo"]
    return replace(evidence, lines=[*others, *reversed(undone)])


def compensate_a_success(evidence: Evidence) -> Evidence:
    failed, fine = run_of(evidence, "saga", odd=True).run_id, run_of(evidence, "saga", odd=False).run_id
    also = [json.loads(json.dumps(line).replace(failed, fine)) for line in evidence.lines if line["kind"] == "undo"]
    return replace(evidence, lines=[*evidence.lines, *also])


# --- the rest -------------------------------------------------------------------------------------------------------


def skip_a_sequence(evidence: Evidence) -> Evidence:
    return replace(evidence, entries=[entry for entry in evidence.entries if entry is not evidence.entries[5]])


def deadlock(evidence: Evidence) -> Evidence:
    return replace(evidence, server_logs="2026-01-01 [12] 40P01 ERROR:  deadlock detected\n")
