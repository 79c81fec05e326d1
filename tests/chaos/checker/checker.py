"""What must hold after a campaign: read from the journal's facts, and from what steps did outside of it.

`judge` is pure, so that a wrong history made by hand shows that each rule can be broken. `judge_storage` asks what only
the database can answer: whether views equal folds, and whether every way of reading returns the same.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, LiteralString, TypeVar

from squid_dagster.journal import PostgresStorage, verify
from squid_dagster.journal.postgres.schema.names import statement
from squid_dagster.protocol.entries import Entry, canonical_text, run_of
from squid_dagster.protocol.facts import (
    AttemptClaimed,
    AttemptCompleted,
    ChildRunStarted,
    RunnableApplied,
    RunSignalReceived,
    RunTerminal,
)
from squid_dagster.testing import violations
from squid_dagster.testing.violation import Rule
from tests.chaos.checker.evidence import Evidence, Run
from tests.chaos.expectations import OPEN_RESULTS, SILENT_STEPS, expected_results, expected_status
from tests.chaos.workflows import CHILDREN

F = TypeVar("F")

_DOUBLED = {Rule.APPLIED_ONCE, Rule.NOTHING_AFTER_THE_END, Rule.ONE_HOLDER, Rule.ONLY_THE_HOLDER_ACTS}
_UNDONE = ["compensate:book_hotel", "compensate:book_flight"]  # newest first
_DEADLOCK = re.compile(r"\b40P01\b|deadlock detected")
_PAGE = 50_000


@dataclass(slots=True)
class Verdict:
    """The findings of a check, by kind."""

    runs: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # whatever else

    def __iter__(self) -> Iterator[str]:
        for kind in ("lost", "doubled", "stuck", "wrong"):
            for text in getattr(self, kind):
                yield f"{kind}: {text}"


def judge(evidence: Evidence) -> Verdict:
    """Return what is wrong with what a campaign left behind."""
    verdict = Verdict(runs=len(evidence.runs))
    _judge_starts(verdict, evidence)
    _judge_commands(verdict, evidence)
    for run in evidence.runs.values():
        _judge_end(verdict, run)
        _judge_results(verdict, run)
    _judge_effects(verdict, evidence)
    _judge_sagas(verdict, evidence)
    _judge_children(verdict, evidence)
    _judge_transactions(verdict, evidence)
    for breach in violations(evidence.entries):
        (verdict.doubled if breach.rule in _DOUBLED else verdict.wrong).append(str(breach))
    verdict.wrong += [f"deadlock: {line}" for line in evidence.server_logs.splitlines() if _DEADLOCK.search(line)]
    return verdict


def _all(run: Run, kind: type[F]) -> list[F]:
    return [fact for fact in run.facts if isinstance(fact, kind)]


# --- runs -----------------------------------------------------------------------------------------------------------


def _judge_starts(verdict: Verdict, evidence: Evidence) -> None:
    """Check that every planned run was started once, and no other one; and that no acknowledged start is lost."""
    acknowledged: dict[int, set[str]] = defaultdict(set)
    for line in evidence.recorded("started"):
        acknowledged[line["n"]].add(line["run"])
    for n, run_ids in acknowledged.items():
        verdict.lost += [f"run {run} (number {n}), acknowledged" for run in run_ids if run not in evidence.runs]
        if len(run_ids) > 1:
            verdict.doubled.append(f"number {n}, acknowledged as {sorted(run_ids)}")
    missing = sorted(set(evidence.planned) - set(acknowledged))
    if missing:
        verdict.stuck.append(f"{len(missing)} runs were never acknowledged, the first is number {missing[0]}")
    children = {link.child_run_id for run in evidence.runs.values() for link in _all(run, ChildRunStarted)}
    free = [run for run in evidence.runs.values() if run.run_id not in children]
    there = Counter((run.number, run.workflow or "nothing") for run in free)
    expected = Counter(evidence.planned.items())
    answered = Counter({(n, name): 1 for n, name in evidence.planned.items() if n in acknowledged})
    verdict.doubled += [f"run of {name} with number {n}, started once too often" for n, name in there - expected]
    verdict.lost += [f"run of {name} with number {n}, acknowledged" for n, name in answered - there]


def _judge_commands(verdict: Verdict, evidence: Evidence) -> None:
    """Check that no acknowledged command of the operator is lost."""
    for line in evidence.recorded("commanded"):
        run = evidence.runs.get(line["run"])
        signals = [] if run is None else _all(run, RunSignalReceived)
        if not any((fact.signal_type, fact.idempotency_key) == (line["signal"], line["key"]) for fact in signals):
            verdict.lost.append(f"command {line['signal']} to run {line['run']}, acknowledged")


def _judge_end(verdict: Verdict, run: Run) -> None:
    """Check that a run has ended, once, and as its payload says."""
    start, ends = run.start, _all(run, RunTerminal)
    if start is None:
        verdict.wrong.append(f"run {run.run_id} has no start")
    elif not ends:
        last = [fact.type for fact in run.facts][-6:]
        verdict.stuck.append(f"run {run.run_id} of {start.workflow} has not ended: {last}")
    elif ends[0].status != (expected := expected_status(start.workflow, run.number)):
        verdict.wrong.append(f"run {run.run_id} of {start.workflow} ended as {ends[0].status}, not {expected}")
    if len(ends) > 1:
        verdict.doubled.append(f"run {run.run_id} ended {len(ends)} times")


def _judge_results(verdict: Verdict, run: Run) -> None:
    """Check that the results that became part of a run are those of its steps: each of them, once, and no other."""
    if run.start is None or not _all(run, RunTerminal):
        return
    successes = {fact.runnable_key for fact in _all(run, AttemptCompleted)}
    actual: Counter[tuple[str, str]] = Counter()
    for fact in _all(run, RunnableApplied):
        if fact.runnable_key in successes:
            step = _step(fact.runnable_key)
            actual[step, _text(step, fact.result)] += 1
    expected: Counter[tuple[str, str]] = Counter()
    for step, result in expected_results(run.start.workflow, run.number):
        expected[step, _text(step, result)] += 1
    verdict.doubled += [f"result {result} of {step} in run {run.run_id}" for step, result in actual - expected]
    verdict.lost += [f"result {result} of {step} in run {run.run_id}" for step, result in expected - actual]


def _text(step: str, result: Any) -> str:
    return "of any kind" if step in OPEN_RESULTS else canonical_text(result)


def _judge_children(verdict: Verdict, evidence: Evidence) -> None:
    """Check that every parent has its children, each of them once."""
    parents: Counter[str] = Counter()
    for run in evidence.runs.values():
        links = {fact.child_run_id: fact.child_key for fact in _all(run, ChildRunStarted)}
        parents.update(links.keys())
        verdict.lost += [f"child {child} of run {run.run_id}" for child in links if child not in evidence.runs]
        wanted = CHILDREN if run.workflow == "parent" else 0
        keys = set(links.values())
        if len(keys) < wanted and _all(run, RunTerminal):
            verdict.lost.append(f"children of run {run.run_id}: there are {sorted(keys)} of {wanted}")
        if len(links) > wanted:
            verdict.doubled.append(f"children of run {run.run_id}: {len(links)} instead of {wanted}")
    verdict.doubled += [f"child {child} of {count} parents" for child, count in parents.items() if count > 1]


# --- what steps did outside -----------------------------------------------------------------------------------------


def _judge_effects(verdict: Verdict, evidence: Evidence) -> None:
    """Compare what steps did with the journal: success follows execution, execution follows a claim, once for each."""
    called: Counter[tuple[str, int]] = Counter()
    for line in evidence.recorded("step", "undo"):
        called[line["key"], line["token"]] += 1
        if line["run"] not in evidence.runs:
            verdict.lost.append(f"run {line['run']}, of which step {line['step']} was executed")
    verdict.doubled += [
        f"execution of {key} under claim {token}: {n} times" for (key, token), n in called.items() if n > 1
    ]
    keys = {key for key, _ in called}
    claimed: set[tuple[str, int | None]] = set()
    for run in evidence.runs.values():
        for fact in run.facts:
            if isinstance(fact, AttemptClaimed):
                claimed.add((_visit(fact.runnable_key), fact.fencing_token))
            elif isinstance(fact, AttemptCompleted):
                visit = _visit(fact.runnable_key)
                if _step(fact.runnable_key) not in SILENT_STEPS and visit not in keys:
                    verdict.lost.append(f"effect of {fact.runnable_key}, which has completed")
    verdict.lost += [f"claim {token} of {key}, under which it was executed" for key, token in called.keys() - claimed]


def _visit(runnable_key: str) -> str:
    """Return the idempotency key that all attempts of a visit share."""
    return runnable_key.rpartition(":")[0]


def _step(runnable_key: str) -> str:
    """Return the step of an attempt: a run id has no colon in it, a step may have."""
    return runnable_key.partition(":")[2].rsplit(":", 2)[0]


def _judge_sagas(verdict: Verdict, evidence: Evidence) -> None:
    """Check that what had succeeded in a failed saga was undone, newest first, before its end; in others, nothing."""
    undone: dict[str, list[str]] = defaultdict(list)
    for line in evidence.recorded("undo"):
        if line["step"] not in undone[line["run"]]:
            undone[line["run"]].append(line["step"])
    for run in evidence.runs.values():
        if not _all(run, RunTerminal):
            continue
        expected = _UNDONE if run.workflow == "saga" and run.number % 2 else []
        recorded: list[str] = []
        for fact in run.facts:
            if isinstance(fact, RunTerminal):
                break
            if isinstance(fact, AttemptCompleted) and (step := _step(fact.runnable_key)).startswith("compensate:"):
                recorded.append(step)
        for what, actual in (("executed", undone[run.run_id]), ("recorded", recorded)):
            if actual != expected:
                kind = verdict.lost if len(actual) < len(expected) else verdict.wrong
                kind.append(f"compensations {what} in run {run.run_id}: {actual}, not {expected}")


def _judge_transactions(verdict: Verdict, evidence: Evidence) -> None:
    """Check that each completion of a transactional step has its row, once, and that there is no other row."""
    actual = Counter(evidence.rows)
    expected: Counter[Any] = Counter()
    for run in evidence.of("booked"):
        for fact in _all(run, AttemptCompleted):
            key = _visit(fact.runnable_key)
            if key == f"{run.run_id}:enter:1":
                expected[key, run.run_id, run.number] += 1
    verdict.doubled += [f"transactional row {tuple(row)}" for row in actual - expected]
    verdict.lost += [f"transactional row {row}" for row in expected - actual]


# --- the database ---------------------------------------------------------------------------------------------------

# journal_entries_thread
_BY_THREAD: LiteralString = """SELECT thread, seq, position FROM {schema}.journal_entries
    WHERE (thread, seq, position) > (%s, %s, %s) AND position <= %s ORDER BY thread, seq, position LIMIT %s"""
# journal_entries_run
_BY_RUN: LiteralString = """SELECT run_id, position FROM {schema}.journal_entries
    WHERE run_id IS NOT NULL AND (run_id, position) > (%s, %s) AND position <= %s ORDER BY run_id, position LIMIT %s"""


def judge_storage(storage: PostgresStorage, entries: list[Entry]) -> list[str]:
    """Return what is wrong with the views, and where reading by thread or run differs from reading by position."""
    return [*(f"view: {finding}" for finding in verify(storage)), *_differing(storage, entries)]


def _differing(storage: PostgresStorage, entries: list[Entry]) -> Iterator[str]:
    by_thread: dict[str, list[tuple[int, int]]] = defaultdict(list)
    by_run: dict[str, list[int]] = defaultdict(list)
    for entry in entries:
        by_thread[entry.thread].append((entry.seq, entry.position))
        if (run_id := run_of(entry.fact)) is not None:
            by_run[run_id].append(entry.position)
    upto = entries[-1].position if entries else 0
    threads = {
        thread: [(seq, position) for _, seq, position in rows]
        for thread, rows in groupby(_pages(storage, _BY_THREAD, ("", 0, 0), upto), key=lambda row: row[0])
    }
    runs = {
        run_id: [position for _, position in rows]
        for run_id, rows in groupby(_pages(storage, _BY_RUN, ("", 0), upto), key=lambda row: row[0])
    }
    for what, actual, expected in (("thread", threads, by_thread), ("run", runs, by_run)):
        for name in sorted(actual.keys() | expected.keys()):
            if actual.get(name) != expected.get(name):
                yield f"reading {what} {name} gives other entries than reading by position"


def _pages(
    storage: PostgresStorage, text: LiteralString, after: tuple[Any, ...], upto: int
) -> Iterator[tuple[Any, ...]]:
    with storage.connection() as connection:
        while page := connection.execute(statement(text, storage.schema), (*after, upto, _PAGE)).fetchall():
            yield from page
            after = page[-1]
