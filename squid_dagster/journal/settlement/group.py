"""A group of claims that are settled, extended or released in one commit: what each member may write. Pure.

Members are independent: one that is refused or cannot be written does not affect the others. A run whose plan cannot be
written is planned again, so that the outcome is recorded, and the run fails instead.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pydantic import ValidationError

from squid_dagster.journal.contract.dispatch_store import ClaimRef, Planner, PlanRequest
from squid_dagster.journal.contract.storage import Verified, check_appends
from squid_dagster.journal.settlement.member_facts import FactOf, find_attempt, group_appends
from squid_dagster.journal.settlement.rounds import GroupTooLarge
from squid_dagster.limits import commit_bytes
from squid_dagster.protocol.errors import InvalidFact, PlanningFailed, SquidError, explain
from squid_dagster.protocol.facts import FACT_TYPES, Fact
from squid_dagster.protocol.folds.dispatch import RunDispatch
from squid_dagster.redaction import named_error

_FACTS = frozenset(FACT_TYPES.values())

PlanOf = Callable[[str, list[int], int | None], list[Fact]]
"""Calls the planner for a run and the members at these places; with a number, for facts of at most so many bytes."""


def judge(refs: Sequence[ClaimRef], fact_of: FactOf, run_of: Callable[[str], RunDispatch], now: datetime) -> "Group":
    """Return the group with the facts that its members may write, and the errors of those that may not."""
    facts: dict[int, Fact] = {}
    errors: dict[int, SquidError] = {}
    for i, ref in enumerate(refs):
        try:
            fact = fact_of(i, find_attempt(run_of(ref.run_id), ref), now)
        except SquidError as error:
            errors[i] = error
        except ValidationError as error:
            errors[i] = InvalidFact(explain(error))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            errors[i] = InvalidFact(f"the outcome of {ref.runnable_key!r} cannot be written: {error}")
        else:
            if fact is not None:
                facts[i] = fact
    return Group(refs, facts, errors)


def call_planner(plan: Planner, request: PlanRequest) -> list[Fact]:
    """Call the planner for one run.

    Raises:
        PlanningFailed: the planner raised anything but a `SquidError`.
        SquidError: the planner's error; `InvalidFact` if it returned anything but facts.
    """
    try:
        planned = list(plan(request))
    except SquidError:
        raise
    except Exception as error:
        raise PlanningFailed(
            f"what follows in run {request.run_id!r} could not be planned: {named_error(error)}"
        ) from error
    for fact in planned:
        if type(fact) not in _FACTS:
            raise InvalidFact(f"the planner gave a {type(fact).__name__} for run {request.run_id!r}, not a fact")
    return planned


@dataclass(slots=True)
class Group:
    """What the members of a group write: their own facts by place, and the facts that were planned for their runs."""

    refs: Sequence[ClaimRef]
    facts: dict[int, Fact]
    errors: dict[int, SquidError]
    planned: dict[str, list[Fact]] = field(default_factory=dict)
    _plan_of: PlanOf | None = None
    _planned_for: dict[str, list[int]] = field(default_factory=dict)

    def members(self, places: Iterable[int]) -> dict[str, list[int]]:
        """Group places by run."""
        by_run: dict[str, list[int]] = {}
        for i in places:
            by_run.setdefault(self.refs[i].run_id, []).append(i)
        return by_run

    def plan(self, members: Mapping[str, list[int]], plan_of: PlanOf) -> None:
        """Plan what follows for each run; a run that the planner refuses stays as it was, with its members."""
        self._plan_of, self._planned_for = plan_of, dict(members)
        for run_id in members:
            self._plan_run(run_id, None)

    def check(self, max_fact_bytes: int) -> list[Verified]:
        """Check and encode all facts; refuse, or plan again, what cannot be written.

        Raises:
            GroupTooLarge: it is more than one commit may hold; write it in parts.
        """
        try:
            verified = self._verified(max_fact_bytes)
            fits = _size(verified) <= commit_bytes(max_fact_bytes)
        except SquidError:
            fits = False
        if not fits:
            self._drop_unwritable(max_fact_bytes)
            verified = self._verified(max_fact_bytes)
            if _size(verified) > commit_bytes(max_fact_bytes) and len(self.refs) > 1:
                raise GroupTooLarge(f"{_size(verified):,} bytes of facts")
        return verified

    def _verified(self, max_fact_bytes: int) -> list[Verified]:
        facts = [*self.facts.values(), *(fact for facts in self.planned.values() for fact in facts)]
        return check_appends(group_appends(facts), max_fact_bytes) if facts else []

    def _drop_unwritable(self, max_fact_bytes: int) -> None:
        """Refuse each member whose own fact cannot be written, and plan again the runs whose plan cannot."""
        unwritable = {i: error for i, fact in self.facts.items() if (error := _refused([fact], max_fact_bytes))}
        for i, error in unwritable.items():
            del self.facts[i]
            self.errors[i] = error
        for run_id in list(self.planned):
            places = self._planned_for[run_id]
            self._planned_for[run_id] = [i for i in places if i not in unwritable]
            if len(self._planned_for[run_id]) == len(places) and not _refused(self.planned[run_id], max_fact_bytes):
                continue
            self._plan_run(run_id, max_fact_bytes)
            error = _refused(self.planned.get(run_id, ()), max_fact_bytes)
            if error is not None:
                self._refuse(run_id, error)

    def _plan_run(self, run_id: str, max_fact_bytes: int | None) -> None:
        self.planned.pop(run_id, None)
        if self._plan_of is None or not self._planned_for[run_id]:
            return
        try:
            self.planned[run_id] = self._plan_of(run_id, self._planned_for[run_id], max_fact_bytes)
        except SquidError as error:
            self._refuse(run_id, error)

    def _refuse(self, run_id: str, error: SquidError) -> None:
        """Refuse the members of a run, and drop its plan."""
        self.planned.pop(run_id, None)
        for i in self._planned_for[run_id]:
            self.facts.pop(i, None)
            self.errors[i] = error


def _refused(facts: Sequence[Fact], max_fact_bytes: int) -> SquidError | None:
    """Return why facts cannot be written, or not in one commit; None if they can."""
    try:
        size = _size(check_appends(group_appends(facts), max_fact_bytes)) if facts else 0
    except SquidError as error:
        return error
    most = commit_bytes(max_fact_bytes)
    return InvalidFact(f"what follows takes {size:,} bytes, more than the {most:,} allowed") if size > most else None


def _size(verified: Iterable[Verified]) -> int:
    return sum(len(encoded.data) for one in verified for encoded in one.encoded)
