"""Templates of starts: what new runs of one kind write, as a text with holes for ids, times and values.

Planning, encoding and folding a start takes several times as long as writing it, with the same result each time but
for the holes. So for each kind, one example with placeholders is planned; its text is split at the placeholders and
verified with a second example. If these differ, there is no template, and every run of that kind goes the general way.
No rule of planner, codec or fold is repeated here. Pure.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from secrets import token_hex
from typing import NamedTuple, Protocol, runtime_checkable

from pydantic import JsonValue, ValidationError

from squid_dagster.journal.contract.dispatch_store import NewRun
from squid_dagster.journal.contract.storage import check_appends
from squid_dagster.journal.postgres.dispatch.template_text import (
    EXAMPLE_TIME,
    OTHER_TIME,
    OTHER_VALUE,
    LinesTemplate,
    spellings,
)
from squid_dagster.journal.postgres.views.row_changes import Units
from squid_dagster.journal.settlement.member_facts import group_appends
from squid_dagster.protocol.codec import EncodedFact
from squid_dagster.protocol.entries import canonical_text
from squid_dagster.protocol.errors import SquidError
from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.facts.base import JsonObject
from squid_dagster.protocol.folds.attempt import intent_content
from squid_dagster.protocol.folds.run import plan_content, start_content
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.threads import dispatch_thread, run_thread

_MOST = 256  # kinds in the cache
_MARK = token_hex(16)
_RUN, _VALUE = f"run-{_MARK}", f"value-{_MARK}"
_OTHER_RUN = f"other-{_MARK}"
_FIXED = (_RUN, *spellings(EXAMPLE_TIME))  # what an example has instead of values


@runtime_checkable
class KindRun(Protocol):
    """A new run that may begin as all of its kind do, but for its id, the time, and values, which are JSON."""

    @property
    def run_id(self) -> str:
        """Its id."""

    def kind(self) -> Hashable | None:
        """Return the key of its kind; None if this run differs from others in more than values."""

    def values(self) -> JsonObject:
        """Return its values by name."""

    def facts_of(self, run_id: str, values: JsonObject, now: datetime) -> list[Fact]:
        """Return what a run of this kind writes, for any id, any values of the same names, and any time.

        It may require that a value which is a text stays one. Pure.
        """


class _RunWithKind(NamedTuple):
    """A new run with its kind and its values."""

    run: KindRun
    kind: Hashable
    values: JsonObject


@dataclass(frozen=True, slots=True)
class StartTemplate:
    """What every new run of one kind writes."""

    example: KindRun  # keeps alive the objects whose ids are in the key of its kind
    planned: "_PlannedStart"
    lines: LinesTemplate  # facts of the queue, facts of the run, its row, and those of its attempts

    @classmethod
    def of(cls, run: KindRun, max_fact_bytes: int) -> "StartTemplate | None":
        """Build the template for a run's kind; None if runs of that kind differ in more than placeholders."""
        own = run.values()
        values = {name: f'"{_VALUE}-{i}."' for i, name in enumerate(own)}
        markers: dict[str, JsonValue] = {name: hole.strip('"') for name, hole in values.items()}
        # A text stays one: see `facts_of`.
        others: dict[str, JsonValue] = {
            name: "other" if isinstance(value, str) else OTHER_VALUE for name, value in own.items()
        }
        try:
            first = _PlannedStart.of(run, _RUN, markers, EXAMPLE_TIME, max_fact_bytes)
            second = _PlannedStart.of(run, _OTHER_RUN, others, OTHER_TIME, max_fact_bytes)
        except (SquidError, ValidationError):
            return None
        if first is None or second is None:
            return None
        template = cls(run, first, LinesTemplate.split(first.lines, _FIXED, values, first.digests, max_fact_bytes))
        return template if template.fill(_OTHER_RUN, others, OTHER_TIME) == second.lines else None

    def fill(self, run_id: str, values: Mapping[str, JsonValue], now: datetime) -> list[str] | None:
        """Return what a run writes, by line; None if a value has to be planned."""
        filled = self.lines.fill(dict(zip(_FIXED, (run_id, *spellings(now)), strict=True)), values)
        return None if filled is None else filled[0]


class _PlannedStart(NamedTuple):
    """What one run writes, planned the general way."""

    queue: str
    queue_facts: int
    run_facts: int
    lines: list[str]
    digests: dict[str, str]

    @classmethod
    def of(
        cls, run: KindRun, run_id: str, values: dict[str, JsonValue], now: datetime, max_fact_bytes: int
    ) -> "_PlannedStart | None":
        """Plan, encode and fold one run; None if it writes about more than itself and one queue."""
        verified = check_appends(group_appends(run.facts_of(run_id, values, now)), max_fact_bytes)
        units = Units.new([run_id], now)
        units.fold(verified)
        changes = units.changes()
        others = changes._replace(runs=None, attempts=None)
        unit = units.units[run_id]
        queue = unit.dispatch.queue or ""
        threads = [one.thread for one in verified]
        if threads != [dispatch_thread(queue), run_thread(run_id)] or changes.runs is None or any(others):
            return None
        on_queue, on_run = verified[0].encoded, verified[1].encoded
        lines = [
            ",".join([_entry(fact) for fact in on_queue]),
            ",".join([_entry(fact, f'"k":{k},') for k, fact in enumerate(on_run, 1)]),
            changes.runs[1:-1],
            "" if changes.attempts is None else changes.attempts[1:-1],
        ]
        return cls(queue, len(on_queue), len(on_run), lines, _digests(unit))


def _entry(fact: EncodedFact, prefix: str = "") -> str:
    """Encode a fact as `start_runs` takes it."""
    return f'{{{prefix}"type":"{fact.type}","run_id":"{fact.run_id}","data":{fact.data}}}'


def _digests(unit: RunUnit) -> dict[str, str]:
    """Return the digests in a new run's rows, with the canonical texts that they cover."""
    run = unit.run
    digests = {one.digest: canonical_text(plan_content(one.runnable)) for one in run.planned.values() if one.runnable}
    for attempt in unit.dispatch.attempts.values():
        intent = attempt.idempotency_key, attempt.attempt_number, attempt.step, attempt.input or {}, attempt.visible_at
        digests[attempt.intent_digest] = canonical_text(intent_content(*intent))
    if run.start is not None and run.start_digest is not None:
        digests[run.start_digest] = canonical_text(start_content(run.start))
    return digests


class NewRuns(NamedTuple):
    """One commit of new runs of one kind, as `start_runs` takes it."""

    run_ids: list[str]
    queue: str
    queue_facts: int
    run_facts: int
    entries: str
    rows: str
    attempts: str | None


class StartTemplates:
    """The templates of one store, built when first needed. Safe between threads: at worst, one is built twice."""

    def __init__(self, max_fact_bytes: int) -> None:
        """Start without templates."""
        self._max_fact_bytes = max_fact_bytes
        self._known: dict[Hashable, StartTemplate | None] = {}

    def fill(self, runs: Sequence[NewRun], now: datetime) -> NewRuns | None:
        """Return what these runs write at that time; None if they are of several kinds, or fit no template."""
        with_kinds = _with_kinds(runs)
        kind = with_kinds[0].kind if with_kinds else None
        if kind is None or any(start.kind != kind for start in with_kinds):
            return None
        if kind not in self._known:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[kind] = StartTemplate.of(with_kinds[0].run, self._max_fact_bytes)
        template = self._known.get(kind)
        if template is None:
            return None
        filled: list[list[str]] = []
        for start in with_kinds:
            lines = template.fill(start.run.run_id, start.values, now)
            if lines is None:
                return None
            filled.append(lines)
        on_queue, on_runs, rows, attempts = (",".join(lines) for lines in zip(*filled, strict=True))
        return NewRuns(
            [start.run.run_id for start in with_kinds],
            template.planned.queue,
            template.planned.queue_facts,
            template.planned.run_facts,
            f"[{on_queue},{on_runs}]",
            f"[{rows}]",
            None if not filled[0][3] else f"[{attempts}]",
        )


def _with_kinds(runs: Sequence[NewRun]) -> list[_RunWithKind]:
    """Return the runs with their kinds; nothing if one of them has none."""
    with_kinds: list[_RunWithKind] = []
    for run in runs:
        if not isinstance(run, KindRun) or (kind := run.kind()) is None:
            return []
        values = run.values()
        with_kinds.append(_RunWithKind(run, (kind, *values), values))
    return with_kinds
