"""The checker of chaos finds nothing in an honest history, and every wrong one that is planted by hand."""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.postgres.connection.pool import borrow
from squid_dagster.plugin.names import DISPATCH_JOB
from squid_dagster.protocol import Entry, Fact
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
from squid_dagster.testing import execute_until_blocked, make_squid
from tests.chaos import effects
from tests.chaos.actors import operate_once
from tests.chaos.campaign import Outcome
from tests.chaos.checker.checker import Verdict, judge, judge_storage
from tests.chaos.checker.drains import failed_drains
from tests.chaos.checker.evidence import Evidence, Row, Run, gather
from tests.chaos.crew import Crew, Member
from tests.chaos.workflows import TABLE, WORKFLOWS
from tests.facts import T0, OnThread, entries, fence, with_fields

PLANNED = dict(
    enumerate(
        [
            "chain",
            "fan",
            "loop",
            "retried",
            "failing",
            "routed",
            "reviewed",
            "endless",
            "parent",
            "saga",
            "saga",
            "booked",
        ]
    )
)
PLANNED |= {13: "reviewed", 14: "routed", 15: "routed", 16: "isolated"}


@dataclass(frozen=True)
class Told:
    """An honest history, and the storage that holds it."""

    evidence: Evidence
    storage: PostgresStorage


@pytest.fixture(scope="module")
def told(postgres_url: str, schema_names: Iterator[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """What real steps wrote: one run of each workflow that is kind to its process."""
    path = tmp_path_factory.mktemp("chaos") / "effects"
    storage = PostgresStorage(postgres_url, next(schema_names), clock=VirtualClock(T0))
    storage.upgrade()
    with borrow(storage.engine) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {TABLE}".encode())
        connection.execute(f"CREATE TABLE {TABLE} (key text, run_id text, n integer)".encode())
    with pytest.MonkeyPatch.context() as patch, make_squid(WORKFLOWS, storage=storage) as squid:
        patch.setenv(effects.VARIABLE, str(path))
        for n, name in PLANNED.items():
            run_id = squid.start(name, {"n": n}, idempotency_key=f"{name}-{n}").run_id
            effects.record("started", n=n, workflow=name, run=run_id)
            if name != "endless":
                execute_until_blocked(squid, run_id)
            operate_once(squid)
            execute_until_blocked(squid, run_id)
    yield Told(gather(storage, path, "LOG: all is well\n", PLANNED), storage)
    with borrow(storage.engine) as connection:
        connection.execute(f"DROP TABLE {TABLE}".encode())
    storage.close()


def test_an_honest_history_is_found_without_fault(told: Told) -> None:
    assert list(judge(told.evidence)) == []
    assert judge_storage(told.storage, told.evidence.entries) == []
    assert {run.workflow for run in told.evidence.runs.values()} == set(PLANNED.values())


# --- planting -------------------------------------------------------------------------------------------------------

Plant = Callable[[Evidence], Evidence]


def _of(evidence: Evidence, workflow: str, *, odd: bool | None = None) -> Run:
    return next(run for run in evidence.of(workflow) if odd is None or run.number % 2 == odd)


def _first(run: Run, kind: type[Any], **fields: Any) -> Any:
    """Return the first fact of a kind, of a step if one is named."""
    step = fields.get("step")
    found = (fact for fact in run.facts if isinstance(fact, kind))
    return next(fact for fact in found if step is None or f":{step}:" in fact.runnable_key)


def _told_as(evidence: Evidence, change: Callable[[StoredFact], list[StoredFact]]) -> Evidence:
    """Return the history with each fact replaced by some, in its place; sequences stay whole."""
    items = [OnThread(entry.thread, fact) for entry in evidence.entries for fact in change(entry.fact)]
    return replace(evidence, entries=entries(items))


def _without(evidence: Evidence, *facts: StoredFact) -> Evidence:
    return _told_as(evidence, lambda fact: [] if any(fact is each for each in facts) else [fact])


def _after(evidence: Evidence, place: StoredFact, *facts: StoredFact) -> Evidence:
    return _told_as(evidence, lambda fact: [fact, *facts] if fact is place else [fact])


def _with(evidence: Evidence, place: Fact, **fields: Any) -> Evidence:
    return _told_as(evidence, lambda fact: [with_fields(place, **fields)] if fact is place else [fact])


def _lines(evidence: Evidence, change: Callable[[dict[str, Any]], list[dict[str, Any]]]) -> Evidence:
    return replace(evidence, lines=[line for each in evidence.lines for line in change(each)])


# --- runs -----------------------------------------------------------------------------------------------------------


def lose_a_run(evidence: Evidence) -> Evidence:
    return _without(evidence, *_of(evidence, "chain").facts)


def never_start_a_run(evidence: Evidence) -> Evidence:
    run = _of(evidence, "chain").run_id
    return _lines(lose_a_run(evidence), lambda line: [] if line.get("run") == run else [line])


def start_a_run_twice(evidence: Evidence) -> Evidence:
    run = _of(evidence, "failing")
    copies = [_renamed(fact, run.run_id, "another") for fact in run.facts]
    return _after(evidence, run.facts[-1], *copies)


def _renamed(fact: Any, old: str, new: str) -> Any:
    return type(fact).model_validate_json(fact.model_dump_json().replace(old, new))


def acknowledge_a_start_as_two_runs(evidence: Evidence) -> Evidence:
    return _lines(evidence, lambda e: [e, {**e, "run": "another"}] if e["kind"] == "started" and not e["n"] else [e])


def acknowledge_another_workflow(evidence: Evidence) -> Evidence:
    return _with(evidence, _first(_of(evidence, "chain"), RunStarted), workflow="slow")


def lose_a_command(evidence: Evidence) -> Evidence:
    approval = next(
        fact
        for fact in _of(evidence, "reviewed", odd=False).facts
        if isinstance(fact, RunSignalReceived) and fact.signal_type == "approve_run"
    )
    return _without(evidence, approval)


def leave_a_run_open(evidence: Evidence) -> Evidence:
    return _without(evidence, _first(_of(evidence, "fan"), RunTerminal))


def end_a_run_otherwise(evidence: Evidence) -> Evidence:
    return _with(evidence, _first(_of(evidence, "fan"), RunTerminal), status="cancelled")


def end_a_run_twice(evidence: Evidence) -> Evidence:
    end = _first(_of(evidence, "fan"), RunTerminal)
    return _after(evidence, end, end.model_copy())


def lose_a_child(evidence: Evidence) -> Evidence:
    link = _first(_of(evidence, "parent"), ChildRunStarted)
    return _without(evidence, *evidence.runs[link.child_run_id].facts)


def lose_a_link(evidence: Evidence) -> Evidence:
    return _without(evidence, _first(_of(evidence, "parent"), ChildRunStarted))


def start_a_child_too_many(evidence: Evidence) -> Evidence:
    link = _first(_of(evidence, "parent"), ChildRunStarted)
    return _after(evidence, link, with_fields(link, child_run_id=_of(evidence, "fan").run_id))


def adopt_a_child(evidence: Evidence) -> Evidence:
    parent, other = _of(evidence, "parent"), _of(evidence, "loop")
    link = _first(parent, ChildRunStarted)
    return _after(evidence, other.facts[-2], with_fields(link, run_id=other.run_id))


# --- results --------------------------------------------------------------------------------------------------------


def apply_a_result_twice(evidence: Evidence) -> Evidence:
    result = _first(_of(evidence, "chain"), RunnableApplied)
    return _after(evidence, result, result.model_copy())


def apply_two_results_of_a_visit(evidence: Evidence) -> Evidence:
    result = _first(_of(evidence, "chain"), RunnableApplied)
    return _after(evidence, result, with_fields(result, result=77))


def apply_a_result_after_the_end(evidence: Evidence) -> Evidence:
    run = _of(evidence, "chain")
    last = _first(run, RunnableApplied, step="third")
    return _after(_without(evidence, last), _first(run, RunTerminal), last)


def complete_after_the_end(evidence: Evidence) -> Evidence:
    run = _of(evidence, "failing")
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
    return _without(evidence, _first(_of(evidence, "loop"), RunnableApplied))


def mix_up_results(evidence: Evidence) -> Evidence:
    run = _of(evidence, "chain")
    done, applied = _first(run, AttemptCompleted), _first(run, RunnableApplied)
    return _with(_with(evidence, done, result=99), applied, result=99)


# --- leases ---------------------------------------------------------------------------------------------------------


def overlap_two_leases(evidence: Evidence) -> Evidence:
    claim = _first(_of(evidence, "chain"), AttemptClaimed)
    at = claim.lease_until - timedelta(microseconds=1)
    second = with_fields(
        claim, **fence("b"), fencing_token=2, occurred_at=at, lease_until=claim.lease_until + timedelta(seconds=1)
    )
    return _after(evidence, claim, second)


def complete_under_a_lost_claim(evidence: Evidence) -> Evidence:
    return _with(evidence, _first(_of(evidence, "chain"), AttemptCompleted), **fence("b"))


def complete_after_the_lease(evidence: Evidence) -> Evidence:
    run = _of(evidence, "chain")
    until = _first(run, AttemptClaimed).lease_until
    return _with(evidence, _first(run, AttemptCompleted), occurred_at=until)


def reuse_a_token(evidence: Evidence) -> Evidence:
    claim = _first(_of(evidence, "chain"), AttemptClaimed)
    later = {"occurred_at": claim.lease_until, "lease_until": claim.lease_until + timedelta(seconds=9)}
    return _after(evidence, claim, with_fields(claim, **fence("b"), **later))


# --- what steps did outside -----------------------------------------------------------------------------------------


def lose_an_effect(evidence: Evidence) -> Evidence:
    run = _of(evidence, "chain").run_id
    return _lines(evidence, lambda line: [] if line.get("run") == run and line.get("step") == "second" else [line])


def execute_a_claim_twice(evidence: Evidence) -> Evidence:
    run = _of(evidence, "chain").run_id
    return _lines(evidence, lambda line: [line] * (2 if line.get("run") == run and line.get("step") == "first" else 1))


def execute_without_a_claim(evidence: Evidence) -> Evidence:
    run = _of(evidence, "chain").run_id
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
    run = _of(evidence, "saga", odd=True).run_id
    gone = ("undo", "compensate:book_flight")
    return _lines(evidence, lambda e: [] if e.get("run") == run and (e["kind"], e.get("step")) == gone else [e])


def end_before_the_last_compensation(evidence: Evidence) -> Evidence:
    run = _of(evidence, "saga", odd=True)
    end = _first(run, RunTerminal)
    last = _first(run, AttemptCompleted, step="compensate:book_flight")
    return _told_as(evidence, lambda fact: [] if fact is end else [end, fact] if fact is last else [fact])


def compensate_oldest_first(evidence: Evidence) -> Evidence:
    undone = [line for line in evidence.lines if line["kind"] == "undo"]
    others = [line for line in evidence.lines if line["kind"] != "undo"]
    return replace(evidence, lines=[*others, *reversed(undone)])


def compensate_a_success(evidence: Evidence) -> Evidence:
    failed, fine = _of(evidence, "saga", odd=True).run_id, _of(evidence, "saga", odd=False).run_id
    also = [json.loads(json.dumps(line).replace(failed, fine)) for line in evidence.lines if line["kind"] == "undo"]
    return replace(evidence, lines=[*evidence.lines, *also])


# --- the rest -------------------------------------------------------------------------------------------------------


def skip_a_sequence(evidence: Evidence) -> Evidence:
    return replace(evidence, entries=[entry for entry in evidence.entries if entry is not evidence.entries[5]])


def deadlock(evidence: Evidence) -> Evidence:
    return replace(evidence, server_logs="2026-01-01 [12] 40P01 ERROR:  deadlock detected\n")


@pytest.mark.parametrize(
    ("plant", "kind", "text"),
    [
        (lose_a_run, "lost", "acknowledged"),
        (never_start_a_run, "stuck", "never acknowledged"),
        (acknowledge_a_start_as_two_runs, "doubled", "acknowledged as"),
        (acknowledge_another_workflow, "lost", "run of chain with number 0"),
        (start_a_run_twice, "doubled", "started once too often"),
        (lose_a_command, "lost", "command approve_run"),
        (leave_a_run_open, "stuck", "has not ended"),
        (end_a_run_otherwise, "wrong", "ended as cancelled"),
        (end_a_run_twice, "doubled", "ended 2 times"),
        (lose_a_child, "lost", "child "),
        (lose_a_link, "lost", "children of run"),
        (start_a_child_too_many, "doubled", "3 instead of 2"),
        (adopt_a_child, "doubled", "of 2 parents"),
        (apply_a_result_twice, "doubled", "result "),
        (apply_two_results_of_a_visit, "doubled", "applied_once"),
        (apply_a_result_after_the_end, "doubled", "nothing_after_the_end"),
        (complete_after_the_end, "doubled", "nothing_after_the_end"),
        (lose_a_result, "lost", "result "),
        (mix_up_results, "doubled", "result 99"),
        (mix_up_results, "lost", "result 1 "),
        (overlap_two_leases, "doubled", "one_holder"),
        (complete_under_a_lost_claim, "doubled", "only_the_holder_acts"),
        (complete_after_the_lease, "doubled", "whose lease ran out"),
        (reuse_a_token, "wrong", "tokens_grow"),
        (lose_an_effect, "lost", "effect of"),
        (execute_a_claim_twice, "doubled", "execution of"),
        (execute_without_a_claim, "lost", "under which it was executed"),
        (execute_an_unknown_run, "lost", "of which step first was executed"),
        (lose_a_row, "lost", "transactional row"),
        (double_a_row, "doubled", "transactional row"),
        (write_a_row_of_nothing, "doubled", "transactional row"),
        (lose_a_compensation, "lost", "compensations executed"),
        (end_before_the_last_compensation, "lost", "compensations recorded"),
        (compensate_oldest_first, "wrong", "compensations executed"),
        (compensate_a_success, "wrong", "compensations executed"),
        (skip_a_sequence, "wrong", "contiguous_sequences"),
        (deadlock, "wrong", "40P01"),
    ],
)
def test_a_planted_wrong_history_is_found(told: Told, plant: Plant, kind: str, text: str) -> None:
    verdict = judge(plant(told.evidence))
    assert any(text in each for each in getattr(verdict, kind)), list(verdict)
    assert str(_outcome(verdict)).startswith("CHAOS FAILED")


def test_a_view_that_differs_from_the_fold_is_found(told: Told) -> None:
    run_id = _of(told.evidence, "chain").run_id
    changes = ("'failed'", "'completed'")
    found = []
    for status in changes:
        with borrow(told.storage.engine) as connection:
            text = f"UPDATE {told.storage.schema}.runs SET terminal_status = {status} WHERE run_id = '{run_id}'"
            connection.execute(text.encode())
        found.append(judge_storage(told.storage, told.evidence.entries))
    assert [len(each) for each in found] == [1, 0]
    assert "terminal_status" in found[0][0]


def test_entries_that_one_way_of_reading_misses_are_found(told: Told) -> None:
    entry = next(entry for entry in told.evidence.entries if isinstance(entry.fact, AttemptClaimed))
    seen: list[Entry] = [each for each in told.evidence.entries if each is not entry]
    found = judge_storage(told.storage, seen)
    assert [text.split()[1] for text in found] == ["thread", "run"]


# --- ends of processes ----------------------------------------------------------------------------------------------


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """A crew whose only worker ends with the code that its environment names."""
    made = Crew(tmp_path, "postgresql://nowhere", tmp_path / "effects", workers=1, runs=1)
    code = "import os, sys; sys.exit(int(os.environ['CODE']))"
    made.members = [Member("worker-0", [sys.executable, "-c", code], {"CODE": "3"})]
    yield made
    made.abandon()


def test_a_worker_that_ends_by_itself_is_found(crew: Crew) -> None:
    crew.start()
    process = crew.members[0].process
    assert process is not None
    process.wait()
    crew.look()
    assert crew.died == ["worker-0 ended by itself with exit code 3"]


def test_a_worker_that_ends_by_itself_without_an_error_is_found_too(crew: Crew) -> None:
    crew.members[0].environment["CODE"] = "0"
    crew.start()
    process = crew.members[0].process
    assert process is not None
    process.wait()
    crew.look()
    assert crew.died == ["worker-0 ended by itself with exit code 0"]


def test_a_worker_whose_step_ended_it_did_not_end_by_itself(crew: Crew, tmp_path: Path) -> None:
    crew.start()
    process = crew.members[0].process
    assert isinstance(process, subprocess.Popen)
    (tmp_path / "effects").write_text(json.dumps({"kind": "crash", "pid": process.pid}) + "\n")
    process.wait()
    crew.look()
    assert crew.died == []


@pytest.mark.parametrize("fails", [True, False])
def test_a_drain_run_that_fails_is_found(tmp_path: Path, fails: bool) -> None:
    @dg.op
    def drain() -> None:
        if fails:
            raise RuntimeError("the database is away")

    @dg.job(name=DISPATCH_JOB)
    def job() -> None:
        drain()

    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
    errors = failed_drains(tmp_path)
    assert list(errors) == ([result.run_id] if fails else [])
    assert all("the database is away" in error for error in errors.values())


# --- the last line --------------------------------------------------------------------------------------------------


def _outcome(verdict: Verdict, *died: str) -> Outcome:
    return Outcome(verdict, 3, Counter({"fail_over": 2}), list(died))


def test_the_last_line_says_ok_only_if_nothing_is_wrong() -> None:
    line = r"CHAOS OK: runs=\d+ kills=\d+ db_faults=\d+ lost=0 doubled=0 stuck=0 died=0"
    assert re.fullmatch(line, str(_outcome(Verdict(runs=5))))
    assert str(_outcome(Verdict(), "worker-0 ended")).startswith("CHAOS FAILED")
    for kind in ("lost", "doubled", "stuck", "wrong"):
        verdict = Verdict()
        getattr(verdict, kind).append("something")
        assert str(_outcome(verdict)).startswith("CHAOS FAILED")
