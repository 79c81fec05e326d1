"""Dispatch on any storage: read what is new of a queue, decide, append if no other writer did, else start again.

`FoldCache` holds queues, the planner's states of runs and their keys as they were read last, so that a claim, a settled
step and a command cost the same early and late in a run, and beside few attempts and many.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice

from squid_dagster.journal.contract.command_target import CommandDecision, CommandedRun, CommandTarget
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
    new_claims,
)
from squid_dagster.journal.contract.storage import Append, Storage, check_revision
from squid_dagster.journal.fold_store.claim_facts import ClaimSettings, claim_facts, claimed_attempts
from squid_dagster.journal.fold_store.commits import commit_group, commit_in_order, compared_revisions
from squid_dagster.journal.fold_store.fold_cache import FoldCache
from squid_dagster.journal.fold_store.queue_index import QueueIndex
from squid_dagster.journal.fold_store.run_reader import read_target, read_units
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
from squid_dagster.protocol.errors import Conflict
from squid_dagster.protocol.facts import AttemptFailed, Fact, RunTerminal
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.protocol.folds.dispatch import RunDispatch
from squid_dagster.protocol.threads import check_part, dispatch_thread, run_thread


@checks_arguments
class FoldDispatchStore:
    """`DispatchStore` by fold and compare-and-append. A conflict means that another writer succeeded: retries end."""

    def __init__(self, storage: Storage) -> None:
        """Bind to a storage."""
        self._storage = storage
        self._folds = FoldCache(storage)

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
        terms = ClaimSettings(owner_id, lease, suspects)
        while True:
            tokens = dict(new_claims(limit))
            with self._folds.lock:
                revision, index = self._folds.queue(queue)
                now = self._storage.now()
                facts = claim_facts(index.claimable(now, definitions), self._run_of(index), terms, tokens, now)
                claimed = claimed_attempts(index, facts)
            if not facts:
                return []
            try:
                self._storage.append(dispatch_thread(queue), facts, expected_rev=revision)
            except Conflict as conflict:
                self._folds.check_deletion(conflict)
                continue
            return [make_claim(attempt, tokens) for attempt in claimed]

    def _run_of(self, index: QueueIndex) -> Callable[[str], RunDispatch]:
        return lambda run_id: self._folds.run(index, run_id)

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
            units, unit_revisions = read_units(self._folds, run_ids, fence, lineage)
            revisions |= unit_revisions
            if fence is not None:
                check_held(units[fence.run_id], fence, now)
            facts = list(decision(units, now))
            if not facts:
                return []
            try:
                commit_in_order(self._storage, facts, revisions)
            except Conflict as conflict:
                self._folds.check_deletion(conflict)
                continue
            return facts

    def _fence_revision(self, fence: ClaimRef | None) -> dict[str, int]:
        """Return the revision of the claim's queue: a takeover before the commit makes that a conflict."""
        if fence is None or not self._storage.atomic_across_threads:
            return {}
        thread = dispatch_thread(fence.queue)
        return {thread: self._storage.revision(thread)}

    def command(self, targets: Sequence[CommandTarget], decision: CommandDecision) -> list[Fact]:
        """Write what follows from a command, as the contract says."""
        by_id = {target.run_id: target for target in targets}
        while True:
            runs: dict[str, CommandedRun] = {}
            revisions: dict[str, int] = {}
            now = self._storage.now()  # before reading, as in `decide`
            with self._folds.lock:  # the decision folds into cached states
                for run_id, target in by_id.items():
                    target_revisions, runs[run_id] = read_target(self._folds, target)
                    revisions = target_revisions | revisions  # of two reads of a queue, the earlier one counts
                facts = _decided(decision, runs, now)
            if not facts:
                return []
            try:
                commit_in_order(self._storage, facts, compared_revisions(self._storage, revisions, facts))
            except Conflict as conflict:
                self._folds.check_deletion(conflict)
                continue
            return facts

    def visible(
        self, queue: str, limit: int = MAX_CLAIMS, *, definitions: Collection[str] | None = None
    ) -> list[Attempt]:
        """Return unclaimed attempts whose time has come, in claim order."""
        check_definitions(definitions)
        check_revision(limit, "limit")
        with self._folds.lock:
            _, index = self._folds.queue(check_part(queue, "queue"))
            return list(islice(self._of_open_runs(index, index.visible(self._storage.now(), definitions)), limit))

    def expired(
        self, queue: str, limit: int = MAX_CLAIMS, *, definitions: Collection[str] | None = None
    ) -> list[Attempt]:
        """Return claimed attempts whose lease has run out."""
        check_definitions(definitions)
        check_revision(limit, "limit")
        return self._expired(check_part(queue, "queue"), definitions)[:limit]

    def _expired(self, queue: str, definitions: Collection[str] | None = None) -> list[Attempt]:
        with self._folds.lock:
            _, index = self._folds.queue(queue)
            attempts = list(self._of_open_runs(index, index.expired(self._storage.now(), definitions)))
        return sorted(attempts, key=lambda a: (a.lease_until or a.visible_at, a.position))

    def _of_open_runs(self, index: QueueIndex, attempts: Iterable[Attempt]) -> Iterator[Attempt]:
        return (attempt for attempt in attempts if not self._folds.run(index, attempt.run_id).stopped)

    def dead_letter_expired(self, queue: str, limit: int = MAX_CLAIMS) -> list[str]:
        """Dead-letter attempts that were delivered too often, without claiming."""
        now = self._storage.now()
        spent = [a for a in self._expired(check_part(queue, "queue")) if dead_letter_fact(a, now)][:limit]
        refs = [ClaimRef(queue, a.run_id, a.runnable_key, a.claim_id or "", "") for a in spent]
        answers = self._group(refs, lambda _, attempt, now: dead_letter_fact(attempt, now))
        return [a.ref.runnable_key for a in answers if a.attempt is not None and a.attempt.status == "dead_lettered"]

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
            queue_refs, recorded = [refs[i] for i in places], dict[str, Attempt]()
            while True:
                try:
                    queue_answers = self._write_group(queue, queue_refs, _at_places(fact_of, places), plan, recorded)
                except Conflict as conflict:
                    self._folds.check_deletion(conflict)
                    continue
                answers |= dict(zip(places, queue_answers, strict=True))
                break
        return [answers[i] for i in round_]

    def _write_group(
        self, queue: str, refs: list[ClaimRef], fact_of: FactOf, plan: Planner | None, recorded: dict[str, Attempt]
    ) -> list[Answer]:
        """Write a group once: judge its members, plan, and commit.

        `recorded` holds, by claim, the outcomes that an earlier try has put on record: another writer may have gone on
        from them meanwhile, which is no refusal.
        """
        now = self._storage.now()  # before reading: a lease that is extended meanwhile must not look expired
        with self._folds.lock:
            revision, index = self._folds.queue(queue)
            for run_id in {ref.run_id: None for ref in refs}:
                self._folds.run(index, run_id)
            group = judge(refs, fact_of, index.run, now)
            runs = _parts(index, refs, group)
            revisions: dict[str, int] = {}
            if plan is not None:
                revisions = self._plan(group, runs, plan, now)
            group.check(self._storage.max_fact_bytes)
        written = group.members(group.facts)
        after = {
            run_id: preview(run, (group.facts[i] for i in written.get(run_id, ()))) for run_id, run in runs.items()
        }
        planned = [fact for facts in group.planned.values() for fact in facts]
        appends = [Append(one.thread, one.facts, revisions.get(one.thread)) for one in group_appends(planned)]
        new = {refs[i].claim_id: after[refs[i].run_id].attempts[refs[i].runnable_key] for i in group.facts}
        facts = list(group.facts.values())
        commit_group(self._storage, queue, revision, facts, appends, lambda: recorded.update(new))
        self._folds.drop_ended(index, [fact.run_id for fact in planned if isinstance(fact, RunTerminal)])
        return [
            Answer(ref, error=group.errors[i])
            if i in group.errors and ref.claim_id not in recorded
            else Answer(ref, recorded.get(ref.claim_id) or after[ref.run_id].attempts.get(ref.runnable_key))
            for i, ref in enumerate(refs)
        ]

    def _plan(self, group: Group, runs: dict[str, RunDispatch], plan: Planner, now: datetime) -> dict[str, int]:
        """Call the planner for each run; return the revisions of the run threads that it read."""
        # Where a commit cannot span threads, an outcome may be on record that nothing followed from: plan for it again.
        accepted = [i for i in range(len(group.refs)) if i not in group.errors]
        members = group.members(group.facts if self._storage.atomic_across_threads else accepted)
        states = {run_id: self._folds.state(run_id) for run_id in members}

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


def _decided(decision: CommandDecision, runs: Mapping[str, CommandedRun], now: datetime) -> list[Fact]:
    """Return what a command writes; what it folds into the states is rolled back, and read with the rest."""
    for run in runs.values():
        run.state.begin()
    try:
        return list(decision(runs, now))
    finally:
        for run in runs.values():
            run.state.roll_back()


def _parts(index: QueueIndex, refs: Sequence[ClaimRef], group: Group) -> dict[str, RunDispatch]:
    """Return, for each run of a group, the attempts that the group names or would create, and those of their visits."""
    keys: dict[str, list[str]] = {}
    for ref in refs:
        keys.setdefault(ref.run_id, []).append(ref.runnable_key)
    for i, fact in group.facts.items():
        if isinstance(fact, AttemptFailed) and fact.retry_runnable_key is not None:
            keys[refs[i].run_id].append(fact.retry_runnable_key)
    return {run_id: index.part(run_id, run_keys) for run_id, run_keys in keys.items()}


def _at_places(fact_of: FactOf, places: list[int]) -> FactOf:
    return lambda i, attempt, now: fact_of(places[i], attempt, now)
