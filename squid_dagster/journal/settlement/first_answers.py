"""Answers to repeated settlements that were refused although their outcome is on record: the first answer again.

The end of a run deletes the rows of its attempts, and a released attempt has no claim any more: only the run's facts
then show whether a late settlement repeats one that was written. Only refused settlements are looked up.
"""

from collections.abc import Iterable, Sequence
from typing import TypeGuard

from squid_dagster.journal.contract.dispatch_store import Answer, ClaimRef, Deferred, Interrupted, Settlement
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.settlement.member_facts import refusal, verdict_on
from squid_dagster.protocol.anomalies import Reason
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.errors import StaleClaim, TerminalRun
from squid_dagster.protocol.facts import AttemptDeadLettered, AttemptReleased
from squid_dagster.protocol.folds.run_unit import RunUnit

_CONFLICTS = (Reason.CONFLICTING_COMPLETION, Reason.CONFLICTING_FAILURE)


def with_first_answers(storage: Storage, settlements: Sequence[Settlement], answers: Iterable[Answer]) -> list[Answer]:
    """Return the answers; for each refused settlement that is on record, the attempt as the journal has it."""
    return [_answer(storage, settlement, answer) for settlement, answer in zip(settlements, answers, strict=True)]


def _answer(storage: Storage, settlement: Settlement, answer: Answer) -> Answer:
    ref, outcome = settlement.ref, settlement.outcome
    releases = isinstance(outcome, Deferred | Interrupted)
    if not isinstance(answer.error, (TerminalRun, StaleClaim) if releases else TerminalRun):
        return answer
    entries = storage.read_run(ref.run_id)
    attempt = RunUnit.fold(entries).dispatch.attempts.get(ref.runnable_key)
    if attempt is None or attempt.queue != ref.queue:
        return answer
    if releases:
        return Answer(ref, attempt) if _was_released(entries, ref, isinstance(outcome, Interrupted)) else answer
    verdict = verdict_on(attempt, settlement, attempt.last_at)
    if verdict is False:
        return Answer(ref, attempt)
    return Answer(ref, error=refusal(verdict, attempt)) if verdict in _CONFLICTS else answer


def _was_released(entries: Iterable[Entry], ref: ClaimRef, counted: bool) -> bool:
    """Return whether this claim released its attempt, as a delivery that counts or as one that does not."""
    return any(
        _is_release(fact, counted) and (fact.claim_id, fact.claim_token_hash) == (ref.claim_id, ref.token_hash)
        for fact in (entry.fact for entry in entries)
    )


def _is_release(fact: object, counted: bool) -> TypeGuard[AttemptReleased | AttemptDeadLettered]:
    if isinstance(fact, AttemptReleased):
        return bool(fact.counted) is counted and (counted or fact.visible_at is not None)
    return counted and isinstance(fact, AttemptDeadLettered)
