"""The rows of an append: which ones its facts touch, and how the fold changes them. Pure.

Facts of an append have no place in the journal yet. They are folded with provisional ones: `seq` counts within the
append, and `position` is the fact's place in the commit, negated; the database replaces both.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple

from squid_dagster.journal.contract.storage import Verified
from squid_dagster.journal.postgres.views import rows
from squid_dagster.journal.postgres.views.rows import Row
from squid_dagster.protocol.anomalies import Anomaly
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.facts import FACT_TYPES, RUN_FACT_TYPES, Fact
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.protocol.folds.dispatch import apply_queue
from squid_dagster.protocol.folds.run import Applied, Child, Planned
from squid_dagster.protocol.folds.run_unit import RunUnit, apply_unit

# Facts whose rules look at, or change, every open attempt of their run.
_WHOLE = frozenset({"run_terminal", "run_fenced", "entry_quarantined"})
_KEY_FIELDS = {
    name: tuple(key for key in ("runnable_key", "retry_runnable_key") if key in model.model_fields)
    for name, model in FACT_TYPES.items()
}


@dataclass(slots=True)
class LockTargets:
    """What has to be locked and loaded before facts can be folded."""

    runs: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    attempts: set[tuple[str, str]] = field(default_factory=set)
    children: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def of(cls, appends: Iterable[Verified]) -> "LockTargets":
        """Return what the facts of appends touch."""
        targets = cls()
        for one in appends:
            for fact in one.facts:
                targets.add(fact)
        return targets

    def add(self, fact: Fact) -> None:
        """Add what one fact touches."""
        if fact.type not in RUN_FACT_TYPES:
            return
        run_id: str = fact.run_id  # type: ignore[union-attr]  # facts of these types have one
        self.runs.add(run_id)
        if fact.type in _WHOLE:
            self.whole.add(run_id)
        for name in _KEY_FIELDS[fact.type]:
            key = getattr(fact, name)
            if key is not None:
                self.attempts.add((run_id, key))
        if fact.type == "runnables_planned":
            self.attempts.update((run_id, runnable.runnable_key) for runnable in fact.runnables)
        if fact.type == "child_run_started":
            self.children.add((run_id, fact.child_run_id))

    def __bool__(self) -> bool:
        """Return whether there is any target."""
        return bool(self.runs)

    def without(self, units: "Units") -> "LockTargets":
        """Return what is not loaded yet."""
        attempts = {key for key in self.attempts if key[0] not in units.new_runs and key not in units.seen}
        whole, children = self.whole - units.touched.whole, self.children - units.touched.children
        runs = (self.runs - units.touched.runs) | whole | {run for run, _ in attempts} | {run for run, _ in children}
        return LockTargets(runs, whole, attempts, children)


class RowChanges(NamedTuple):
    """The rows that facts changed, as `append_entries` takes them: a table's rows are one JSON array, None if empty."""

    runs: str | None = None
    attempts: str | None = None
    ended: list[str] | None = None  # ids of runs whose other attempts are deleted
    children: str | None = None
    queues: str | None = None
    anomalies: str | None = None


@dataclass(slots=True)
class Units:
    """The loaded runs: their rows as they were under the lock, and their state after the fold."""

    now: datetime
    touched: LockTargets
    run_rows: dict[str, Row] = field(default_factory=dict)
    units: dict[str, RunUnit] = field(default_factory=dict)
    loaded: dict[str, "_Loaded"] = field(init=False)
    first_position: dict[str, int] = field(default_factory=dict)
    queues: dict[str, bool] = field(default_factory=dict)
    queue_anomalies: list[Anomaly] = field(default_factory=list)
    seen: set[tuple[str, str]] = field(default_factory=set)  # attempts that were queried, or loaded with their run
    new_runs: frozenset[str] = frozenset()  # have nothing to be loaded

    def __post_init__(self) -> None:
        self.loaded = {run_id: _Loaded.of(unit) for run_id, unit in self.units.items()}

    @classmethod
    def read(cls, answer: dict[str, Any], touched: LockTargets, now: datetime) -> "Units":
        """Return units from the result of `lock_runs`."""
        attempts: dict[str, list[Row]] = {}
        children: dict[str, list[Row]] = {}
        seen = set(touched.attempts)
        for row in chain(answer["attempts"] or (), answer.get("siblings") or (), answer["whole"] or ()):
            attempts.setdefault(row["run_id"], []).append(row)
            seen.add((row["run_id"], row["runnable_key"]))
        for row in answer["children"] or ():
            children.setdefault(row["run_id"], []).append(row)
        known = {row["run_id"]: rows.normalized("runs", row) for row in answer["runs"] or ()}
        units = {
            run_id: rows.unit_from_rows(known[run_id], attempts.get(run_id, ()), children.get(run_id, ()))
            if run_id in known
            else RunUnit()
            for run_id in touched.runs
        }
        return cls(now, touched, known, units, seen=seen)

    @classmethod
    def new(cls, run_ids: Collection[str], now: datetime) -> "Units":
        """Return units of runs that do not exist yet."""
        units = {run_id: RunUnit() for run_id in run_ids}
        return cls(now, LockTargets(set(run_ids), set(run_ids)), units=units, new_runs=frozenset(run_ids))

    def merge(self, loaded: "Units") -> None:
        """Add what was loaded later, before anything is folded."""
        for run_id, unit in loaded.units.items():
            mine = self.units.setdefault(run_id, unit)
            for key, attempt in unit.dispatch.attempts.items():
                mine.dispatch.attempts.setdefault(key, attempt)
            for key, token in unit.dispatch.tokens.items():
                mine.dispatch.tokens[key] = max(token, mine.dispatch.tokens.get(key, 0))
            for name in ("planned", "applied", "children"):
                getattr(mine.run, name).update(getattr(unit.run, name))
            self.loaded[run_id] = _Loaded.of(mine)
        self.run_rows = {**loaded.run_rows, **self.run_rows}
        self.seen |= loaded.seen
        own, added = self.touched, loaded.touched
        self.touched = LockTargets(
            own.runs | added.runs,
            own.whole | added.whole,
            own.attempts | added.attempts,
            own.children | added.children,
        )

    def fold(self, appends: Sequence[Verified]) -> None:
        """Fold a commit's facts, in the order in which they will stand in the journal."""
        position = 0
        for one in appends:
            for seq, fact in enumerate(one.facts, 1):
                position -= 1
                entry = Entry(one.thread, seq, position, fact)
                if fact.type in RUN_FACT_TYPES:
                    run_id: str = fact.run_id  # type: ignore[union-attr]  # facts of these types have one
                    self.first_position.setdefault(run_id, position)
                    apply_unit(self.units[run_id], entry)
                else:
                    apply_queue(self.queues, self.queue_anomalies, entry)

    def changes(self) -> RowChanges:
        """Return the rows that the fold changed."""
        runs: list[Row] = []
        attempts: list[Row] = []
        children: list[Row] = []
        ended: list[str] = []
        anomalies = list(self.queue_anomalies)
        for run_id, unit in self.units.items():
            old = self.run_rows.get(run_id)
            row = rows.run_row(run_id, unit, self.first_position.get(run_id, 0), old)
            if row != old:
                runs.append(row)
            if unit.run.terminal:
                if old is None or old["terminal_status"] is None:
                    ended.append(run_id)
            else:
                attempts += self._changed_attempts(run_id, unit)
            known = self.loaded[run_id].children
            children += [
                rows.child_row(run_id, child_id, child)
                for child_id, child in unit.run.children.items()
                if child_id not in known
            ]
            anomalies += unit.anomalies
        queues = [{"queue": queue, "paused": paused} for queue, paused in self.queues.items()]
        return RowChanges(
            runs=_json(runs),
            attempts=_json(attempts),
            ended=ended or None,
            children=_json(children),
            queues=_json(queues),
            anomalies=_json(rows.anomaly_rows(anomalies)),
        )

    def _changed_attempts(self, run_id: str, unit: RunUnit) -> Iterable[Row]:
        before, run, dispatch = self.loaded[run_id], unit.run, unit.dispatch
        for key in dict.fromkeys([*dispatch.attempts, *run.planned]):  # always in the same order, as no set is
            # Rules return new values and never change old ones, so the same object is the same state.
            same = (
                dispatch.attempts.get(key) is before.attempts.get(key)
                and run.planned.get(key) is before.planned.get(key)
                and run.applied.get(key) is before.applied.get(key)
                and dispatch.stopped == before.stopped
            )
            if not same:
                yield rows.attempt_row(run_id, key, unit)


class _Loaded(NamedTuple):
    """What was loaded of a run, to see what the fold changed."""

    attempts: dict[str, Attempt]
    planned: dict[str, Planned]
    applied: dict[str, Applied]
    children: dict[str, Child]
    stopped: bool

    @classmethod
    def of(cls, unit: RunUnit) -> "_Loaded":
        """Copy the state of a unit before the fold."""
        run, dispatch = unit.run, unit.dispatch
        return cls(dict(dispatch.attempts), dict(run.planned), dict(run.applied), dict(run.children), dispatch.stopped)


def _json(changed: list[Row]) -> str | None:
    return rows.to_text(changed) if changed else None


def entries_json(appends: Sequence[Verified], place: dict[str, int]) -> str:
    """Return a commit's facts as the `p_entries` of `append_entries`, with payloads as they were encoded."""
    parts: list[str] = []
    for one in appends:
        thread = place[one.thread]
        for k, fact in enumerate(one.encoded, 1):
            run_id = "null" if fact.run_id is None else f'"{fact.run_id}"'
            parts.append(
                f'{{"ord":{len(parts) + 1},"t":{thread},"k":{k},"type":"{fact.type}","run_id":{run_id},'
                f'"at":"{fact.occurred_at.isoformat()}","data":{fact.data}}}'
            )
    return f"[{','.join(parts)}]"
