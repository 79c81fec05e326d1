"""Dispatch on Postgres, set-based: a claim is one call; everything else is one locked, folded, combined commit."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, LiteralString
from uuid import UUID, uuid4

from squid_dagster.journal.contract.command_target import CommandDecision, CommandedRun, CommandTarget, first_signal
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
    check_definitions,
    check_lease,
    check_reason,
    hash_token,
    new_claims,
)
from squid_dagster.journal.contract.storage import Append, Verified, check_appends, check_revision
from squid_dagster.journal.plan_state.cache import KnownState, PlanStates, fold_planned
from squid_dagster.journal.plan_state.checkpoints import keep_checkpoint, state_of
from squid_dagster.journal.postgres.connection.failures import NotNew, retry_if_safe
from squid_dagster.journal.postgres.connection.message import execute, json_of
from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.connection.session_settings import BEGIN
from squid_dagster.journal.postgres.connection.sqlstates import LOCK_TIMEOUT
from squid_dagster.journal.postgres.dispatch.lane_marks import QueueMarks
from squid_dagster.journal.postgres.dispatch.locked_runs import LockedRuns
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
    check_held,
    dead_letter_fact,
    group_appends,
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
from squid_dagster.protocol.errors import SquidError, StorageRefused, StorageUnavailable
from squid_dagster.protocol.facts import Fact
from squid_dagster.protocol.folds.attempt import Attempt, Suspicion
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.threads import check_part, parse_thread, run_thread

logger = redacting_logger(__name__)

_CLAIM: LiteralString = """SELECT {schema}.claim_attempts(%s::uuid, %s::text, %s::text, %s::interval, %s::text[],
    %s::text[], %s::text[], %s::timestamptz, %s::integer, %s::boolean, %s::json)"""
_CLAIM_AND_COMMIT: LiteralString = BEGIN + _CLAIM + "; COMMIT"
# attempts_due, lane by lane, as claim_attempts goes. Lanes are few: those of other definitions are found, not read.
_VISIBLE: LiteralString = """WITH RECURSIVE lane (definition, rank) AS (
        (SELECT a.definition, a.rank FROM {schema}.attempts a
          WHERE a.queue = %(queue)s AND a.due_at IS NOT NULL ORDER BY a.definition, a.rank LIMIT 1)
        UNION ALL
        SELECT n.definition, n.rank FROM lane l CROSS JOIN LATERAL (
            SELECT a.definition, a.rank FROM {schema}.attempts a
             WHERE a.queue = %(queue)s AND a.due_at IS NOT NULL AND (a.definition, a.rank) > (l.definition, l.rank)
             ORDER BY a.definition, a.rank LIMIT 1) n
    )
    SELECT to_json(d) FROM lane CROSS JOIN LATERAL (
        SELECT * FROM {schema}.attempts a
         WHERE a.queue = %(queue)s AND a.definition = lane.definition AND a.rank = lane.rank AND a.due_at IS NOT NULL
           AND a.due_at <= (SELECT coalesce(%(now)s, clock_timestamp())) AND a.status <> 'claimed'
         ORDER BY a.due_at, a.position LIMIT %(limit)s) d
     WHERE %(definitions)s::text[] IS NULL OR lane.definition = ANY (%(definitions)s)
     ORDER BY d.rank, d.due_at, d.position LIMIT %(limit)s"""
# attempts_leased; reads past those of other definitions
_EXPIRED: LiteralString = """SELECT to_json(a) FROM {schema}.attempts a
    WHERE queue = %(queue)s AND status = 'claimed' AND lease_until <= (SELECT coalesce(%(now)s, clock_timestamp()))
      AND due_at IS NOT NULL AND (deliveries >= max_deliveries OR NOT %(spent)s)
      AND (%(definitions)s::text[] IS NULL OR definition = ANY (%(definitions)s))
    ORDER BY lease_until, position LIMIT %(limit)s"""

_MOST_CLAIMED = 20_000
_TOO_LARGE = ("54", "XX")  # what Postgres says when a value is larger than it can hold; and of defects


@checks_arguments
class PostgresDispatchStore:
    """`DispatchStore` on a `PostgresStorage`."""

    def __init__(self, storage: PostgresStorage) -> None:
        """Bind to a storage."""
        self._storage = storage
        self._start_templates = StartTemplates(storage.max_fact_bytes)
        self._states = PlanStates()
        self._settle_templates = SettleTemplates(storage.max_fact_bytes)
        self._claimed: OrderedDict[str, Attempt] = OrderedDict()  # by claim id: what the fast way need not read
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
                found, dead = self._claim(queue, owner_id, asked, lease, definitions, suspects)
            except (StorageRefused, StorageUnavailable) as error:
                if most == 1 or not (error.sqlstate or "").startswith(_TOO_LARGE):
                    raise
                most //= 2  # the attempts are too large to be answered at once
                continue
            claims += found
            comes_alone = bool(claims) and suspects is not None  # what comes next may have to
            if comes_alone or (not dead and len(found) < asked):
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
        known = None if definitions is None else texts(frozenset(definitions))
        lanes = self._marks.of(queue, known)
        marks = lanes.text()
        tokens = dict(new_claims(limit))
        values = (
            uuid4(),
            queue,
            owner_id,
            lease,
            names(tokens),
            names(map(hash_token, tokens.values())),
            known,
            self._now(),
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
        """Give attempts back, as the contract says."""
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
        found = self._group(
            [settlements[i].ref for i in rest],
            lambda k, attempt, now: settle_fact(attempt, settlements[rest[k]], now),
            plan,
        )
        answers.update(zip(rest, found, strict=True))
        for i, settlement in enumerate(settlements):
            if not answers[i].unavailable:
                self._claimed.pop(settlement.ref.claim_id, None)
        return with_first_answers(self._storage, settlements, [answers[i] for i in range(len(settlements))])

    def _settle_fast(self, settlements: Sequence[Settlement], plan: Planner) -> dict[int, Answer]:
        """Write what is plain. What is refused as a whole writes nothing, and the general way judges each member."""
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
        """Record outcomes in the transaction that is open on `connection`, and commit it; so that both happen, or none.

        When a member is refused, nothing is committed: the caller rolls back.
        """
        refs = [settlement.ref for settlement in settlements]
        answers, known = self._write_group(
            self._storage.join_transaction(connection),
            refs,
            lambda i, attempt, now: settle_fact(attempt, settlements[i], now),
            plan,
            OneCommit(),
            all_or_nothing=True,
        )
        self._keep(known)
        return answers

    def start_runs(self, runs: Sequence[NewRun]) -> datetime:
        """Write new runs, as the contract says."""
        at = self._start_fast(runs)
        if at is not None:
            return at
        commit = OneCommit[datetime]()
        return retry_if_safe(lambda: self._start_once(runs, commit))

    def _start_once(self, runs: Sequence[NewRun], commit: OneCommit[datetime]) -> datetime:
        run_ids = {run.run_id for run in runs}
        with self._storage.transaction() as transaction:
            units = transaction.lock(LockTargets(run_ids, set(), set()))
            if commit.is_made(transaction):
                return commit.answer
            facts = [fact for run in runs for fact in run.facts(units.now)]
            commit.note(units.now)
            if facts:
                self._write(transaction, units, self._verified(facts, run_ids), commit.id, hints=_queues(facts))
            return units.now

    def _start_fast(self, runs: Sequence[NewRun]) -> datetime | None:
        """Write new runs by the template of their kind, in one message; return the time that they are written with.

        Return None without writing if they fit no template, or one of them exists.
        """
        now = self._storage.estimate_db_now()
        new = None if now is None or not runs else self._start_templates.fill(runs, now)
        if now is None or new is None:
            return None
        commit_id = uuid4()  # of all tries, as the time is: it does not matter which of them commits

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
        commit = OneCommit[list[Fact]]()
        held = {(fence.run_id, fence.runnable_key)} if fence is not None else set[tuple[str, str]]()

        def once() -> list[Fact]:
            with self._storage.transaction() as transaction:
                units = transaction.lock(LockTargets(set(run_ids), set(), held))
                if commit.is_made(transaction):
                    return commit.answer
                if fence is not None:
                    check_held(units.units[fence.run_id], fence, units.now)
                facts = commit.note(list(decision(_read(transaction, units, run_ids, lineage), units.now)))
                if facts:
                    self._write(transaction, units, self._verified(facts), commit.id, hints=_queues(facts))
                return facts

        return retry_if_safe(once)

    def _verified(self, facts: Sequence[Fact], new: Collection[str] = ()) -> list[Verified]:
        threads = {run_thread(run_id) for run_id in new}
        appends = [Append(one.thread, one.facts, 0 if one.thread in threads else None) for one in group_appends(facts)]
        return check_appends(appends, self._storage.max_fact_bytes)

    def command(self, targets: Sequence[CommandTarget], decision: CommandDecision) -> list[Fact]:
        """Lock runs and write what follows from a command, as the contract says."""
        commit = OneCommit[list[Fact]]()
        return retry_if_safe(lambda: self._command_once(targets, decision, commit))

    def _command_once(
        self, targets: Sequence[CommandTarget], decision: CommandDecision, commit: OneCommit[list[Fact]]
    ) -> list[Fact]:
        with self._storage.transaction() as transaction:
            keys = {(target.run_id, key) for target in targets for key in target.keys}
            units = transaction.lock(LockTargets({target.run_id for target in targets}, set(), keys))
            if commit.is_made(transaction):
                return commit.answer
            known = self._read_states(transaction, [target.run_id for target in targets])
            runs = {
                target.run_id: _commanded(transaction, units, target, known[target.run_id].state) for target in targets
            }
            for _, state in known.values():
                state.begin()
            facts: Sequence[Fact] = ()
            try:
                facts = decision(runs, units.now)
            finally:  # what is written is folded below, whether or not the decision has done so
                for run_id, (revision, state) in known.items():
                    state.roll_back()
                    if not facts:
                        self._states.put(run_id, revision, state)
            written = commit.note(list(facts))
            if not written:
                return written
            receipt = self._write(transaction, units, self._verified(written), commit.id, hints=_queues(written))
        for run_id, (_, state) in known.items():
            for fact in written:
                if fact.thread == run_thread(run_id):
                    state.add_fact(fact)
        self._keep(
            {run_id: KnownState(receipt.get(run_thread(run_id), rev), state) for run_id, (rev, state) in known.items()}
        )
        return written

    def _keep(self, known: Mapping[str, KnownState]) -> None:
        """Keep states that stand for what was committed: in memory, and those of long runs beside their threads."""
        for run_id, (revision, state) in known.items():
            keep_checkpoint(self._storage, run_id, revision, state)
            self._states.put(run_id, revision, state)

    def visible(
        self, queue: str, limit: int = MAX_CLAIMS, *, definitions: Collection[str] | None = None
    ) -> list[Attempt]:
        """Show unclaimed attempts whose time has come, in claim order."""
        return self._attempts(_VISIBLE, queue, limit, definitions)

    def expired(
        self, queue: str, limit: int = MAX_CLAIMS, *, definitions: Collection[str] | None = None
    ) -> list[Attempt]:
        """Show claimed attempts whose lease has run out."""
        return self._attempts(_EXPIRED, queue, limit, definitions, spent=False)

    def dead_letter_expired(self, queue: str, limit: int = MAX_CLAIMS) -> list[str]:
        """Dead-letter attempts that were delivered too often, without claiming."""
        spent = self._attempts(_EXPIRED, queue, limit, None, spent=True)
        refs = [ClaimRef(queue, a.run_id, a.runnable_key, a.claim_id or "", "") for a in spent]
        answers = self._group(refs, lambda _, attempt, now: dead_letter_fact(attempt, now))
        return [a.ref.runnable_key for a in answers if a.attempt is not None and a.attempt.status == "dead_lettered"]

    def _now(self) -> datetime | None:
        return self._storage.clock.now() if self._storage.clock is not None else None

    def _attempts(
        self, text: LiteralString, queue: str, limit: int, definitions: Collection[str] | None, **more: object
    ) -> list[Attempt]:
        check_part(queue, "queue")
        check_revision(limit, "limit")
        check_definitions(definitions)
        known = None if definitions is None else list(definitions)
        values = {"queue": queue, "now": self._now(), "limit": limit, "definitions": known, **more}
        return [attempt_from_row(row[0]) for row in self._storage.rows(text, values)]

    def _group(self, refs: Sequence[ClaimRef], fact_of: FactOf, plan: Planner | None = None) -> list[Answer]:
        return self._in_rounds(refs, lambda places: self._write_round(refs, places, fact_of, plan))

    def _in_rounds(
        self, refs: Sequence[ClaimRef], write: Write, size_of: Callable[[int], int] = lambda _: 0
    ) -> list[Answer]:
        def look_and_write(places: list[int]) -> Sequence[Answer]:
            self._locked.check({refs[i].run_id for i in places})
            return write(places)

        def find_locked(places: list[int]) -> set[int]:
            locked = self._locked.find({refs[i].run_id for i in places})
            return {i for i in places if refs[i].run_id in locked}

        return answer_in_rounds(refs, look_and_write, size_of, find_locked)

    def _write_round(
        self, refs: Sequence[ClaimRef], places: list[int], fact_of: FactOf, plan: Planner | None
    ) -> list[Answer]:
        mine, commit = [refs[i] for i in places], OneCommit[list[Answer]]()

        def fact(k: int, attempt: Attempt, now: datetime) -> Fact | None:
            return fact_of(places[k], attempt, now)

        def once() -> list[Answer]:
            with self._storage.transaction() as transaction:
                answers, known = self._write_group(transaction, mine, fact, plan, commit)
            self._keep(known)
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
        """Write a group once; return its answers, and the planner's states that it leaves behind."""
        runs = {ref.run_id for ref in refs}
        units = transaction.lock_group(LockTargets(runs, set(), {(ref.run_id, ref.runnable_key) for ref in refs}))
        if commit.is_made(transaction):
            return commit.answer, {}
        group = judge(refs, fact_of, lambda run_id: units.units[run_id].dispatch, units.now)
        known = self._plan(transaction, units, group, plan) if plan is not None else {}
        verified = group.check(self._storage.max_fact_bytes)
        if all_or_nothing and group.errors:
            return _answers(refs, units, group), {}
        receipt = self._write(
            transaction, units, verified, commit.id, lambda: commit.note(_answers(refs, units, group))
        )
        return commit.answer, {
            run_id: KnownState(receipt[run_thread(run_id)], state)
            for run_id, (_, state) in known.items()
            if run_thread(run_id) in receipt
        }

    def _write(
        self,
        transaction: Transaction,
        units: Units,
        verified: list[Verified],
        commit_id: UUID,
        folded: Callable[[], object] = lambda: None,
        hints: Sequence[str] = (),
    ) -> dict[str, int]:
        """Fold facts into the rows at hand and write both; `folded` is called in between. Return the receipt."""
        transaction.lock_more(units, _touched(verified))
        units.fold(verified)
        folded()
        return transaction.write(verified, units.changes(), commit_id, hints=hints) if verified else {}

    def _plan(self, transaction: Transaction, units: Units, group: Group, plan: Planner) -> dict[str, KnownState]:
        """Ask the planner about each run that something was settled for; return the states that it leaves behind.

        A run that it refuses is left as it was.
        """
        members = group.members(group.facts)
        known, odd = self._read_states(transaction, members), set[str]()
        for _, state in known.values():
            state.begin()

        def plan_of(run_id: str, places: list[int], max_fact_bytes: int | None) -> list[Fact]:
            after = preview(units.units[run_id].dispatch, (group.facts[i] for i in places))
            attempts = tuple(after.attempts[group.refs[i].runnable_key] for i in places)
            state = known[run_id].state
            state.roll_back()  # it may be the second time
            state.begin()
            before = state.facts
            facts = call_planner(plan, PlanRequest(run_id, state, attempts, after.attempts, units.now, max_fact_bytes))
            if not fold_planned(state, before, facts, run_id):
                odd.add(run_id)
            return facts

        group.plan(members, plan_of)
        return {run_id: each for run_id, each in known.items() if run_id not in odd}

    def _read_states(self, transaction: Transaction, run_ids: Iterable[str]) -> dict[str, KnownState]:
        """Bring the planner's states of locked runs up to date; it costs what was appended since the last time."""
        known = {run_id: self._states.take(run_id) or KnownState(0, PlanState()) for run_id in run_ids}
        cold = [run_thread(run_id) for run_id, each in known.items() if not each.revision]
        for thread, checkpoint in (transaction.read_checkpoints(cold) if cold else {}).items():
            known[parse_thread(thread).part] = state_of(*checkpoint)
        news = transaction.read_new_entries({run_thread(run_id): each.revision for run_id, each in known.items()})
        odd: list[str] = []
        for run_id, (revision, state) in known.items():
            for entry in news[run_thread(run_id)]:
                state.add(entry)
                revision = entry.seq
            known[run_id] = KnownState(revision, state)
            if not state.plain:
                odd.append(run_thread(run_id))
        for thread, entries in (transaction.read_new_entries(dict.fromkeys(odd, 0)) if odd else {}).items():
            known[parse_thread(thread).part] = KnownState(0, PlanState.of(RunProjection.fold(entries)))
        return known


def _read(
    transaction: Transaction, units: Units, run_ids: Collection[str], lineage: Lineage | None
) -> dict[str, RunUnit]:
    """Return locked runs as all of their facts tell them; for a lineage, as far as it asks."""
    links = None if lineage is None else transaction.read_links(lineage.run_id, lineage.child_key)
    if lineage is None or links is None:
        return transaction.read_runs(run_ids)
    parent = units.units[lineage.run_id].run
    brief = RunProjection.fold(links)
    if len(brief.children) != len(links):  # one of them cannot be read
        return transaction.read_runs(run_ids)
    brief.run_id, brief.terminal_status, brief.quarantine = parent.run_id, parent.terminal_status, parent.quarantine
    brief.start = transaction.read_start(lineage.run_id)
    found = {lineage.run_id: brief}
    for run_id in run_ids:
        beginning = None if run_id in found else transaction.read_beginning(run_id)
        if beginning is not None:
            found[run_id] = beginning
    rest = [run_id for run_id in run_ids if run_id not in found]
    whole = transaction.read_runs(rest) if rest else {}
    return {**whole, **{run_id: RunUnit(run) for run_id, run in found.items()}}


def _commanded(transaction: Transaction, units: Units, target: CommandTarget, state: PlanState) -> CommandedRun:
    """Return a locked run with what a command asks for."""
    run_id, signal = target.run_id, target.signal
    if target.dead_letters and state.planned:
        dead = transaction.find_dead_letters(run_id, list(state.planned))
        transaction.lock_more(units, LockTargets({run_id}, set(), {(run_id, key) for key in dead}))
    if target.visit is not None:
        found = transaction.find_visit(run_id, target.visit)
        transaction.lock_more(units, LockTargets({run_id}, set(), {(run_id, key) for key in found}))
    history = () if signal is None else transaction.read_signals(run_id, signal.idempotency_key)
    return CommandedRun(state, units.units[run_id].dispatch, first_signal(history, signal))


def _queues(facts: Iterable[Fact]) -> list[str]:
    """Give the queues that workers are to be told about."""
    return sorted({fact.queue for fact in facts if fact.type == "attempt_scheduled"})


def _touched(verified: Iterable[Verified]) -> LockTargets:
    found = LockTargets()
    for one in verified:
        for fact in one.facts:
            found.add(fact)
    return found


def _answers(refs: Sequence[ClaimRef], units: Units, group: Group) -> list[Answer]:
    return [_answer(ref, units, group.errors.get(i)) for i, ref in enumerate(refs)]


def _answer(ref: ClaimRef, units: Units, error: SquidError | None) -> Answer:
    if error is not None:
        return Answer(ref, error=error)
    return Answer(ref, units.units[ref.run_id].dispatch.attempts.get(ref.runnable_key))
