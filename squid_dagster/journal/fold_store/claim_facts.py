"""The facts of a claim: which of a queue's attempts it takes, dead-letters or passes over. Pure."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import NamedTuple

from squid_dagster.journal.contract.dispatch_store import Suspects, hash_token
from squid_dagster.journal.fold_store.queue_index import QueueIndex
from squid_dagster.journal.settlement.member_facts import dead_letter_fact, preview
from squid_dagster.protocol.facts import AttemptClaimed, Fact
from squid_dagster.protocol.folds.attempt import Attempt, Suspicion, suspicion_of
from squid_dagster.protocol.folds.dispatch import RunDispatch


class ClaimSettings(NamedTuple):
    """The owner and the lease of a claim, and the suspects that it may take."""

    owner_id: str
    lease: timedelta
    suspects: Suspects | None


def claim_facts(
    attempts: Iterable[Attempt],
    run_of: Callable[[str], RunDispatch],
    terms: ClaimSettings,
    tokens: dict[str, str],
    now: datetime,
) -> list[Fact]:
    """Return the facts by which claimable attempts, in claim order, are claimed or dead-lettered.

    `tokens` holds a raw token by claim id for each claim that may be made.
    """
    facts: list[Fact] = []
    unused = list(tokens.items())
    counts: dict[tuple[str, str], int] = {}
    suspects = terms.suspects
    if suspects is not None:
        suspects.taken = suspects.passed_over = Suspicion.NONE
    for attempt in attempts:
        if not unused:
            break
        run = run_of(attempt.run_id)
        if run.stopped:
            continue
        dead_letter = dead_letter_fact(attempt, now)
        if dead_letter is not None:
            facts.append(dead_letter)
            continue
        verdict = _suspect_verdict(attempt, suspects, anything_taken=len(unused) < len(tokens))
        if verdict is _Verdict.PASS_OVER:
            continue
        if verdict is _Verdict.STOP:
            break
        claim_id, token = unused.pop(0)
        key = (attempt.run_id, attempt.idempotency_key)
        counts[key] = counts[key] + 1 if key in counts else run.next_token(attempt.idempotency_key)
        facts.append(_claim_fact(attempt, terms, claim_id, token, counts[key], now))
        if verdict is _Verdict.TAKE_ALONE:
            break
    return facts


def claimed_attempts(index: QueueIndex, facts: Iterable[Fact]) -> list[Attempt]:
    """Return the attempts that these facts claim, as they are once the facts are written."""
    claims = [fact for fact in facts if isinstance(fact, AttemptClaimed)]
    by_run: dict[str, list[AttemptClaimed]] = {}
    for fact in claims:
        by_run.setdefault(fact.run_id, []).append(fact)
    after = {
        run_id: preview(index.part(run_id, [fact.runnable_key for fact in run_claims]), run_claims)
        for run_id, run_claims in by_run.items()
    }
    return [after[fact.run_id].attempts[fact.runnable_key] for fact in claims]


class _Verdict(Enum):
    """What a claim does with the next attempt."""

    TAKE = auto()
    TAKE_ALONE = auto()
    PASS_OVER = auto()
    STOP = auto()  # before it


def _suspect_verdict(attempt: Attempt, suspects: Suspects | None, *, anything_taken: bool) -> _Verdict:
    """Apply the rule for suspects to an attempt; record the first one that is passed over."""
    suspicion = suspicion_of(attempt)
    if suspects is None or suspicion is Suspicion.NONE:
        return _Verdict.TAKE
    if suspects.passed_over is not Suspicion.NONE:
        return _Verdict.PASS_OVER
    allowed = suspicion <= suspects.worst
    if allowed and not anything_taken:
        suspects.taken = suspicion
        return _Verdict.TAKE_ALONE
    suspects.passed_over = suspicion
    return _Verdict.STOP if allowed else _Verdict.PASS_OVER


def _claim_fact(
    attempt: Attempt, terms: ClaimSettings, claim_id: str, token: str, fencing_token: int, now: datetime
) -> Fact:
    at = max(now, attempt.last_at)
    alone = terms.suspects is not None and terms.suspects.alone and suspicion_of(attempt) is Suspicion.LAST
    return AttemptClaimed(
        run_id=attempt.run_id,
        runnable_key=attempt.runnable_key,
        queue=attempt.queue,
        claim_id=claim_id,
        claim_token_hash=hash_token(token),
        owner_id=terms.owner_id,
        lease_until=at + terms.lease,
        fencing_token=fencing_token,
        alone=True if alone else None,
        occurred_at=at,
    )
