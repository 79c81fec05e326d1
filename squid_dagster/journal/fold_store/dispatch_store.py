"""Dispatch on any storage: read what is new of a queue, decide, append if nobody else did meanwhile, else begin again.

A queue, the planner's states of its runs and where their keys are is kept as it was read last (`QueueIndex`,
`PlanStates`, `RunKeys`), so that a claim, a settled step and a command cost the same early and late in a run, and
beside few attempts and many. What is kept is never believed: each commit names the revisions that it was decided by.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum, auto
from itertools import islice
from threading import RLock

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
from squid_dagster.journal.contract.storage import Append, Storage, check_revision
from squid_dagster.journal.fold_store.queue_index import QueueIndex
from squid_dagster.journal.fold_store.run_keys import RunKeys
from squid_dagster.journal.fold_store.thread_folds import ThreadFolds
from squid_dagster.journal.plan_state.cache import KnownState, PlanStates
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
from squid_dagster.journal.settlement.rounds import answer_in_rounds, outcome_bytes
from squid_dagster.limits import MAX_CLAIMS
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.errors import Conflict
from squid_dagster.protocol.facts import AttemptClaimed, AttemptFailed, Fact, RunSignalReceived, RunTerminal
from squid_dagster.protocol.folds.attempt import Attempt, Suspicion, suspicion_of
from squid_dagster.protocol.folds.dispatch import RunDispatch
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run import RunProjection
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.threads import ThreadKind, check_part, dispatch_thread, parse_thread, run_thread

_MOST_RUNS = 2_000  # of which the keys of children and commands are kept


@checks_arguments
class FoldDispatchStore:
    """`DispatchStore` by fold and compare-and-append. Each conflict means that somebody else got on, so it ends."""

    def __init__(self, storage: Storage) -> None:
        """Bind to a storage."""
        self._storage = storage
        self._lock = RLock()  # held while what is kept is read on and looked at, never during a commit
        self._queues = ThreadFolds(storage, QueueIndex, sys.maxsize)
        self._states = PlanStates()
        self._keys = ThreadFolds(storage, RunKeys, _MOST_RUNS)

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
        while True:
            tokens = dict(new_claims(limit))
            with self._lock:
                revision, view = self._queues.read(dispatch_thread(queue))
                facts = self._claim_facts(view, owner_id, lease, definitions, tokens, suspects)
                taken = _claimed(view, facts)
            if not facts:
                return []
            try:
                self._storage.append(dispatch_thread(queue), facts, expected_rev=revision)
            except Conflict as conflict:
                self._doubt(conflict)
                continue
            return [make_claim(attempt, tokens) for attempt in taken]

    def _claim_facts(
        self,
        view: QueueIndex,
        owner_id: str,
        lease: timedelta,
        definitions: Collection[str] | None,
        tokens: dict[str, str],
        suspects: Suspects | None,
    ) -> list[Fact]:
        now = self._storage.now()
        facts: list[Fact] = []
        unused = list(tokens.items())
        counted: dict[tuple[str, str], int] = {}
        if suspects is not None:
            suspects.taken = suspects.passed_over = Suspicion.NONE
        for attempt in view.claimable(now, definitions):
            if not unused:
                break
            run = self._run(view, attempt.run_id)
            if run.stopped:
                continue
            spent = dead_letter_fact(attempt, now)
            if spent is not None:
                facts.append(spent)
                continue
            verdict = _suspect_verdict(attempt, suspects, anything_taken=len(unused) < len(tokens))
            if verdict is _Verdict.PASS_OVER:
                continue
            if verdict is _Verdict.STOP:
                break
            claim_id, token = unused.pop(0)
            key = (attempt.run_id, attempt.idempotency_key)
            counted[key] = counted[key] + 1 if key in counted else run.next_token(attempt.idempotency_key)
            alone = suspects is not None and suspects.alone and suspicion_of(attempt) is Suspicion.LAST
            facts.append(_claim_fact(attempt, owner_id, lease, claim_id, token, counted[key], now, alone))
            if verdict is _Verdict.TAKE_ALONE:
                break
        return facts

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
        refs = [settlement.ref for settlement in settlements]
        answers = self._group(
            refs,
            lambda i, attempt, now: settle_fact(attempt, settlements[i], now),
            plan,
            lambda i: outcome_bytes(settlements[i].outcome),
        )
        return with_first_answers(self._storage, settlements, answers)

    def start_runs(self, runs: Sequence[NewRun]) -> datetime:
        """Write new runs, as the contract says."""
        now = self._storage.now()
        facts = [fact for run in runs for fact in run.facts(now)]
        if facts:
            commit_in_order(self._storage, facts, {run_thread(run.run_id): 0 for run in runs})
        return now

    def decide(
        self,
        run_ids: Collection[str],
        decision: Decision,
        *,
        fence: ClaimRef | None = None,
        lineage: Lineage | None = None,
    ) -> list[Fact]:
        """Read runs and write what follows, as the contract says."""
        while True:
            revisions = self._fence_revision(fence)
            now = self._storage.now()  # before reading: what was true then is never judged by a later time
            units, seen = self._units(run_ids, fence, lineage)
            revisions |= seen
            if fence is not None:
                check_held(units[fence.run_id], fence, now)
            facts = list(decision(units, now))
            if not facts:
                return []
            try:
                commit_in_order(self._storage, facts, revisions)
            except Conflict as conflict:
                self._doubt(conflict)
                continue
            return facts

    def command(self, targets: Sequence[CommandTarget], decision: CommandDecision) -> list[Fact]:
        """Write what follows from a command, as the contract says."""
        by_id = {target.run_id: target for target in targets}
        while True:
            runs: dict[str, CommandedRun] = {}
            revisions: dict[str, int] = {}
            now = self._storage.now()  # before reading, as in `decide`
            with self._lock:  # states are lent
                for run_id, target in by_id.items():
                    seen, runs[run_id] = self._commanded(target)
                    revisions = seen | revisions  # of two looks at a queue, the earlier one counts
                facts = _decided(decision, runs, now)
            if not facts:
                return []
            try:
                commit_in_order(self._storage, facts, self._compared(revisions, facts))
            except Conflict as conflict:
                self._doubt(conflict)
                continue
            return facts

    def _commanded(self, target: CommandTarget) -> tuple[dict[str, int], CommandedRun]:
        """Return what a command asks for of a run, and the revisions of the threads that it was read from."""
        thread = run_thread(target.run_id)
        while True:
            revision, state = self._state(target.run_id)
            found = self._by_key(target, revision, state)
            if found is None:
                return self._whole(target)
            actual = self._storage.revision(thread)
            if actual == revision:  # so that all parts of it are of one time
                return found
            self._doubt(Conflict(thread, revision, actual))

    def _by_key(
        self, target: CommandTarget, revision: int, state: PlanState
    ) -> tuple[dict[str, int], CommandedRun] | None:
        """Return what a command asks for from what is kept; None if that does not tell, and the run is to be read."""
        run_id, thread = target.run_id, run_thread(target.run_id)
        if not state.plain or state.quarantined or state.start is None:
            return None
        revisions, dispatch = {thread: revision}, RunDispatch()
        if target.asks_for_attempts:
            queue = state.start.queue  # that of all work of the run
            if queue is None or state.terminal:  # attempts of ended runs leave the view
                return None
            revisions[dispatch_thread(queue)], view = self._queues.read(dispatch_thread(queue))
            dispatch = view.part(run_id, [*target.keys, *(state.planned if target.dead_letters else ())], target.visit)
            if dispatch.queue != queue or dispatch.stopped:
                return None
        first = None
        if target.signal is not None:
            seq = self._keys.read(thread)[1].signals.get(target.signal)
            history = () if seq is None else self._storage.read(thread, after=seq - 1, limit=1)
            first = first_signal((e.fact for e in history if isinstance(e.fact, RunSignalReceived)), target.signal)
        return revisions, CommandedRun(state, dispatch, first)

    def _whole(self, target: CommandTarget) -> tuple[dict[str, int], CommandedRun]:
        """Return what a command asks for from all facts of the run."""
        revisions: dict[str, int] = {}
        entries = self._storage.read_run(target.run_id)
        queue = RunUnit.fold(entries).dispatch.queue
        if target.asks_for_attempts and queue is not None:
            revisions[dispatch_thread(queue)] = self._storage.revision(dispatch_thread(queue))
            entries = self._storage.read_run(target.run_id)  # not older than the revision that is compared
        revisions[run_thread(target.run_id)] = revision_of(target.run_id, entries)
        return revisions, CommandedRun.of(RunUnit.fold(entries), target)

    def _compared(self, revisions: Mapping[str, int], facts: Iterable[Fact]) -> Mapping[str, int]:
        """Return the revisions that a commit depends on: where it cannot span threads, that of a queue only if nothing
        comes before it, since what is on record of a command is not to be refused."""
        if self._storage.atomic_across_threads or not any(_is_run(fact.thread) for fact in facts):
            return revisions
        return {thread: revision for thread, revision in revisions.items() if _is_run(thread)}

    def _units(
        self, run_ids: Collection[str], fence: ClaimRef | None, lineage: Lineage | None
    ) -> tuple[dict[str, RunUnit], dict[str, int]]:
        """Return these runs, and the revisions of their threads; of a lineage's run its start, its end and the attempt
        of the fence, unless it has a child of that key: then it is read whole like the others."""
        units: dict[str, RunUnit] = {}
        revisions: dict[str, int] = {}
        for run_id in run_ids:
            thread = run_thread(run_id)
            brief = self._brief(lineage, fence) if lineage is not None and run_id == lineage.run_id else None
            if brief is not None:
                revisions[thread], units[run_id] = brief
            else:
                entries = self._storage.read_run(run_id)
                revisions[thread], units[run_id] = revision_of(run_id, entries), RunUnit.fold(entries)
        return units, revisions

    def _brief(self, lineage: Lineage, fence: ClaimRef | None) -> tuple[int, RunUnit] | None:
        run_id = lineage.run_id
        with self._lock:
            revision, state = self._state(run_id)
            _, keys = self._keys.read(run_thread(run_id))  # last: a link that comes after `state` is a conflict
            if lineage.child_key in keys.children:
                return None
            unit = RunUnit(RunProjection(run_id, state.start, terminal_status=state.terminal_status))
            if fence is not None and fence.run_id == run_id:
                _, view = self._queues.read(dispatch_thread(fence.queue))
                unit.dispatch = view.part(run_id, [fence.runnable_key])
            return revision, unit

    def _fence_revision(self, fence: ClaimRef | None) -> dict[str, int]:
        """Return the revision of the claim's queue: a takeover before the commit makes that a conflict."""
        if fence is None or not self._storage.atomic_across_threads:
            return {}
        thread = dispatch_thread(fence.queue)
        return {thread: self._storage.revision(thread)}

    def visible(
        self, queue: str, limit: int = MAX_CLAIMS, *, definitions: Collection[str] | None = None
    ) -> list[Attempt]:
        """Show unclaimed attempts whose time has come, in claim order."""
        check_definitions(definitions)
        check_revision(limit, "limit")
        with self._lock:
            _, view = self._queues.read(dispatch_thread(check_part(queue, "queue")))
            found = self._of_open_runs(view, view.visible(self._storage.now(), definitions))
            return list(islice(found, limit))

    def expired(
        self, queue: str, limit: int = MAX_CLAIMS, *, definitions: Collection[str] | None = None
    ) -> list[Attempt]:
        """Show claimed attempts whose lease has run out."""
        check_definitions(definitions)
        check_revision(limit, "limit")
        return self._expired(check_part(queue, "queue"), definitions)[:limit]

    def _expired(self, queue: str, definitions: Collection[str] | None = None) -> list[Attempt]:
        with self._lock:
            _, view = self._queues.read(dispatch_thread(queue))
            found = list(self._of_open_runs(view, view.expired(self._storage.now(), definitions)))
        return sorted(found, key=lambda a: (a.lease_until or a.visible_at, a.position))

    def _of_open_runs(self, view: QueueIndex, found: Iterable[Attempt]) -> Iterator[Attempt]:
        return (attempt for attempt in found if not self._run(view, attempt.run_id).stopped)

    def dead_letter_expired(self, queue: str, limit: int = MAX_CLAIMS) -> list[str]:
        """Dead-letter attempts that were delivered too often, without claiming."""
        now = self._storage.now()
        spent = [a for a in self._expired(check_part(queue, "queue")) if dead_letter_fact(a, now)][:limit]
        refs = [ClaimRef(queue, a.run_id, a.runnable_key, a.claim_id or "", "") for a in spent]
        answers = self._group(refs, lambda _, attempt, now: dead_letter_fact(attempt, now))
        return [a.ref.runnable_key for a in answers if a.attempt is not None and a.attempt.status == "dead_lettered"]

    def _run(self, view: QueueIndex, run_id: str) -> RunDispatch:
        """Return a run's part of the queue, to look at, fenced also by what its own thread says."""
        part = view.run(run_id)
        if not part.fenced:
            state = self._state(run_id).state
            if state.stopped:
                view.stop(run_id, ended=state.terminal, quarantined=state.quarantined)
        return part

    def _doubt(self, conflict: Conflict) -> None:
        """Forget a thread that is shorter than it was: it was deleted."""
        if conflict.actual < conflict.expected:
            with self._lock:
                self._queues.forget(conflict.thread)
                self._keys.forget(conflict.thread)
                self._states.take(parse_thread(conflict.thread).part)

    def _group(
        self,
        refs: Sequence[ClaimRef],
        fact_of: FactOf,
        plan: Planner | None = None,
        size_of: Callable[[int], int] = lambda _: 0,
    ) -> list[Answer]:
        return answer_in_rounds(refs, lambda places: self._write_round(refs, places, fact_of, plan), size_of)

    def _write_round(
        self, refs: Sequence[ClaimRef], round_: list[int], fact_of: FactOf, plan: Planner | None
    ) -> list[Answer]:
        answers: dict[int, Answer] = {}
        for queue in {refs[i].queue for i in round_}:
            places = [i for i in round_ if refs[i].queue == queue]
            mine, recorded = [refs[i] for i in places], dict[str, Attempt]()
            while True:
                try:
                    found = self._group_once(queue, mine, _at_places(fact_of, places), plan, recorded)
                except Conflict as conflict:
                    self._doubt(conflict)
                    continue
                answers |= dict(zip(places, found, strict=True))
                break
        return [answers[i] for i in round_]

    def _group_once(
        self,
        queue: str,
        refs: list[ClaimRef],
        fact_of: FactOf,
        plan: Planner | None,
        recorded: dict[str, Attempt],
    ) -> list[Answer]:
        """Judge and write a group once. `recorded` keeps, by claim, the outcomes that are on record already when it has
        to begin again: somebody else may have gone on from them meanwhile, which is no refusal."""
        now = (
            self._storage.now()
        )  # before reading: a lease that is extended meanwhile must not look as if it had run out
        with self._lock:
            revision, view = self._queues.read(dispatch_thread(queue))
            for run_id in {ref.run_id: None for ref in refs}:
                self._run(view, run_id)
            group = judge(refs, fact_of, view.run, now)
            runs = _parts(view, refs, group)
            revisions: dict[str, int] = {}
            if plan is not None:
                revisions = self._plan(group, runs, plan, now)
            group.check(self._storage.max_fact_bytes)
        written = group.members(group.facts)
        after = {
            run_id: preview(run, (group.facts[i] for i in written.get(run_id, ()))) for run_id, run in runs.items()
        }
        planned = group_appends(fact for facts in group.planned.values() for fact in facts)
        appends = [Append(one.thread, one.facts, revisions.get(one.thread)) for one in planned]
        new = {refs[i].claim_id: after[refs[i].run_id].attempts[refs[i].runnable_key] for i in group.facts}
        self._write(queue, revision, list(group.facts.values()), appends, lambda: recorded.update(new))
        self._note_ends(view, group)
        return [
            Answer(ref, error=group.errors[i])
            if i in group.errors and ref.claim_id not in recorded
            else Answer(ref, recorded.get(ref.claim_id) or after[ref.run_id].attempts.get(ref.runnable_key))
            for i, ref in enumerate(refs)
        ]

    def _plan(self, group: Group, runs: dict[str, RunDispatch], plan: Planner, now: datetime) -> dict[str, int]:
        """Ask the planner about each run; return the revisions of the run threads that it looked at."""
        # Where a commit cannot span threads, an outcome may be on record that nothing followed from: plan for it again.
        everyone = [i for i in range(len(group.refs)) if i not in group.errors]
        members = group.members(group.facts if self._storage.atomic_across_threads else everyone)
        states = {run_id: self._state(run_id) for run_id in members}

        def plan_of(run_id: str, places: list[int], max_fact_bytes: int | None) -> list[Fact]:
            after = preview(runs[run_id], (group.facts[i] for i in places if i in group.facts))
            attempts = tuple(after.attempts[group.refs[i].runnable_key] for i in places)
            state = states[run_id].state
            state.begin()
            try:
                return call_planner(plan, PlanRequest(run_id, state, attempts, after.attempts, now, max_fact_bytes))
            finally:
                state.roll_back()  # what is written of it is read with the rest

        group.plan(members, plan_of)
        return {run_thread(run_id): known.revision for run_id, known in states.items()}

    def _note_ends(self, view: QueueIndex, group: Group) -> None:
        """Let go of the runs that the group has ended."""
        with self._lock:
            for fact in (fact for facts in group.planned.values() for fact in facts):
                if isinstance(fact, RunTerminal):
                    view.stop(fact.run_id, ended=True, quarantined=False)
                    self._states.take(fact.run_id)

    def _state(self, run_id: str) -> KnownState:
        """Bring the planner's state of a run up to date; it costs what was appended since the last time."""
        revision, state = self._states.take(run_id) or KnownState(0, PlanState())
        thread = run_thread(run_id)
        for entry in self._storage.read(thread, after=revision):
            state.add(entry)
            revision = entry.seq
        if not state.plain:
            state = PlanState.of(RunProjection.fold(self._storage.read(thread)))
        self._states.put(run_id, revision, state)
        return KnownState(revision, state)

    def _write(
        self, queue: str, revision: int, facts: list[Fact], planned: list[Append], recorded: Callable[[], None]
    ) -> None:
        """Write a group as one commit where that is possible; else outcomes first, then runs, then new work.

        `recorded` is called in between, when the outcomes are on record.
        """
        thread = dispatch_thread(queue)
        first = [Append(thread, facts, revision)] if facts else []
        if not self._storage.atomic_across_threads:
            if first:
                self._storage.commit(first)
                recorded()
            for one in [*(a for a in planned if a.thread != thread), *(a for a in planned if a.thread == thread)]:
                self._storage.commit([one])
            return
        mine = [fact for one in planned if one.thread == thread for fact in one.facts]
        together = [Append(thread, [*facts, *mine], revision)] if facts or mine else []
        together += [one for one in planned if one.thread != thread]
        if together:
            self._storage.commit(together)


def revision_of(run_id: str, entries: Iterable[Entry]) -> int:
    """Give the revision of a run's own thread, as its facts show it."""
    thread = run_thread(run_id)
    return max((entry.seq for entry in entries if entry.thread == thread), default=0)


def _is_run(thread: str) -> bool:
    return parse_thread(thread).kind is ThreadKind.RUN


def _decided(decision: CommandDecision, runs: Mapping[str, CommandedRun], now: datetime) -> list[Fact]:
    """Ask what a command writes; what it folds into the states is taken back, and read with the rest."""
    for run in runs.values():
        run.state.begin()
    try:
        return list(decision(runs, now))
    finally:
        for run in runs.values():
            run.state.roll_back()


def commit_in_order(storage: Storage, facts: Iterable[Fact], revisions: Mapping[str, int]) -> None:
    """Write facts, given the revisions of all run threads that were looked at; raises `Conflict` if one has moved.

    Where a commit cannot span threads: the runs' threads first, as the facts name them, so that a crash leaves a plan
    without its schedule, which recovery repairs, and never a schedule without its plan.
    """
    by_thread: dict[str, list[Fact]] = {}
    for fact in facts:
        by_thread.setdefault(fact.thread, []).append(fact)
    if storage.atomic_across_threads:
        appends = [Append(one.thread, one.facts, revisions.get(one.thread)) for one in group_appends(facts)]
        guards = [Append(thread, (), rev) for thread, rev in revisions.items() if rev and thread not in by_thread]
        storage.commit([*appends, *guards])
        return
    queues_last = sorted(by_thread, key=lambda thread: not _is_run(thread))
    for thread in queues_last:
        storage.commit([Append(thread, by_thread[thread], revisions.get(thread))])


def _claimed(view: QueueIndex, facts: Iterable[Fact]) -> list[Attempt]:
    """Return what these facts claim, as it is once they are written."""
    claims = [fact for fact in facts if isinstance(fact, AttemptClaimed)]
    by_run: dict[str, list[AttemptClaimed]] = {}
    for fact in claims:
        by_run.setdefault(fact.run_id, []).append(fact)
    after = {
        run_id: preview(view.part(run_id, [fact.runnable_key for fact in mine]), mine)
        for run_id, mine in by_run.items()
    }
    return [after[fact.run_id].attempts[fact.runnable_key] for fact in claims]


def _parts(view: QueueIndex, refs: Sequence[ClaimRef], group: Group) -> dict[str, RunDispatch]:
    """Return of each run that the group is about the attempts that it names or would create, and their visits."""
    keys: dict[str, list[str]] = {}
    for ref in refs:
        keys.setdefault(ref.run_id, []).append(ref.runnable_key)
    for i, fact in group.facts.items():
        if isinstance(fact, AttemptFailed) and fact.retry_runnable_key is not None:
            keys[refs[i].run_id].append(fact.retry_runnable_key)
    return {run_id: view.part(run_id, mine) for run_id, mine in keys.items()}


class _Verdict(Enum):
    """What a claim does about an attempt that it has come to."""

    TAKE = auto()
    TAKE_ALONE = auto()
    PASS_OVER = auto()
    STOP = auto()  # before it


def _suspect_verdict(attempt: Attempt, suspects: Suspects | None, *, anything_taken: bool) -> _Verdict:
    """Return what the rule for suspects makes of an attempt; record the first one that is passed over."""
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


def _at_places(fact_of: FactOf, places: list[int]) -> FactOf:
    return lambda i, attempt, now: fact_of(places[i], attempt, now)


def _claim_fact(
    attempt: Attempt,
    owner_id: str,
    lease: timedelta,
    claim_id: str,
    token: str,
    fencing_token: int,
    now: datetime,
    alone: bool,
) -> Fact:
    at = max(now, attempt.last_at)
    return AttemptClaimed(
        run_id=attempt.run_id,
        runnable_key=attempt.runnable_key,
        queue=attempt.queue,
        claim_id=claim_id,
        claim_token_hash=hash_token(token),
        owner_id=owner_id,
        lease_until=at + lease,
        fencing_token=fencing_token,
        alone=True if alone else None,
        occurred_at=at,
    )
