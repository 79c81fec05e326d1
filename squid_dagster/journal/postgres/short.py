"""The short way of a settlement, for what nearly all of them are: the one attempt of its run in a group was completed.

The long way loads whole rows, folds facts into them, and writes whole rows. Here the database only tells whether the
claim still stands; the same fold is shown the attempt as it was claimed and the run's own thread; and only columns
that a completion can change are written. Whatever is not plain is left to the long way, which judges and explains it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from squid_dagster.journal.dispatch import Answer, Completed, Planner, PlanRequest, Settlement
from squid_dagster.journal.group import ask
from squid_dagster.journal.postgres import rows
from squid_dagster.journal.postgres.rows import Row
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.rounds import GroupTooLarge
from squid_dagster.journal.settling import completion_fact
from squid_dagster.journal.storage import Verified
from squid_dagster.limits import commit_bytes
from squid_dagster.protocol.attempts import Attempt
from squid_dagster.protocol.codec import EncodedFact, encode
from squid_dagster.protocol.dispatch import RunDispatch, apply_dispatch
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.run import RunProjection, apply_once
from squid_dagster.protocol.threads import dispatch_thread, run_thread
from squid_dagster.protocol.unit import RunUnit

_RUN_FACTS = frozenset({"runnable_applied", "runnables_planned", "manual_step_paused", "run_terminal"})


@dataclass(slots=True)
class _Member:
    """One completion, with what was planned for its run."""

    settlement: Settlement
    attempt: Attempt
    unit: RunUnit
    queue_facts: list[Fact]
    run_facts: list[Fact] = field(default_factory=list)
    queue_encoded: list[EncodedFact] = field(default_factory=list)
    run_encoded: list[EncodedFact] = field(default_factory=list)


def settle_plain(
    storage: PostgresStorage,
    settlements: Sequence[Settlement],
    plan: Planner,
    commit_id: UUID,
    answers: dict[int, Answer],
) -> None:
    """Write what is plain among completions, and put the answers, by place, into `answers`; the others are not there.

    To be repeated under the same commit id, with the same `answers`, when the connection was lost. Raises
    `GroupTooLarge` for more than one commit may hold.
    """
    places = candidates(settlements)
    if not places:
        return
    with storage.transaction() as transaction:
        now, held = transaction.lock_claims([settlements[i].ref for i in places])
        if answers and transaction.committed(commit_id):
            return  # written the first time; only the word of it was lost on the way
        answers.clear()
        if not held:
            return
        alone = {places[k]: alone for k, alone in held.items()}
        threads = transaction.read_plans(run_thread(settlements[i].ref.run_id) for i in alone)
        group: dict[int, _Member] = {}
        for i in alone:
            entries = threads[run_thread(settlements[i].ref.run_id)]
            member = _member(settlements[i], entries, plan, now, storage.max_fact_bytes)
            if member is not None and (alone[i] or not member.unit.run.terminal):
                group[i] = member
        if group:
            members = list(group.values())
            verified = _arranged(members)
            if sum(len(each.data) for one in verified for each in one.encoded) > commit_bytes(storage.max_fact_bytes):
                raise GroupTooLarge(f"{len(members)} completions, with what follows from them")
            # Before it is written: when the word of that is lost, they are all that is left of it.
            answers.update((i, Answer(member.settlement.ref, member.attempt)) for i, member in group.items())
            transaction.write(verified, _changes(members, verified), commit_id, _settled(members))


def candidates(settlements: Sequence[Settlement]) -> list[int]:
    """Give the places of completions that may be plain, by run: each is the only one of its run in the group."""
    by_run: dict[str, list[int]] = {}
    for i, settlement in enumerate(settlements):
        by_run.setdefault(settlement.ref.run_id, []).append(i)
    plain = [places[0] for places in by_run.values() if len(places) == 1]
    return sorted((i for i in plain if _may_be_plain(settlements[i])), key=lambda i: settlements[i].ref.run_id)


def _may_be_plain(settlement: Settlement) -> bool:
    """Tell whether this is a completion of the very attempt that it brings along."""
    ref, claimed = settlement.ref, settlement.claimed
    return (
        claimed is not None
        and isinstance(settlement.outcome, Completed)
        and (claimed.run_id, claimed.runnable_key, claimed.queue) == (ref.run_id, ref.runnable_key, ref.queue)
    )


def _member(
    settlement: Settlement, entries: Iterable[Entry], plan: Planner, now: datetime, max_fact_bytes: int
) -> _Member | None:
    """Fold, plan and encode one completion; None when it takes the long way."""
    ref, claimed, run = settlement.ref, settlement.claimed, RunProjection.fold(entries)
    if claimed is None or not isinstance(settlement.outcome, Completed):
        return None
    if run.anomalies or ref.runnable_key not in run.planned or claimed.expired(now):
        return None
    dispatch, known = RunDispatch(ref.queue, attempts={ref.runnable_key: claimed}), set(run.planned)
    try:
        fact = completion_fact(ref, settlement.outcome.result, now)
        apply_dispatch(dispatch, Entry(fact.thread, 0, 0, fact))
        attempt = dispatch.attempts[ref.runnable_key]
        if attempt is claimed:  # refused by the fold, or a repeat
            return None
        planned = ask(plan, PlanRequest(ref.run_id, run, (attempt,), dispatch.attempts, now))
        member = _Member(settlement, attempt, RunUnit(run, dispatch), [fact])
        if not _take(member, planned, known):
            return None
        member.queue_encoded = [encode(each, max_fact_bytes) for each in member.queue_facts]
        member.run_encoded = [encode(each, max_fact_bytes) for each in member.run_facts]
    except Exception:  # noqa: BLE001  whatever the planner raises: the long way tells it
        return None
    return member


def _take(member: _Member, planned: Iterable[Fact], known: set[str]) -> bool:
    """Fold what was planned; tell whether it is plain: about this run and this attempt, and without an anomaly.

    What was `known` before, or is said twice, is not: there are rows of it, or will be, that are not at hand here.
    """
    ref, unit = member.settlement.ref, member.unit
    fresh, scheduled, ended = list[str](), list[str](), False
    for fact in planned:
        if getattr(fact, "run_id", None) != ref.run_id:
            return False
        if fact.type == "attempt_scheduled" and fact.queue == ref.queue:
            member.queue_facts.append(fact)
            scheduled.append(fact.runnable_key)
            apply_dispatch(unit.dispatch, Entry(fact.thread, 0, 0, fact))
            continue
        if fact.type not in _RUN_FACTS or (fact.type == "runnable_applied" and fact.runnable_key != ref.runnable_key):
            return False
        if ended:
            return False
        ended = fact.type == "run_terminal"
        if fact.type == "runnables_planned":
            fresh += [runnable.runnable_key for runnable in fact.runnables]
        member.run_facts.append(fact)
        apply_once(unit.run, fact)
    if unit.run.terminal and scheduled:
        return False
    are_new = known.isdisjoint(fresh) and len(set(fresh)) == len(fresh)
    return are_new and sorted(fresh) == sorted(scheduled) and not unit.anomalies


def _arranged(members: Iterable[_Member]) -> list[Verified]:
    """Give the facts by thread, queues first and then runs, as every group does."""
    by_queue: dict[str, tuple[list[Fact], list[EncodedFact]]] = {}
    runs: list[Verified] = []
    for member in members:
        ref = member.settlement.ref
        facts, encoded = by_queue.setdefault(ref.queue, ([], []))
        facts += member.queue_facts
        encoded += member.queue_encoded
        if member.run_facts:
            runs.append(Verified(run_thread(ref.run_id), None, member.run_facts, member.run_encoded))
    queues = [Verified(dispatch_thread(queue), None, *by_queue[queue]) for queue in sorted(by_queue)]
    return [*queues, *runs]


def _changes(members: Iterable[_Member], verified: Iterable[Verified]) -> tuple[Any, ...]:
    """Give the new attempts and the runs that ended, as `append_entries` takes them."""
    attempts: list[Row] = []
    units = {member.settlement.ref.run_id: member.unit for member in members}
    for place, fact in enumerate((fact for one in verified for fact in one.facts), 1):
        if fact.type == "attempt_scheduled":
            attempts.append(
                {**rows.attempt_row(fact.run_id, fact.runnable_key, units[fact.run_id]), "position": -place}
            )
    ended = [member.settlement.ref.run_id for member in members if member.unit.run.terminal]
    return None, rows.to_text(attempts) if attempts else None, ended or None, None, None, None


def _settled(members: Iterable[_Member]) -> tuple[str, str | None]:
    """Give what changes in rows that are there, as `settle_rows` takes it."""
    runs: list[Row] = []
    attempts: list[Row] = []
    for member in members:
        attempt, run = member.attempt, member.unit.run
        runs.append(rows.run_state(run))
        if not run.terminal:
            applied = run.applied.get(attempt.runnable_key)
            attempts.append(rows.settled_row(attempt, applied))
    return rows.to_text(runs), rows.to_text(attempts) if attempts else None
