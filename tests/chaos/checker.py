"""What must hold when the dust has settled: read from the journal's facts, and from what steps did outside of it."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from squid_dagster.journal import PostgresStorage, verify
from squid_dagster.protocol.entries import Entry, by_run
from squid_dagster.testing import check_invariants
from squid_dagster.testing.breaches import Rule
from squid_dagster.testing.sources import read_all
from tests.chaos import effects
from tests.chaos.workflows import CHILDREN, TABLE, expected_status

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
    facts = by_run(list(read_all(storage)))
    _judge_starts(verdict, facts, lines, runs)
    _judge_ends(verdict, facts)
    _judge_effects(verdict, facts, lines)
    _judge_transactions(verdict, storage, facts)
    for breach in check_invariants(storage):
        (verdict.doubled if breach.rule in _DOUBLED else verdict.wrong).append(str(breach))
    verdict.wrong += [f"view: {finding}" for finding in verify(storage)]
    if "40P01" in server_logs or "deadlock detected" in server_logs:
        verdict.wrong.append(f"{server_logs.count('deadlock detected')} deadlocks in the log of Postgres")
    return verdict


def _judge_starts(verdict: Verdict, facts: dict[str | None, list[Entry]], lines: list[Any], runs: int) -> None:
    started = {line["n"]: line["run"] for line in lines if line["kind"] == "started"}
    verdict.runs = sum(run_id is not None for run_id in facts)
    verdict.lost += [f"run {run} (number {n}) was acknowledged" for n, run in started.items() if run not in facts]
    missing = sorted(set(range(runs)) - set(started))
    if missing:
        verdict.stuck.append(f"{len(missing)} runs were never started, the first is number {missing[0]}")


def _judge_ends(verdict: Verdict, facts: dict[str | None, list[Entry]]) -> None:
    for run_id, entries in facts.items():
        if run_id is None:
            continue
        start: Any = _first(entries, "run_started")
        end: Any = _first(entries, "run_terminal")
        if start is None:
            verdict.wrong.append(f"run {run_id} has no start")
        elif end is None:
            verdict.stuck.append(f"run {run_id} of {start.workflow} has not ended: {[e.fact.type for e in entries][-6:]}")
        elif end.status != (expected := expected_status(start.workflow, start.input["n"])):
            verdict.wrong.append(f"run {run_id} of {start.workflow} ended as {end.status}, not {expected}: {end}")


def _first(entries: list[Entry], kind: str) -> Any:
    return next((entry.fact for entry in entries if entry.fact.type == kind), None)


def _judge_effects(verdict: Verdict, facts: dict[str | None, list[Entry]], lines: list[Any]) -> None:
    """Every applied success was executed; undone is what had succeeded, newest first; children are there."""
    called = {(line["kind"], line["key"]) for line in lines if line["kind"] in ("step", "undo")}
    undone: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "undo" and line["step"] not in undone[line["run"]]:
            undone[line["run"]].append(line["step"])
    for run_id, entries in facts.items():
        start: Any = _first(entries, "run_started")
        if run_id is None or start is None:
            continue
        steps = {e.fact.runnable_key: e.fact for e in entries if e.fact.type == "attempt_scheduled"}  # type: ignore[attr-defined]
        for entry in entries:
            fact: Any = entry.fact
            planned = steps.get(getattr(fact, "runnable_key", ""))
            if fact.type != "attempt_completed" or planned is None:
                continue
            if planned.step in ("alone", "rest", "a_day"):  # isolated, or built in: nothing is recorded
                continue
            kind = "undo" if planned.step.startswith("compensate:") else "step"
            if (kind, planned.idempotency_key) not in called:
                verdict.lost.append(f"the effect of {fact.runnable_key} ({planned.step})")
        if start.workflow == "saga" and start.input["n"] % 2:
            order = ["compensate:book_hotel", "compensate:book_flight"]
            if undone[run_id] != order:
                verdict.lost.append(f"compensations of run {run_id}: {undone[run_id]}, not {order}")
        if start.workflow == "parent":
            links = Counter(e.fact.child_run_id for e in entries if e.fact.type == "child_run_started")  # type: ignore[attr-defined]
            if len(links) != CHILDREN or any(child not in facts for child in links):
                verdict.lost.append(f"children of run {run_id}: {dict(links)}")


def _judge_transactions(verdict: Verdict, storage: PostgresStorage, facts: dict[str | None, list[Entry]]) -> None:
    rows: Counter[str] = Counter(str(row[0]) for row in storage.rows(f"SELECT run_id FROM {TABLE}"))
    for run_id, entries in facts.items():
        start: Any = _first(entries, "run_started")
        if start is None or start.workflow != "booked":
            continue
        done = sum(e.fact.type == "attempt_completed" and ":enter:" in e.fact.runnable_key for e in entries)  # type: ignore[attr-defined]
        if rows[str(run_id)] != done:
            kind = verdict.doubled if rows[str(run_id)] > done else verdict.lost
            kind.append(f"run {run_id} wrote {rows[str(run_id)]} rows for {done} completions of its transactional step")
