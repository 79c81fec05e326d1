"""Stencils: what new runs of one kind write, as texts with holes for what differs between two of them.

Planning, encoding and folding a start takes several times as long as writing it down, and gives the same each time but
for the id, the time and the values. So they are done once, for an example; its texts are cut where the example shows
through, and a second example is both made and filled in: where these differ, there is no stencil, and every run of that
kind goes the long way. No rule of planner, codec or fold is written again here. Pure.
"""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from secrets import token_hex
from typing import NamedTuple

from pydantic import JsonValue, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from squid_dagster.journal.dispatch import Opening
from squid_dagster.journal.postgres.units import Units
from squid_dagster.journal.settling import arrange
from squid_dagster.journal.storage import Verified, check_appends
from squid_dagster.protocol.attempts import intent_content
from squid_dagster.protocol.codec import EncodedFact, encode, is_plain
from squid_dagster.protocol.entries import canonical_text, digest_of_text
from squid_dagster.protocol.errors import SquidError
from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.run import plan_content, start_content
from squid_dagster.protocol.threads import dispatch_thread, run_thread
from squid_dagster.protocol.unit import RunUnit

_RUN, _VALUE = f"run-{token_hex(16)}", f"value-{token_hex(16)}"  # nobody's names
_TIME = datetime(2001, 2, 3, 4, 5, 6, 789012, UTC)
_OTHER_RUN, _OTHER_TIME = f"other-{token_hex(16)}", datetime(2002, 3, 4, 5, 6, 7, 890123, UTC)
_OTHER_VALUE: JsonValue = ['ä\u2028"\\', {"b": [1, None, True], "a": -1.5e300}, {}]
_PLACE = '"position":-'
_MOST = 256  # kinds that are known at a time


def _times(at: datetime) -> tuple[str, str]:
    """Give both spellings of a time: in rows, and in facts."""
    text = at.isoformat()
    return text, f"{text.removesuffix('+00:00')}Z"


class Text(NamedTuple):
    """A text with holes: every second part is the name of one."""

    parts: list[str]

    def fill(self, holes: Mapping[str, str]) -> str:
        """Give the text with these in the holes of their names."""
        filled = self.parts.copy()
        filled[1::2] = [holes[name] for name in filled[1::2]]
        return "".join(filled)


class Filled(NamedTuple):
    """What one new run writes, beyond the command that starts it: facts of its queue and of itself, and its rows."""

    queue: str
    queue_facts: list[EncodedFact]
    run_facts: list[EncodedFact]
    run_row: str
    attempt_rows: str | None


@dataclass(frozen=True, slots=True)
class Stencil:
    """What every new run of one kind writes."""

    example: Opening  # kept, so that what its kind is known by lives as long as this does
    names: dict[str, str]  # holes by the names of values
    queue: str
    queue_facts: list[tuple[str, Text]]
    run_facts: list[tuple[str, Text]]
    run_row: Text
    attempt_rows: Text | None
    digests: dict[str, Text]  # canonical texts of what digests cover, by the holes for these
    places: dict[str, int]  # places of facts in the commit, by the holes for these
    max_fact_bytes: int

    @classmethod
    def of(cls, opening: Opening, max_fact_bytes: int) -> "Stencil | None":
        """Cut the stencil for an opening's kind; None when runs of that kind differ in more than a stencil knows of."""
        names = {name: f'"{_VALUE}-{i}"' for i, name in enumerate(opening.input)}
        try:
            first = _made(opening, _RUN, {name: hole.strip('"') for name, hole in names.items()}, _TIME, max_fact_bytes)
            others: dict[str, JsonValue] = dict.fromkeys(names, _OTHER_VALUE)
            second = _made(opening, _OTHER_RUN, others, _OTHER_TIME, max_fact_bytes)
        except (SquidError, ValidationError):
            return None
        if first is None or second is None:
            return None
        stencil = _cut(opening, names, *first, max_fact_bytes)
        filled = stencil.fill(_OTHER_RUN, others, _OTHER_TIME, 0)
        return stencil if filled == second[0] else None

    def fill(self, run_id: str, values: Mapping[str, JsonValue], now: datetime, before: int) -> Filled | None:
        """Give what a run writes whose first fact has so many others `before` it in its commit.

        None when there is anything in the values that has to be looked at more closely.
        """
        in_rows, in_facts = _times(now)
        exact = dict(zip((_RUN, *_times(_TIME)), (run_id, in_rows, in_facts), strict=True))
        holes = {**exact, **{hole: f"{_PLACE}{before + place}" for hole, place in self.places.items()}}
        try:
            for name, hole in self.names.items():
                holes[hole], exact[hole] = to_json(values[name]).decode(), canonical_text(values[name])
        except (PydanticSerializationError, ValueError, RecursionError):
            return None
        if not is_plain("".join([holes[hole] for hole in self.names.values()]), self.max_fact_bytes):
            return None
        holes |= {hole: digest_of_text(text.fill(exact)) for hole, text in self.digests.items()}
        return Filled(
            self.queue,
            [EncodedFact(name, run_id, now, text.fill(holes)) for name, text in self.queue_facts],
            [EncodedFact(name, run_id, now, text.fill(holes)) for name, text in self.run_facts],
            self.run_row.fill(holes),
            None if self.attempt_rows is None else self.attempt_rows.fill(holes),
        )


def _made(
    opening: Opening, run_id: str, values: dict[str, JsonValue], now: datetime, max_fact_bytes: int
) -> tuple[Filled, RunUnit] | None:
    """Give what a run writes the long way; None when that is about more than the run itself and one queue."""
    verified = check_appends(arrange(opening.facts(run_id, values, now)), max_fact_bytes)
    units = Units.new([run_id], now)
    units.fold(verified)
    runs, attempts, *more = units.changes()
    unit = units.units[run_id]
    queue = unit.dispatch.queue
    if queue is None or [one.thread for one in verified] != [dispatch_thread(queue), run_thread(run_id)] or any(more):
        return None
    rows = None if attempts is None else attempts[1:-1]
    return Filled(queue, verified[0].encoded, verified[1].encoded, runs[1:-1], rows), unit


def _cut(opening: Opening, names: dict[str, str], made: Filled, unit: RunUnit, max_fact_bytes: int) -> Stencil:
    digests = _digests(unit)
    places = {f"{_PLACE}{place}": place for place in range(1, len(made.queue_facts) + 1)}
    common = [_RUN, *_times(_TIME), *names.values()]
    in_facts, in_rows = _pattern(common), _pattern([*common, *digests, *places])
    return Stencil(
        opening,
        names,
        made.queue,
        [(fact.type, Text(in_facts.split(fact.data))) for fact in made.queue_facts],
        [(fact.type, Text(in_facts.split(fact.data))) for fact in made.run_facts],
        Text(in_rows.split(made.run_row)),
        None if made.attempt_rows is None else Text(in_rows.split(made.attempt_rows)),
        {hole: Text(in_facts.split(text)) for hole, text in digests.items()},
        places,
        max_fact_bytes,
    )


def _digests(unit: RunUnit) -> dict[str, str]:
    """Give the digests that a new run's rows hold, with the canonical texts of what they cover."""
    run = unit.run
    found = {each.digest: canonical_text(plan_content(each.runnable)) for each in run.planned.values() if each.runnable}
    for each in unit.dispatch.attempts.values():
        intent = each.idempotency_key, each.attempt_number, each.step, each.input or {}, each.visible_at
        found[each.intent_digest] = canonical_text(intent_content(*intent))
    if run.start is not None and run.start_digest is not None:
        found[run.start_digest] = canonical_text(start_content(run.start))
    return found


def _pattern(holes: Iterable[str]) -> re.Pattern[str]:
    # Longer ones first: one hole's name may begin with another's.
    return re.compile("(" + "|".join(map(re.escape, sorted(holes, key=len, reverse=True))) + ")")


class NewRuns(NamedTuple):
    """One commit of new runs: their commands, and everything as `Transaction.start` takes it."""

    run_ids: list[str]
    commands: list[Fact]
    verified: list[Verified]
    rows: tuple[str, str | None]  # of runs and of attempts
    queues: list[str]


class Stencils:
    """The stencils of one store, cut when a kind is met first. Safe between threads: at worst, one is cut twice."""

    def __init__(self, max_fact_bytes: int) -> None:
        """Begin without any."""
        self._max_fact_bytes = max_fact_bytes
        self._known: dict[Hashable, Stencil | None] = {}

    def fill(self, openings: Sequence[Opening], now: datetime) -> NewRuns | None:
        """Give what these runs write at that time; None when one of them has no stencil, or does not fit it.

        Raises:
            InvalidFact: a command that cannot be written down.
        """
        cut = [(opening, self._stencil(opening)) for opening in openings]
        # Queues first and then runs, as every commit has it.
        by_queue: dict[str, list[EncodedFact]] = {}
        filled: list[tuple[Opening, Filled]] = []
        before = 0
        for opening, stencil in sorted(cut, key=lambda one: "" if one[1] is None else one[1].queue):
            one = None if stencil is None else stencil.fill(opening.run_id, opening.input, now, before)
            if one is None:
                return None
            by_queue.setdefault(one.queue, []).extend(one.queue_facts)
            filled.append((opening, one))
            before += len(one.queue_facts)
        commands = {opening.run_id: opening.command(now) for opening in openings}
        verified = [Verified(dispatch_thread(queue), None, (), facts) for queue, facts in by_queue.items()]
        for opening, one in filled:
            command = commands[opening.run_id]
            facts = [encode(command, self._max_fact_bytes), *one.run_facts]
            verified.append(Verified(run_thread(opening.run_id), 0, (), facts))
        runs = ",".join([one.run_row for _, one in filled])
        attempts = ",".join([one.attempt_rows for _, one in filled if one.attempt_rows])
        rows = f"[{runs}]", f"[{attempts}]" if attempts else None
        return NewRuns(list(commands), list(commands.values()), verified, rows, list(by_queue))

    def _stencil(self, opening: Opening) -> Stencil | None:
        kind = opening.kind, tuple(opening.input)
        if kind not in self._known:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[kind] = Stencil.of(opening, self._max_fact_bytes)
        return self._known.get(kind)
