"""Templates of settlements: what the success of one step writes, as a text with holes for ids, times and values.

The planner returns the kind of a success (`kind_of`): the step, and the route that its conditions lead to. For each
kind, one example with placeholders is planned, encoded and folded; its text is split at the placeholders and verified
with a second example. If these differ, there is no template, and every settlement of that kind is planned. No rule of
planner, codec or fold is repeated here. Pure.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Any, NamedTuple, Protocol, runtime_checkable

from pydantic import JsonValue

from squid_dagster.journal.contract.dispatch_store import ClaimRef, Completed, PlanRequest, Settlement, hash_token
from squid_dagster.journal.postgres.dispatch.template_text import (
    EXAMPLE_TIME,
    OTHER_TIME,
    OTHER_VALUE,
    LinesTemplate,
    spellings,
)
from squid_dagster.protocol.entries import digest_of_text
from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.protocol.threads import idempotency_key, runnable_key

_MOST = 256  # kinds in the cache
_MARK = token_hex(8)
_RUN, _CLAIM, _TOKEN = f"run-{_MARK}", f"claim-{_MARK}", f"token-{_MARK}"
_FIXED = (_RUN, _CLAIM, hash_token(_TOKEN), *spellings(EXAMPLE_TIME))  # what an example has instead of values
_RESULT = "result"  # inputs are named `input.<name>`


@runtime_checkable
class KindPlanner(Protocol):
    """A planner that classifies successes: but for ids, times and values, the same follows from all of a kind."""

    def __call__(self, request: PlanRequest) -> Sequence[Fact]:
        """Return the facts that follow, as every planner does."""

    def kind_of(self, attempt: Attempt, result: JsonValue) -> Hashable | None:
        """Return the kind of a success; None if what follows depends on more of the run."""

    def plan_kind(self, kind: Any, request: PlanRequest) -> Sequence[Fact]:
        """Return the facts that follow from a success of that kind, whatever its result is."""

    def note_scheduled(self, queue: str) -> None:
        """Record that a template has scheduled an attempt on a queue, due at once: the planner was not called."""


class Texts(NamedTuple):
    """What is written about one run, each text without its prefix `{"m":<place of the run>,`."""

    queue: list[str]
    run: list[str]
    row: str
    settled: list[str]
    ends: bool

    @property
    def size(self) -> int:
        """The number of characters of the facts."""
        return sum(map(len, (*self.queue, *self.run)))


class PlannedSettlement(NamedTuple):
    """What a settlement writes, and the digests in it with the canonical texts that they cover."""

    texts: Texts
    digests: dict[str, str]
    schedules: bool


PlanExample = Callable[[Settlement, Attempt, datetime], PlannedSettlement]
"""Plans and encodes one settlement; raises for what is not plain."""


@dataclass(frozen=True, slots=True)
class SettleTemplate:
    """What every settlement of one kind writes."""

    lines: LinesTemplate
    shape: tuple[int, int, int]  # how many texts of the queue, of the run, and of settled attempts there are
    ends: bool
    schedules: bool

    @classmethod
    def of(cls, attempt: Attempt, plan: PlanExample, max_fact_bytes: int) -> "SettleTemplate | None":
        """Build the template for an attempt's kind; None if its settlements differ in more than placeholders."""
        names = [_RESULT, *(f"input.{name}" for name in attempt.input or {})]
        values = {name: f'"value-{_MARK}-{i}."' for i, name in enumerate(names)}
        marks = {name: hole.strip('"') for name, hole in values.items()}
        try:
            first = _example(attempt, plan, _RUN, marks, EXAMPLE_TIME)
            second = _example(attempt, plan, f"other-{_MARK}", dict.fromkeys(names, OTHER_VALUE), OTHER_TIME)
        except Exception:  # noqa: BLE001  the plan for the settlement itself reports the error
            return None
        texts = first.texts
        lines = [*texts.queue, *texts.run, texts.row, *texts.settled]
        template = cls(
            LinesTemplate.split(lines, _FIXED, values, first.digests, max_fact_bytes),
            (len(texts.queue), len(texts.run), len(texts.settled)),
            texts.ends,
            first.schedules,
        )
        others = dict.fromkeys(names, OTHER_VALUE)
        filled = template.fill(_ref(f"other-{_MARK}"), others, OTHER_TIME)
        return template if filled is not None and filled[0] == second.texts else None

    def fill(self, ref: ClaimRef, values: Mapping[str, JsonValue], now: datetime) -> tuple[Texts, str] | None:
        """Return what a settlement writes, and the digest of its result; None if a value has to be planned."""
        if not all(map(_is_json, values.values())):
            return None
        fixed = dict(zip(_FIXED, (ref.run_id, ref.claim_id, ref.token_hash, *spellings(now)), strict=True))
        filled = self.lines.fill(fixed, values)
        if filled is None:
            return None
        lines, exact = filled
        queue, run, settled = self.shape
        texts = Texts(
            lines[:queue], lines[queue : queue + run], lines[queue + run], lines[queue + run + 1 :][:settled], self.ends
        )
        return texts, digest_of_text(exact[self.lines.values[_RESULT]])


def values_of(settlement: Settlement, attempt: Attempt) -> dict[str, JsonValue]:
    """Return the values of a completion by the names of their placeholders."""
    assert isinstance(settlement.outcome, Completed)  # noqa: S101  no other is settled by a template
    inputs = {f"input.{name}": value for name, value in (attempt.input or {}).items()}
    return {_RESULT: settlement.outcome.result, **inputs}


class SettleTemplates:
    """The templates of one store, built when first needed. Safe between threads: at worst, one is built twice."""

    def __init__(self, max_fact_bytes: int) -> None:
        """Start without templates."""
        self._max_fact_bytes = max_fact_bytes
        self._known: dict[Hashable, SettleTemplate | None] = {}

    def find(self, kind: Hashable, attempt: Attempt, plan: PlanExample) -> SettleTemplate | None:
        """Return the template for an attempt of that kind."""
        key = (
            kind,
            attempt.queue,
            attempt.priority,
            attempt.attempt_number,
            attempt.definition_version,
            attempt.definition_fingerprint,
            *(attempt.input or {}),
        )
        template = self._known.get(key)
        if template is None and key not in self._known:
            if len(self._known) >= _MOST:
                self._known.clear()
            template = self._known[key] = SettleTemplate.of(attempt, plan, self._max_fact_bytes)
        return template


def _example(
    attempt: Attempt, plan: PlanExample, run_id: str, values: Mapping[str, JsonValue], now: datetime
) -> PlannedSettlement:
    """Plan and encode the settlement of another run's attempt at the same step."""
    ref = _ref(run_id, attempt)
    claimed = attempt._replace(
        run_id=run_id,
        runnable_key=ref.runnable_key,
        idempotency_key=idempotency_key(run_id, attempt.step, 1),
        input={name.removeprefix("input."): value for name, value in values.items() if name != _RESULT},
        visible_at=now,
        last_at=now,
        claim_id=ref.claim_id,
        claim_token_hash=ref.token_hash,
        lease_until=now + timedelta(hours=1),
    )
    return plan(Settlement(ref, Completed(values[_RESULT])), claimed, now)


def _ref(run_id: str, attempt: Attempt | None = None) -> ClaimRef:
    """Return the claim of an example; that of the second example is another one."""
    other = "" if run_id == _RUN else "other-"
    key = "" if attempt is None else runnable_key(run_id, attempt.step, 1, attempt.attempt_number)
    return ClaimRef("" if attempt is None else attempt.queue, run_id, key, other + _CLAIM, other + _TOKEN)


def _is_json(value: object) -> bool:
    """Return whether a value is plain JSON, and no subclass or other type that facts would convert."""
    kind = type(value)
    if kind is dict:
        return all(type(key) is str and _is_json(item) for key, item in value.items())  # type: ignore[attr-defined]
    if kind is list:
        return all(map(_is_json, value))  # type: ignore[call-overload]
    return value is None or kind in (str, int, float, bool)
