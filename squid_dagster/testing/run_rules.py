"""The invariants of one run, read from its facts one after another, without a fold."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from squid_dagster.protocol.anomalies import unreadable
from squid_dagster.protocol.entries import Entry, digest
from squid_dagster.protocol.facts import Runnable
from squid_dagster.testing.violation import Rule, Violation, violation

# The facts that may follow the end of a run: the fence on its queue, and its listings.
_AFTER_THE_END = frozenset({"run_fenced", "run_indexed", "run_cataloged"})
_INTENT = ("idempotency_key", "attempt_number", "queue", "step", "input", "visible_at")


class _Holder(NamedTuple):
    """The claim that holds an attempt, and until when."""

    runnable_key: str
    claim_id: str
    token_hash: str
    lease_until: datetime

    def is_writer_of(self, fact: Any) -> bool:
        return (self.runnable_key, self.claim_id, self.token_hash) == (
            fact.runnable_key,
            fact.claim_id,
            fact.claim_token_hash,
        )


@dataclass(slots=True)
class RunRules:
    """The state of one run by its facts so far; `check` reads them all."""

    started: Any = None
    ended: Any = None
    fenced: bool = False
    planned: dict[str, Runnable] = field(default_factory=dict)
    scheduled: dict[str, Entry] = field(default_factory=dict)
    visits: dict[str, str] = field(default_factory=dict)  # idempotency keys by runnable key
    settled: dict[str, Any] = field(default_factory=dict)  # the settling fact by runnable key
    holders: dict[str, _Holder] = field(default_factory=dict)  # by idempotency key
    tokens: dict[str, int] = field(default_factory=dict)  # by idempotency key
    applied: dict[str, Any] = field(default_factory=dict)  # the applying fact by idempotency key

    def check(self, entries: Sequence[Entry]) -> Iterator[Violation]:
        """Yield the violations of a run. `entries` are all of its facts, by position."""
        for entry in entries:
            if unreadable(entry) is None:
                yield from self._check_entry(entry)
        for key, entry in self.scheduled.items():
            yield from self._planned(key, entry)
        left = [key for key in self.visits if key not in self.settled]
        if self.ended is not None and left and not self.fenced:
            text = f"leaves {', '.join(map(repr, sorted(left)))} claimable: no run_fenced follows"
            yield violation(Rule.NOTHING_CLAIMABLE_AFTER_THE_END, self.ended, text)

    def _check_entry(self, entry: Entry) -> Iterator[Violation]:
        fact: Any = entry.fact
        if self.ended is not None and fact.type not in _AFTER_THE_END:
            if fact.type == "run_terminal" and _content(fact) == _content(self.ended.fact):
                return
            yield violation(Rule.NOTHING_AFTER_THE_END, entry, f"comes after the end, at {self.ended.position}")
            return
        self._note(entry, fact)
        if fact.type in _CHECKS:
            yield from _CHECKS[fact.type](self, entry, fact)

    def _note(self, entry: Entry, fact: Any) -> None:
        """Record a fact that other facts are checked against."""
        match fact.type:
            case "run_started":
                self.started = self.started or fact
            case "run_terminal":
                self.ended = entry
            case "run_fenced":
                self.fenced = True
            case "runnables_planned":
                for runnable in fact.runnables:
                    self.planned.setdefault(runnable.runnable_key, runnable)
            case "attempt_scheduled":
                self.scheduled.setdefault(fact.runnable_key, entry)
                self.visits.setdefault(fact.runnable_key, fact.idempotency_key)

    # --- the run's own thread, and the lists ------------------------------------------------------------------------

    def check_applied(self, entry: Entry, fact: Any) -> Iterator[Violation]:
        """Check an applied outcome: it was settled so, and its visit is applied once."""
        key = fact.runnable_key
        outcome = self.settled.get(key)
        if outcome is None:
            yield violation(Rule.APPLIED_WAS_SETTLED, entry, f"applies {key!r}, which nobody has settled")
        elif outcome.type == "attempt_completed":
            if digest(outcome.result) != digest(fact.result) or _is_failure(fact):
                yield violation(Rule.APPLIED_WAS_SETTLED, entry, f"applies {key!r} with another result than its own")
        elif not _is_failure(fact) or fact.result is not None:
            yield violation(Rule.APPLIED_WAS_SETTLED, entry, f"applies {key!r} as a success, but it has failed")
        first = self.applied.setdefault(self._visit(key), fact)
        if first is not fact and _content(first) != _content(fact):
            yield violation(Rule.APPLIED_ONCE, entry, f"applies {key!r} after {first.runnable_key!r} was applied")

    def check_listed(self, entry: Entry, fact: Any) -> Iterator[Violation]:
        """Check an index or catalog fact: it names a run that was started."""
        if self.started is None:
            yield violation(Rule.LISTED_WAS_STARTED, entry, "names a run that was not started")
        elif self.started.workflow != fact.workflow:
            text = f"names workflow {fact.workflow!r}, but the run is one of {self.started.workflow!r}"
            yield violation(Rule.LISTED_WAS_STARTED, entry, text)

    # --- the queue's thread -----------------------------------------------------------------------------------------

    def check_claim(self, entry: Entry, fact: Any) -> Iterator[Violation]:
        """Check a claim: no other claim holds the visit, and the token is a new one."""
        visit = self._visit(fact.runnable_key)
        holder = self.holders.get(visit)
        if (settled := self._settled(entry, fact)) is not None:
            yield settled
        elif holder is not None and holder.lease_until > fact.occurred_at:
            text = f"takes {fact.runnable_key!r} while claim {holder.claim_id!r} holds {holder.runnable_key!r}"
            yield violation(Rule.ONE_HOLDER, entry, f"{text} until {holder.lease_until.isoformat()}")
        else:
            self.holders[visit] = _Holder(fact.runnable_key, fact.claim_id, fact.claim_token_hash, fact.lease_until)
        if fact.fencing_token is not None:
            last = self.tokens.get(visit, 0)
            if fact.fencing_token <= last:
                yield violation(Rule.TOKENS_GROW, entry, f"has token {fact.fencing_token}, after {last}")
            self.tokens[visit] = max(last, fact.fencing_token)

    def check_heartbeat(self, entry: Entry, fact: Any) -> Iterator[Violation]:
        """Check a heartbeat: only the holder extends its lease."""
        refused = self._settled(entry, fact) or self._not_held(entry, fact)
        if refused is not None:
            yield refused
            return
        visit = self._visit(fact.runnable_key)
        lease_until = max(self.holders[visit].lease_until, fact.lease_until)
        self.holders[visit] = self.holders[visit]._replace(lease_until=lease_until)

    def check_release(self, entry: Entry, fact: Any) -> Iterator[Violation]:
        """Check a release: only the holder gives an attempt back."""
        refused = self._settled(entry, fact) or self._not_held(entry, fact)
        if refused is not None:
            yield refused
            return
        del self.holders[self._visit(fact.runnable_key)]

    def check_outcome(self, entry: Entry, fact: Any) -> Iterator[Violation]:
        """Check an outcome: only the holder settles, and only once; a repeat is allowed."""
        first = self.settled.get(fact.runnable_key)
        if first is not None and _outcome(first) == _outcome(fact):
            return
        refused = self._settled(entry, fact) or self._not_held(entry, fact)
        if refused is not None:
            yield refused
            return
        self.settled[fact.runnable_key] = fact
        visit = self._visit(fact.runnable_key)
        del self.holders[visit]
        if fact.type == "attempt_failed" and fact.retry_runnable_key is not None:
            self.visits.setdefault(fact.retry_runnable_key, visit)

    def check_dead_letter(self, entry: Entry, fact: Any) -> Iterator[Violation]:
        """Check a dead letter: only the holder dead-letters a held attempt, and no other outcome stands."""
        visit = self._visit(fact.runnable_key)
        first, holder = self.settled.get(fact.runnable_key), self.holders.get(visit)
        if first is not None:
            if first.type != fact.type:
                yield violation(Rule.SETTLED_STAYS, entry, f"changes {fact.runnable_key!r}, settled by {first.type}")
        elif holder is not None and holder.lease_until > fact.occurred_at and not holder.is_writer_of(fact):
            text = f"parks {fact.runnable_key!r} while claim {holder.claim_id!r} holds it"
            yield violation(Rule.ONLY_THE_HOLDER_ACTS, entry, text)
        else:
            self.settled[fact.runnable_key] = fact
            self.holders.pop(visit, None)

    # --- lookups ----------------------------------------------------------------------------------------------------

    def _visit(self, key: str) -> str:
        return self.visits.get(key) or key.rpartition(":")[0]

    def _settled(self, entry: Entry, fact: Any) -> Violation | None:
        first = self.settled.get(fact.runnable_key)
        if first is None:
            return None
        return violation(Rule.SETTLED_STAYS, entry, f"touches {fact.runnable_key!r}, settled by {first.type}")

    def _not_held(self, entry: Entry, fact: Any) -> Violation | None:
        holder = self.holders.get(self._visit(fact.runnable_key))
        if holder is None or not holder.is_writer_of(fact):
            text = f"is about {fact.runnable_key!r}, which claim {fact.claim_id!r} does not hold"
        elif holder.lease_until <= fact.occurred_at:
            text = f"is about {fact.runnable_key!r}, whose lease ran out at {holder.lease_until.isoformat()}"
        else:
            return None
        return violation(Rule.ONLY_THE_HOLDER_ACTS, entry, text)

    def _planned(self, key: str, entry: Entry) -> Iterator[Violation]:
        runnable = self.planned.get(key)
        if runnable is None:
            yield violation(Rule.SCHEDULED_WAS_PLANNED, entry, f"schedules {key!r}, which its run has not planned")
            return
        differing = [name for name in _INTENT if getattr(runnable, name) != getattr(entry.fact, name)]
        if differing:
            text = f"schedules {key!r} with another {' and '.join(differing)} than planned"
            yield violation(Rule.SCHEDULED_WAS_PLANNED, entry, text)


_CHECKS: dict[str, Callable[[RunRules, Entry, Any], Iterator[Violation]]] = {
    "runnable_applied": RunRules.check_applied,
    "run_indexed": RunRules.check_listed,
    "run_cataloged": RunRules.check_listed,
    "attempt_claimed": RunRules.check_claim,
    "attempt_heartbeat": RunRules.check_heartbeat,
    "attempt_released": RunRules.check_release,
    "attempt_completed": RunRules.check_outcome,
    "attempt_failed": RunRules.check_outcome,
    "attempt_dead_lettered": RunRules.check_dead_letter,
}


def _is_failure(applied: Any) -> bool:
    return (applied.transition or {}).get("on") == "error"


def _outcome(fact: Any) -> Any:
    """Return the claim that settled an attempt, and the outcome: equal for a repeat."""
    result = fact.result if fact.type == "attempt_completed" else fact.error
    return fact.type, getattr(fact, "claim_id", None), getattr(fact, "claim_token_hash", None), digest(result)


def _content(fact: Any) -> Any:
    """Return a fact without its time: equal for a repeat."""
    return fact.model_dump(mode="json", exclude={"occurred_at"})
