"""The fast way of a settlement, for most of them: steps that succeeded, in runs without special cases.

What follows is planned before the database is asked, from the run's state in this process (`PlanStates`). One call of
`settle_runs` then locks, checks that the state is still current and that every claim stands, and writes many runs at
once. No rule stands twice: SQL compares claims and revisions with rows; the fold and the planner decide what follows.
It is an allow-list: everything else is left to the general way (`dispatch_store.py`), which decides and explains it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, LiteralString, NamedTuple, cast
from uuid import UUID, uuid4

from pydantic_core import to_json

from squid_dagster.journal.contract.dispatch_store import Answer, ClaimRef, Completed, Planner, PlanRequest, Settlement
from squid_dagster.journal.plan_state.cache import KnownState, PlanStates, fold_planned
from squid_dagster.journal.postgres.connection.failures import retry_if_safe
from squid_dagster.journal.postgres.connection.message import execute, json_of
from squid_dagster.journal.postgres.connection.session_settings import BEGIN_GROUP, BEGIN_STATEMENTS
from squid_dagster.journal.postgres.connection.sqlstates import LOCK_TIMEOUT
from squid_dagster.journal.postgres.dispatch.run_states import keep_states, read_states
from squid_dagster.journal.postgres.dispatch.settle_template import (
    KindPlanner,
    PlannedSettlement,
    SettleTemplates,
    Texts,
    values_of,
)
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.transaction import names, numbers
from squid_dagster.journal.postgres.views import rows
from squid_dagster.journal.postgres.views.rows import Row
from squid_dagster.journal.settlement.group import call_planner
from squid_dagster.journal.settlement.member_facts import completion_fact
from squid_dagster.journal.settlement.rounds import GroupTooLarge
from squid_dagster.limits import commit_bytes
from squid_dagster.protocol.codec import encode
from squid_dagster.protocol.entries import Entry, canonical_text
from squid_dagster.protocol.facts import (
    AttemptScheduled,
    Fact,
    ManualStepPaused,
    Runnable,
    RunnableApplied,
    RunnablesPlanned,
    RunTerminal,
)
from squid_dagster.protocol.folds.attempt import Attempt, completed, intent_content, intent_digest
from squid_dagster.protocol.folds.dispatch import RunDispatch, apply_dispatch
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import application_digest, end_digest, manual_state, plan_content, plan_digest
from squid_dagster.protocol.folds.unknown_state import UnknownState

_SETTLE: LiteralString = (
    BEGIN_GROUP
    + """SELECT {schema}.settle_runs(%s::uuid, %s::timestamptz, %s::boolean, %s::text[], %s::text[], %s::bigint[],
    %s::boolean[], %s::json, %s::json, %s::json, %s::json); COMMIT"""
)

_UNKNOWN = cast("PlanState", UnknownState())


class _NotPlainError(Exception):
    """The fast way does not know this case."""


class _Member(NamedTuple):
    """One completion: its place in the group, and the attempt as it was claimed."""

    place: int
    settlement: Settlement
    claimed: Attempt


@dataclass(slots=True)
class _Run:
    """What is written about one run. Without a state, it is assumed to be at one step alone, which SQL checks."""

    run_id: str
    queue: str
    members: list[_Member]
    known: KnownState | None  # with what is planned folded into the state; rolled back if it is not written
    settled: dict[str, Attempt] = field(default_factory=dict)
    runnables: dict[str, Runnable] = field(default_factory=dict)
    applied: dict[str, RunnableApplied] = field(default_factory=dict)
    pause: ManualStepPaused | None = None
    end: RunTerminal | None = None
    queue_facts: list[Fact] = field(default_factory=list)
    run_facts: list[Fact] = field(default_factory=list)
    texts: Texts = field(init=False)

    @property
    def status(self) -> str:
        """The status of the run afterwards."""
        if self.known is not None:
            return self.known.state.status
        if self.end is not None:
            return self.end.status
        return "paused" if self.pause is not None else "running" if self.runnables else "idle"


def settle_fast(
    storage: PostgresStorage,
    states: PlanStates,
    templates: SettleTemplates,
    claimed: Mapping[str, Attempt],
    settlements: Sequence[Settlement],
    plan: Planner,
) -> dict[int, Answer]:
    """Write the plain completions and return their answers by place; the others are missing from the answers.

    `claimed` holds attempts by claim id, as they were claimed.

    Raises:
        GroupTooLarge: it is more than one commit may hold; write it in parts.
    """
    members = _members(settlements, claimed)
    now = _time(storage, members)
    if now is None:
        return {}
    kinds = plan if isinstance(plan, KindPlanner) else None
    room = storage.max_fact_bytes
    assumed = (_assumed(templates, members[run_id], plan, kinds, now, room) for run_id in sorted(members))
    runs = [run for run in assumed if run is not None]
    others = members.keys() - {run.run_id for run in runs}
    for run_id, known in read_states(storage, states, others).items():
        try:
            runs.append(_planned(members[run_id], known, plan, now, room))
        except Exception:  # noqa: BLE001  of the planner, or of what cannot be written: the general way reports it
            known.state.roll_back()
            states.put(run_id, *known)
    runs.sort(key=lambda run: run.run_id)
    if not runs:
        return {}
    if sum(run.texts.size for run in runs) > commit_bytes(room):
        _put_back(states, runs)
        raise GroupTooLarge(f"{len(runs)} runs, with what follows from their steps")
    written = _write(storage, states, runs, now)
    answers: dict[int, Answer] = {}
    for run in written:
        for member in run.members:
            ref = member.settlement.ref
            answers[member.place] = Answer(ref, run.settled[ref.runnable_key])
    return answers


def _time(storage: PostgresStorage, members: Mapping[str, Sequence[_Member]]) -> datetime | None:
    """Return a time that the database has reached: its estimated time, and not before any claim."""
    claimed_at = [member.claimed.last_at for of_run in members.values() for member in of_run]
    estimate = storage.estimate_db_now()
    return max([*claimed_at, *([] if estimate is None else [estimate])]) if claimed_at else None


def _members(settlements: Sequence[Settlement], claimed: Mapping[str, Attempt]) -> dict[str, list[_Member]]:
    """Return the completions by run, without the runs for which something else is settled too."""
    by_run: dict[str, list[_Member]] = {}
    others: set[str] = set()
    for place, settlement in enumerate(settlements):
        ref = settlement.ref
        attempt = claimed.get(ref.claim_id)
        if (
            attempt is not None
            and isinstance(settlement.outcome, Completed)
            and (attempt.run_id, attempt.runnable_key, attempt.queue) == (ref.run_id, ref.runnable_key, ref.queue)
        ):
            by_run.setdefault(ref.run_id, []).append(_Member(place, settlement, attempt))
        else:
            others.add(ref.run_id)
    return {run_id: members for run_id, members in by_run.items() if run_id not in others}


def _assumed(
    templates: SettleTemplates,
    members: list[_Member],
    plan: Planner,
    kinds: KindPlanner | None,
    now: datetime,
    max_fact_bytes: int,
) -> _Run | None:
    """Plan for a run without its state, by a template if there is one; return None if the planner needs the state."""
    if len(members) > 1:
        return None
    try:
        filled = None if kinds is None else _filled(templates, members[0], kinds, now, max_fact_bytes)
        return filled or _planned(members, None, plan, now, max_fact_bytes)
    except Exception:  # noqa: BLE001  the plan by the run's state reports it
        return None


def _filled(
    templates: SettleTemplates, member: _Member, plan: KindPlanner, now: datetime, max_fact_bytes: int
) -> _Run | None:
    """Fill in the template of a settlement; return None if there is none, or if a value has to be planned."""
    attempt, settlement = member.claimed, member.settlement
    result = settlement.outcome.result  # type: ignore[union-attr]  # completed
    kind = plan.kind_of(attempt, result)
    if kind is None or attempt.expired(now):
        return None

    def plan_example(settlement: Settlement, claimed: Attempt, at: datetime) -> PlannedSettlement:
        members = [_Member(0, settlement, claimed)]
        run = _planned(members, None, partial(plan.plan_kind, kind), at, max_fact_bytes)
        return PlannedSettlement(run.texts, _digests(run), bool(run.runnables))

    template = templates.find(kind, attempt, plan_example)
    filled = None if template is None else template.fill(settlement.ref, values_of(settlement, attempt), now)
    if template is None or filled is None:
        return None
    run = _Run(attempt.run_id, attempt.queue, [member], None)
    run.texts, outcome = filled
    run.settled[attempt.runnable_key] = completed(attempt, result, outcome, now)
    if template.schedules:
        plan.note_scheduled(attempt.queue)
    return run


def _digests(run: _Run) -> dict[str, str]:
    """Return the digests that a settlement writes into rows, with the canonical texts of what they cover."""
    digests: dict[str, str] = {}
    for key, fact in run.applied.items():
        digests[application_digest(fact.result, fact.transition)] = canonical_text([fact.result, fact.transition])
        digests[run.settled[key].outcome_digest or ""] = canonical_text(fact.result)
    for runnable in run.runnables.values():
        intent = runnable.idempotency_key, runnable.attempt_number, runnable.step, runnable.input, runnable.visible_at
        digests[plan_digest(runnable)] = canonical_text(plan_content(runnable))
        digests[intent_digest(*intent)] = canonical_text(intent_content(*intent))
    return digests


def _planned(
    members: list[_Member], known: KnownState | None, plan: Planner, now: datetime, max_fact_bytes: int
) -> _Run:
    """Plan and encode what is written about one run. Raises for everything that is not plain."""
    run_id, queue = members[0].claimed.run_id, members[0].claimed.queue
    state = None if known is None else known.state
    if state is not None:
        state.begin()
    run = _Run(run_id, queue, members, known)
    dispatch = RunDispatch(queue, attempts={member.claimed.runnable_key: member.claimed for member in members})
    for _, settlement, attempt in members:
        _require(state is None or attempt.runnable_key in state.planned)
        fact = completion_fact(settlement.ref, settlement.outcome.result, now)  # type: ignore[union-attr]  # completed
        apply_dispatch(dispatch, Entry(fact.thread, 0, 0, fact))
        after = dispatch.attempts[attempt.runnable_key]
        _require(after is not attempt)  # else refused by the fold, or a repeat
        run.settled[attempt.runnable_key] = after
        run.queue_facts.append(fact)
    facts_before = 0 if state is None else state.facts
    given = _UNKNOWN if state is None else state
    planned = call_planner(plan, PlanRequest(run_id, given, tuple(run.settled.values()), dict(dispatch.attempts), now))
    _require(state is None or (fold_planned(state, facts_before, planned, run_id) and state.plain))
    _sort_out(run, planned, dispatch, now)
    run.texts = _encode(run, dispatch, max_fact_bytes)
    return run


def _sort_out(run: _Run, planned: Sequence[Fact], dispatch: RunDispatch, now: datetime) -> None:
    """Sort planned facts by thread; raise unless they are of this run and time, and schedule all that they plan."""
    scheduled: list[str] = []
    for fact in planned:
        _require(getattr(fact, "run_id", None) == run.run_id and fact.occurred_at == now and run.end is None)
        match fact:
            case AttemptScheduled() if fact.queue == run.queue:
                scheduled.append(fact.runnable_key)
                run.queue_facts.append(fact)
                apply_dispatch(dispatch, Entry(fact.thread, 0, 0, fact))
                continue
            case RunnableApplied() if fact.runnable_key not in run.applied:
                run.applied[fact.runnable_key] = fact
            case RunnablesPlanned():
                for runnable in fact.runnables:
                    _require(runnable.attempt_number == 1 and runnable.runnable_key not in run.runnables)
                    run.runnables[runnable.runnable_key] = runnable
            case ManualStepPaused() if run.pause is None:
                run.pause = fact
            case RunTerminal():
                run.end = fact
            case _:
                raise _NotPlainError
        run.run_facts.append(fact)
    open_ = run.known is not None and run.known.state.open
    _require(run.applied.keys() == run.settled.keys() and run.runnables.keys().isdisjoint(run.settled))
    _require(sorted(run.runnables) == sorted(scheduled) and not dispatch.anomalies)
    _require(run.end is None or not (scheduled or open_))


def _encode(run: _Run, dispatch: RunDispatch, max_fact_bytes: int) -> Texts:
    """Encode facts, the rows of new attempts, and the changed columns of existing rows, as `settle_runs` takes them."""
    on_queue: list[str] = []
    for fact in run.queue_facts:
        encoded, row = encode(fact, max_fact_bytes), ""
        if isinstance(fact, AttemptScheduled):
            key = fact.runnable_key
            new = rows.new_attempt_row(dispatch.attempts[key], plan_digest(run.runnables[key]))
            row = f',"row":{to_json(new).decode()}'
        on_queue.append(f'"type":"{encoded.type}","data":{encoded.data}{row}}}')
    on_run: list[str] = []
    for number, fact in enumerate(run.run_facts, 1):
        encoded = encode(fact, max_fact_bytes)
        on_run.append(f'"k":{number},"type":"{encoded.type}","data":{encoded.data}}}')
    settled = [] if run.end is not None else [_tail(row) for row in _settled_rows(run)]
    return Texts(on_queue, on_run, _tail(_run_row(run)), settled, run.end is not None)


def _tail(row: Row) -> str:
    """Return a row as JSON without its opening brace: the place of its run is put before it."""
    return to_json(row).decode()[1:]


def _write(storage: PostgresStorage, states: PlanStates, runs: list[_Run], now: datetime) -> list[_Run]:
    """Write what was planned; return the runs that were written, and keep the states of all."""
    values = _values(storage, runs, now, uuid4())  # the same for all tries: any of them may commit

    def call() -> Any:
        with storage.connection() as connection:
            return json_of(execute(connection, storage.sql(_SETTLE), values)[BEGIN_STATEMENTS])

    try:
        answer = retry_if_safe(call, unless=(LOCK_TIMEOUT,))
    except BaseException:
        _put_back(states, runs)
        raise
    storage.observe_earlier_db_time(answer["now"])
    written = [runs[m - 1] for m in answer["written"] or ()]
    done = {run.run_id for run in written}
    _put_back(states, [run for run in runs if run.run_id not in done])
    known = {run.run_id: (run.known, len(run.texts.run)) for run in written if run.known is not None}
    after = {run_id: KnownState(before.revision + entries, before.state) for run_id, (before, entries) in known.items()}
    keep_states(storage, states, after)
    return written


def _put_back(states: PlanStates, runs: Sequence[_Run]) -> None:
    for run in runs:
        if run.known is not None:
            run.known.state.roll_back()
            states.put(run.run_id, *run.known)


def _values(storage: PostgresStorage, runs: list[_Run], now: datetime, commit_id: UUID) -> tuple[Any, ...]:
    """Return the arguments of `settle_runs`."""
    places = sorted(range(len(runs)), key=lambda i: (runs[i].queue, i))
    entries = [f'{{"m":{i + 1},{entry}' for i in places for entry in runs[i].texts.queue]
    entries += [f'{{"m":{i},{entry}' for i, run in enumerate(runs, 1) for entry in run.texts.run]
    changed = [f'{{"m":{i},{run.texts.row}' for i, run in enumerate(runs, 1)]
    settled = [f'{{"m":{i},{row}' for i, run in enumerate(runs, 1) for row in run.texts.settled]
    return (
        commit_id,
        now,
        storage.clock is not None,
        names(run.run_id for run in runs),
        names(run.queue for run in runs),
        numbers(None if run.known is None else run.known.revision for run in runs),
        "{" + ",".join(["t" if run.texts.ends else "f" for run in runs]) + "}",
        to_json([_claim(i, member.settlement.ref) for i, run in enumerate(runs, 1) for member in run.members]).decode(),
        f"[{','.join(entries)}]",
        f"[{','.join(changed)}]",
        f"[{','.join(settled)}]" if settled else None,
    )


def _claim(m: int, ref: ClaimRef) -> Row:
    return {"m": m, "key": ref.runnable_key, "claim_id": ref.claim_id, "token_hash": ref.token_hash}


def _run_row(run: _Run) -> Row:
    """Return the changed columns of a run's row."""
    return {
        "status": run.status,
        "planned": sum(runnable.attempt_number == 1 for runnable in run.runnables.values()),
        "applied": len(run.applied),
        "manual_state": rows.manual_row(manual_state(run.pause)) if run.pause is not None else None,
        "terminal_digest": None if run.end is None else end_digest(run.end.status, run.end.error),
    }


def _settled_rows(run: _Run) -> list[Row]:
    """Return the changed columns of the rows of settled attempts."""
    return [
        {
            "runnable_key": key,
            "outcome_digest": run.settled[key].outcome_digest,
            "applied_digest": application_digest(fact.result, fact.transition),
        }
        for key, fact in run.applied.items()
    ]


def _require(plain: bool) -> None:
    if not plain:
        raise _NotPlainError
