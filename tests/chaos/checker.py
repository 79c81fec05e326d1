"""What must hold when the dust has settled: read from the journal's facts, and from what steps did outside of it."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from squid_dagster.journal import PostgresStorage, verify
from squid_dagster.protocol.entries import StoredFact, by_run
from squid_dagster.protocol.facts import AttemptCompleted, AttemptScheduled, ChildRunStarted, RunStarted, RunTerminal
from squid_dagster.testing import check_invariants
from squid_dagster.testing.breaches import Rule
from squid_dagster.testing.sources import read_all
from tests.chaos import effects
from tests.chaos.workflows import CHILDREN, TABLE, expected_status

Facts = dict[str | None, list[StoredFact]]
F = TypeVar("F")

_DOUBLED = {Rule.APPLIED_ONCE, Rule.NOTHING_AFTER_THE_END, Rule.ONE_HOLDER, Rule.ONLY_THE_HOLDER_ACTS}


@dataclass(slots=True)
class Verdict:
    """What was found wrong, by kind."""

    runs: int = 0
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # whatever else

    def __iter__(self) -> Iterator[str]:
        for kind in ("lost", "doubled", "stuck", "wrong"):
            for text in getattr(self, kind):
                yield f"{kind}: {text}"


def judge(storage: PostgresStorage, effects_path: Path, server_logs: str, runs: int) -> Verdict:
    """Read everything, and return what is wrong."""
    verdict = Verdict()
    lines = list(effects.read(effects_path))
    facts = {run_id: [entry.fact for entry in entries] for run_id, entries in by_run(read_all(storage)).items()}
    _judge_starts(verdict, facts, lines, runs)
    _judge_ends(verdict, facts)
    _judge_effects(verdict, facts, lines)
    _judge_sagas(verdict, facts, lines)
    _judge_children(verdict, facts)
    _judge_transactions(verdict, storage, facts)
    for breach in check_invariants(storage):
        (verdict.doubled if breach.rule in _DOUBLED else verdict.wrong).append(str(breach))
    verdict.wrong += [f"view: {finding}" for finding in verify(storage)]
    if "40P01" in server_logs or "deadlock detected" in server_logs:
        verdict.wrong.append(f"{server_logs.count('deadlock detected')} deadlocks in the log of Postgres")
    return verdict


def _judge_starts(verdict: Verdict, facts: Facts, lines: list[Any], runs: int) -> None:
    started = {line["n"]: line["run"] for line in lines if line["kind"] == "started"}
    verdict.runs = sum(run_id is not None for run_id in facts)
    verdict.lost += [f"run {run} (number {n}) was acknowledged" for n, run in started.items() if run not in facts]
    missing = sorted(set(range(runs)) - set(started))
    if missing:
        verdict.stuck.append(f"{len(missing)} runs were never started, the first is number {missing[0]}")


def _judge_ends(verdict: Verdict, facts: Facts) -> None:
    for run_id, run in facts.items():
        start, end = _only(run, RunStarted), _only(run, RunTerminal)
        if run_id is None:
            continue
        if start is None:
            verdict.wrong.append(f"run {run_id} has no start")
        elif end is None:
            last = [fact.type for fact in run][-6:]
            verdict.stuck.append(f"run {run_id} of {start.workflow} has not ended: {last}")
        elif end.status != (expected := expected_status(start.workflow, _number(start))):
            verdict.wrong.append(f"run {run_id} of {start.workflow} ended as {end.status}, not {expected}: {end}")


def _only(run: list[StoredFact], kind: type[F]) -> F | None:
    return next((fact for fact in run if isinstance(fact, kind)), None)


def _number(start: RunStarted) -> int:
    number: Any = start.input["n"]
    return int(number)


def _judge_effects(verdict: Verdict, facts: Facts, lines: list[Any]) -> None:
    """Check that every recorded success was executed: a step, or the undoing of one."""
    called = {line["key"] for line in lines if line["kind"] in ("step", "undo")}
    for run in facts.values():
        planned = {fact.runnable_key: fact for fact in run if isinstance(fact, AttemptScheduled)}
        for fact in run:
            if isinstance(fact, AttemptCompleted) and (attempt := planned.get(fact.runnable_key)) is not None:
                silent = attempt.step in ("alone", "rest", "a_day")  # isolated, or built in: nothing is recorded
                if not silent and attempt.idempotency_key not in called:
                    verdict.lost.append(f"the effect of {fact.runnable_key}")


def _judge_sagas(verdict: Verdict, facts: Facts, lines: list[Any]) -> None:
    """Check that what had succeeded in a failed saga was undone, newest first."""
    undone: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "undo" and line["step"] not in undone[line["run"]]:
            undone[line["run"]].append(line["step"])
    order = ["compensate:book_hotel", "compensate:book_flight"]
    for run_id, run in facts.items():
        start = _only(run, RunStarted)
        failed = start is not None and start.workflow == "saga" and _number(start) % 2
        if failed and undone[str(run_id)] != order:
            verdict.lost.append(f"compensations of run {run_id}: {undone[str(run_id)]}, not {order}")


def _judge_children(verdict: Verdict, facts: Facts) -> None:
    for run_id, run in facts.items():
        start = _only(run, RunStarted)
        if start is not None and start.workflow == "parent":
            links = {fact.child_run_id for fact in run if isinstance(fact, ChildRunStarted)}
            if len(links) != CHILDREN or not links <= facts.keys():
                verdict.lost.append(f"children of run {run_id}: {links}")


def _judge_transactions(verdict: Verdict, storage: PostgresStorage, facts: Facts) -> None:
    rows: Counter[str | None] = Counter(str(row[0]) for row in storage.rows(f"SELECT run_id FROM {TABLE}"))
    for run_id, run in facts.items():
        start = _only(run, RunStarted)
        if start is None or start.workflow != "booked":
            continue
        done = sum(isinstance(fact, AttemptCompleted) and ":enter:" in fact.runnable_key for fact in run)
        if rows[run_id] != done:
            kind = verdict.doubled if rows[run_id] > done else verdict.lost
            kind.append(f"run {run_id} wrote {rows[run_id]} rows for {done} completions of its transactional step")
