"""`PostgresDispatchStore`: claims, starts, settlements, decisions and lists of attempts of one journal.

A claim is one call of `claim_attempts`. Starts and settlements have a fast way each (`start_template.py`,
`settle_fast.py`); what it leaves goes the general way: lock, read, fold and write in one commit. Rules are the fold's.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, LiteralString
from uuid import uuid4

from squid_dagster.journal.contract.command_target import CommandDecision, CommandTarget
from squid_dagster.journal.contract.dispatch_store import (
    DEFAULT_LEASE,
    Answer,
    Claim,
    ClaimRef,
    Decision,
    Lineage,
    NewRun,
    Planner,
    PlanRequest,
    Settlement,
    Suspects,
    check_claim,
    check_lease,
    check_reason,
    hash_token,
    new_claims,
)
from squid_dagster.journal.plan_state.cache import KnownState, PlanStates, fold_planned
from squid_dagster.journal.postgres.connection.failures import NotNew, retry_if_safe
from squid_dagster.journal.postgres.connection.message import execute, json_of
from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.connection.session_settings import BEGIN
from squid_dagster.journal.postgres.connection.sqlstates import LOCK_TIMEOUT
from squid_dagster.journal.postgres.dispatch.attempt_queries import expired_attempts, visible_attempts
from squid_dagster.journal.postgres.dispatch.decisions import command, decide, start_runs
from squid_dagster.journal.postgres.dispatch.lane_marks import QueueMarks
from squid_dagster.journal.postgres.dispatch.locked_runs import LockedRuns
from squid_dagster.journal.postgres.dispatch.run_states import keep_states, read_locked_states
from squid_dagster.journal.postgres.dispatch.settle_fast import settle_fast
from squid_dagster.journal.postgres.dispatch.settle_template import SettleTemplates
from squid_dagster.journal.postgres.dispatch.start_template import StartTemplates
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.transaction import OneCommit, Transaction, names, texts
from squid_dagster.journal.postgres.views.row_changes import LockTargets, Units
from squid_dagster.journal.postgres.views.rows import attempt_from_row
from squid_dagster.journal.settlement.first_answers import with_first_answers
from squid_dagster.journal.settlement.group import Group, call_planner, judge
from squid_dagster.journal.settlement.member_facts import (
    FactOf,
    dead_letter_fact,
    heartbeat_fact,
    make_claim,
    preview,
    release_fact,
    settle_fact,
)
from squid_dagster.journal.settlement.rounds import Write, answer_in_rounds, concerns_all, outcome_bytes
from squid_dagster.limits import MAX_CLAIMS
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.errors import StorageRefused, StorageUnavailable
from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.folds.attempt import Attempt, Suspicion
from squid_dagster.protocol.threads import run_thread

logger = redacting_logger(__name__)

_CLAIM: LiteralString = """SELECT {schema}.claim_attempts(%s::uuid, %s::text, %s::text, %s::interval, %s::text[],
    %s::text[], %s::text[], %s::timestamptz, %s::integer, %s::boolean, %s::json)"""
_CLAIM_AND_COMMIT: LiteralString = BEGIN + _CLAIM + "; COMMIT"
_MOST_CLAIMED = 20_000
_TOO_LARGE = ("54", "XX")  # SQLSTATE classes: a value is larger than Postgres can hold; an internal error


@checks_arguments
class PostgresDispatchStore:
    """`DispatchStore` on a `PostgresStorage`."""

    def __init__(self, storage: PostgresStorage) -> None:
        """Bind to a storage."""
        self._storage = storage
        self._start_templates = StartTemplates(storage.max_fact_bytes)
        self._states = PlanStates()
        self._settle_templates = SettleTemplates(storage.max_fact_bytes)
        self._claimed: OrderedDict[str, Attempt] = OrderedDict()  # by claim id, so that the fast way does not read them
        self._marks = QueueMarks()
        self._locked = LockedRuns(storage)

    def claim(
        self,
        queue: str,
        owner_id: str,
        *,
        limit: int = 1,
        lease: timedelta = DEFAULT_LEASE,
        definitions: Collection[str] | None = None,
        suspects: Suspects | None = None,
    ) -> list[Claim]:
        """Claim up to `limit` attempts, as the contract says."""
        check_claim(queue, owner_id, limit, lease, definitions)
        claims: list[Claim] = []
        most = limit
        while len(claims) < limit:
            asked = min(limit - len(claims), most)
            try:
                claimed, dead = self._claim(queue, owner_id, asked, lease, definitions, suspects)
            except (StorageRefused, StorageUnavailable) as error:
                if most == 1 or not (error.sqlstate or "").startswith(_TOO_LARGE):
                    raise
                most //= 2  # the attempts are too large for one answer
                continue
            claims += claimed
            may_be_suspect = bool(claims) and suspects is not None  # the next one, which is claimed alone
            if may_be_suspect or (not dead and len(claimed) < asked):
                break
        return claims

    def _claim(
        self,
        queue: str,
        owner_id: str,
        limit: int,
        lease: timedelta,
        definitions: Collection[str] | None,
        suspects: Suspects | None,
    ) -> tuple[list[Claim], int]:
        keys = None if definitions is None else texts(frozenset(definitions))
        lanes = self._marks.of(queue, keys)
        marks = lanes.text()
        tokens = dict(new_claims(limit))
        values = (
            uuid4(),
            queue,
            owner_id,
            lease,
            names(tokens),
            names(map(hash_token, tokens.values())),
            keys,
            self._storage.bound_now,
            None if suspects is None else int(suspects.worst),
            suspects is not None and suspects.alone,
            marks,
        )

        def call() -> dict[str, Any]:
            with self._storage.connection() as connection:
                return dict(json_of(execute(connection, self._storage.sql(_CLAIM_AND_COMMIT), values)[-2]))

        began = monotonic()
        answer = retry_if_safe(call)
        lanes.move(answer.get("marks"), monotonic() - began if marks is None else None)
        attempts = [attempt_from_row(row) for row in answer["claimed"] or ()]
        if suspects is not None and "taken" in answer:
            suspects.taken, suspects.passed_over = Suspicion(answer["taken"]), Suspicion(answer["passed_over"])
        elif suspects is not None:
            suspects.presume(attempts)
        self._claimed.update((attempt.claim_id or "", attempt) for attempt in attempts)
        while len(self._claimed) > _MOST_CLAIMED:
            self._claimed.popitem(last=False)
        return [make_claim(attempt, tokens) for attempt in attempts], answer["dead"]

    def heartbeat(self, refs: Sequence[ClaimRef], lease: timedelta = DEFAULT_LEASE) -> list[Answer]:
        """Extend leases, as the contract says."""
        check_lease(lease)
        return self._group(refs, lambda i, attempt, now: heartbeat_fact(attempt, refs[i], lease, now))

    def release(self, refs: Sequence[ClaimRef], reason: str | None = None) -> list[Answer]:
        """Release attempts, as the contract says."""
        check_reason(reason)
        return self._group(refs, lambda i, attempt, now: release_fact(attempt, refs[i], reason, now))

    def settle(self, settlements: Sequence[Settlement], plan: Planner | None = None) -> list[Answer]:
        """Record outcomes and what follows from them, as the contract says."""
        return self._in_rounds(
            [settlement.ref for settlement in settlements],
            lambda places: self._settle([settlements[i] for i in places], plan),
            lambda i: outcome_bytes(settlements[i].outcome),
        )

    def _settle(self, settlements: Sequence[Settlement], plan: Planner | None) -> list[Answer]:
        answers = self._settle_fast(settlements, plan) if plan is not None else {}
        rest = [i for i in range(len(settlements)) if i not in answers]
        general = self._group(
            [settlements[i].ref for i in rest],
            lambda k, attempt, now: settle_fact(attempt, settlements[rest[k]], now),
            plan,
        )
        answers.update(zip(rest, general, strict=True))
        for i, settlement in enumerate(settlements):
            if not answers[i].unavailable:
                self._claimed.pop(settlement.ref.claim_id, None)
        return with_first_answers(self._storage, settlements, [answers[i] for i in range(len(settlements))])

    def _settle_fast(self, settlements: Sequence[Settlement], plan: Planner) -> dict[int, Answer]:
        """Write the plain completions; return no answers if the group is refused: the general way decides then."""
        try:
            return settle_fast(self._storage, self._states, self._settle_templates, self._claimed, settlements, plan)
        except Exception as error:
            if concerns_all(error):
                raise
            logger.debug("a group takes the general way: %s: %s", type(error).__name__, error)
            return {}

    def settle_within(
        self, connection: PgConnection, settlements: Sequence[Settlement], plan: Planner | None = None
    ) -> list[Answer]:
        """Record outcomes in the transaction that is open on `connection`, and commit it: both happen, or neither.

        If a member is refused, nothing is committed: the caller rolls back.
        """
        refs = [settlement.ref for settlement in settlements]
        answers, states = self._write_group(
            self._storage.join_transaction(connection),
            refs,
            lambda i, attempt, now: settle_fact(attempt, settlements[i], now),
            plan,
            OneCommit(),
            all_or_nothing=True,
        )
        keep_states(self._storage, self._states, states)
        return answers

    def start_runs(self, runs: Sequence[NewRun]) -> datetime:
        """Write new runs, as the contract says."""
        at = self._start_fast(runs)
        return start_runs(self._storage, runs) if at is None else at

    def _start_fast(self, runs: Sequence[NewRun]) -> datetime | None:
        """Write new runs by the template of their kind, in one message; return the time of their facts.

        Return None without writing if they fit no template, or one of them exists.
        """
        now = self._storage.estimate_db_now()
        new = None if now is None or not runs else self._start_templates.fill(runs, now)
        if now is None or new is None:
            return None
        commit_id = uuid4()  # id and time are those of all tries: any of them may commit

        def once() -> None:
            with self._storage.transaction() as transaction:
                transaction.start(new, now, commit_id)

        try:
            retry_if_safe(once)
        except NotNew:
            return None
        return now

    def decide(
        self,
        run_ids: Collection[str],
        decision: Decision,
        *,
        fence: ClaimRef | None = None,
        lineage: Lineage | None = None,
    ) -> list[Fact]:
        """Lock and read runs and write what follows, as the contract says."""
        return decide(self._storage, run_ids, decision, fence, lineage)

    def command(self, targets: Sequence[CommandTarget], decision: CommandDecision) -> list[Fact]:
        """Lock runs and write what follows from a command, as the contract says."""
        return command(self._storage, self._states, targets, decision)

    def visible(
        self, queue: str, limit: int = MAX_CLAIMS, *, definitions: Collection[str] | None = None
    ) -> list[Attempt]:
        """Show unclaimed attempts that are due, in claim order."""
        return visible_attempts(self._storage, queue, limit, definitions)

    def expired(
        self, queue: str, limit: int = MAX_CLAIMS, *, definitions: Collection[str] | None = None
    ) -> list[Attempt]:
        """Show claimed attempts whose lease has run out."""
        return expired_attempts(self._storage, queue, limit, definitions)

    def dead_letter_expired(self, queue: str, limit: int = MAX_CLAIMS) -> list[str]:
        """Dead-letter attempts that were delivered too often, without claiming."""
        spent = expired_attempts(self._storage, queue, limit, None, spent=True)
        refs = [ClaimRef(queue, a.run_id, a.runnable_key, a.claim_id or "", "") for a in spent]
        answers = self._group(refs, lambda _, attempt, now: dead_letter_fact(attempt, now))
        return [a.ref.runnable_key for a in answers if a.attempt is not None and a.attempt.status == "dead_lettered"]

    def _group(self, refs: Sequence[ClaimRef], fact_of: FactOf, plan: Planner | None = None) -> list[Answer]:
        return self._in_rounds(refs, lambda places: self._write_round(refs, places, fact_of, plan))

    def _in_rounds(
        self, refs: Sequence[ClaimRef], write: Write, size_of: Callable[[int], int] = lambda _: 0
    ) -> list[Answer]:
        def check_and_write(places: list[int]) -> Sequence[Answer]:
            self._locked.check({refs[i].run_id for i in places})
            return write(places)

        def find_locked(places: list[int]) -> set[int]:
            locked = self._locked.find({refs[i].run_id for i in places})
            return {i for i in places if refs[i].run_id in locked}

        return answer_in_rounds(refs, check_and_write, size_of, find_locked)

    def _write_round(
        self, refs: Sequence[ClaimRef], places: list[int], fact_of: FactOf, plan: Planner | None
    ) -> list[Answer]:
        mine, commit = [refs[i] for i in places], OneCommit[list[Answer]]()

        def fact(k: int, attempt: Attempt, now: datetime) -> Fact | None:
            return fact_of(places[k], attempt, now)

        def once() -> list[Answer]:
            with self._storage.transaction() as transaction:
                answers, states = self._write_group(transaction, mine, fact, plan, commit)
            keep_states(self._storage, self._states, states)
            return answers

        return retry_if_safe(once, unless=(LOCK_TIMEOUT,))

    def _write_group(
        self,
        transaction: Transaction,
        refs: Sequence[ClaimRef],
        fact_of: FactOf,
        plan: Planner | None,
        commit: OneCommit[list[Answer]],
        *,
        all_or_nothing: bool = False,
    ) -> tuple[list[Answer], dict[str, KnownState]]:
        """Write a group once; return its answers, and the planner's states after it."""
        runs = {ref.run_id for ref in refs}
        units = transaction.lock_group(LockTargets(runs, set(), {(ref.run_id, ref.runnable_key) for ref in refs}))
        if commit.is_made(transaction):
            return commit.answer, {}
        group = judge(refs, fact_of, lambda run_id: units.units[run_id].dispatch, units.now)
        states = self._plan(transaction, units, group, plan) if plan is not None else {}
        verified = group.check(self._storage.max_fact_bytes)
        if all_or_nothing and group.errors:
            return _answers(refs, units, group), {}
        receipt = transaction.fold_and_write(
            units, verified, commit.id, folded=lambda: commit.note(_answers(refs, units, group))
        )
        return commit.answer, {
            run_id: KnownState(receipt[run_thread(run_id)], state)
            for run_id, (_, state) in states.items()
            if run_thread(run_id) in receipt
        }

    def _plan(self, transaction: Transaction, units: Units, group: Group, plan: Planner) -> dict[str, KnownState]:
        """Plan for each run that something was settled for; return the states after it. A refused run is unchanged."""
        members = group.members(group.facts)
        states, partly_folded = read_locked_states(transaction, self._states, members), set[str]()
        for _, state in states.values():
            state.begin()

        def plan_of(run_id: str, places: list[int], max_fact_bytes: int | None) -> list[Fact]:
            after = preview(units.units[run_id].dispatch, (group.facts[i] for i in places))
            attempts = tuple(after.attempts[group.refs[i].runnable_key] for i in places)
            state = states[run_id].state
            state.roll_back()  # it may be the second time
            state.begin()
            before = state.facts
            facts = call_planner(plan, PlanRequest(run_id, state, attempts, after.attempts, units.now, max_fact_bytes))
            if not fold_planned(state, before, facts, run_id):
                partly_folded.add(run_id)
            return facts

        group.plan(members, plan_of)
        return {run_id: known for run_id, known in states.items() if run_id not in partly_folded}


def _answers(refs: Sequence[ClaimRef], units: Units, group: Group) -> list[Answer]:
    return [
        Answer(ref, error=group.errors[i])
        if i in group.errors
        else Answer(ref, units.units[ref.run_id].dispatch.attempts.get(ref.runnable_key))
        for i, ref in enumerate(refs)
    ]
