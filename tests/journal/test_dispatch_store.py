"""The dispatch contract: one suite for both versions on every storage; then, that statement and fold agree."""

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from squid_dagster.journal.clock import VirtualClock
from squid_dagster.journal.dispatch import (
    Answer,
    Claim,
    ClaimRef,
    Completed,
    DispatchStore,
    Failed,
    PlanRequest,
    Retry,
    Settlement,
)
from squid_dagster.journal.fold_dispatch import FoldDispatchStore
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.dispatch import PostgresDispatchStore
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.storage import Storage
from squid_dagster.protocol import AttemptStatus, Fact, RunUnit, definition_key, run_thread, to_json
from squid_dagster.protocol.attempts import claim_order
from squid_dagster.protocol.dispatch import DispatchProjection
from squid_dagster.protocol.errors import (
    ConflictingCompletion,
    ExpiredClaim,
    InvalidArgument,
    InvalidFact,
    InvalidThread,
    NotFound,
    SquidError,
    StaleClaim,
    TerminalRun,
)
from squid_dagster.protocol.facts import DEFAULT_MAX_DELIVERIES
from tests.histories import (
    QUEUE,
    RUN,
    T0,
    applied,
    claimed,
    fenced,
    key,
    planned,
    quarantined,
    queue_paused,
    queue_resumed,
    queued,
    runnable,
    scheduled,
    signal,
    started,
    t,
    terminal,
)
from tests.journal.contract import (
    Desk,
    Wire,
    all_entries,
    assert_views_agree_with_the_journal,
    at_once,
    facts_of,
    other_claim,
    other_token,
    put,
    raw,
    seconds,
    work,
)

MINUTE = seconds(60)
_numbers = count(1)


def claim(desk: Desk, limit: int = 1, lease: timedelta = MINUTE, **options: Any) -> list[Claim]:
    """Claim from the queue as any worker would."""
    return desk.store.claim(QUEUE, "worker-1", limit=limit, lease=lease, **options)


def one(desk: Desk, lease: timedelta = MINUTE) -> Claim:
    """Claim the one attempt that is due."""
    (found,) = claim(desk, lease=lease)
    return found


def keys(claims: Sequence[Claim]) -> list[str]:
    """The runs that were claimed, in order."""
    return [c.attempt.run_id for c in claims]


def done(c: Claim, result: Any = None) -> Settlement:
    """The step of this claim succeeded."""
    return Settlement(c.ref, Completed({"ok": True} if result is None else result))


def broke(c: Claim, retry: Retry | None = None) -> Settlement:
    """The step of this claim failed."""
    return Settlement(c.ref, Failed({"message": "declined"}, retry))


def refused(answer: Answer, kind: type[SquidError]) -> None:
    """The member was refused for this reason."""
    assert type(answer.error) is kind
    with pytest.raises(kind):
        answer.unwrap()


def statuses(desk: Desk, run: str = RUN) -> dict[str, str]:
    """What the journal says about each attempt of a run; nothing in it is wrong, and the views agree."""
    unit = RunUnit.fold(desk.storage.read_run(run))
    assert unit.anomalies == []
    if isinstance(desk.storage, PostgresStorage):
        assert_views_agree_with_the_journal(desk.storage, [run])
    return {k: attempt.status.value for k, attempt in unit.dispatch.attempts.items()}


# --- claims ---------------------------------------------------------------------------------------------------------


def test_a_claim_gives_the_attempt_its_input_its_fence_and_its_lease(desk: Desk) -> None:
    # given an attempt
    scheduled_fact = scheduled(input={"amount": 5, "big": 10**30}, definition_fingerprint="f1", definition_version="1")
    desk.put(scheduled_fact)
    # when it is claimed
    desk.wait(10)
    (found,) = desk.store.claim(QUEUE, "worker-9", lease=seconds(30))
    # then the claim says all that a worker needs
    attempt = found.attempt
    assert (attempt.run_id, attempt.runnable_key, attempt.step, attempt.queue) == (RUN, key(), "charge", QUEUE)
    assert attempt.input == {"amount": 5, "big": 10**30}
    assert (attempt.status, attempt.owner_id) == (AttemptStatus.CLAIMED, "worker-9")
    assert (attempt.deliveries, attempt.fencing_token, attempt.attempt_number) == (1, 1, 1)
    assert (attempt.workflow, attempt.definition_fingerprint, attempt.definition_version) == ("billing", "f1", "1")
    assert found.lease_until == t(40)
    assert (found.ref.queue, found.ref.run_id, found.ref.runnable_key) == (QUEUE, RUN, key())
    # and the journal has the fact
    fact = facts_of(desk.storage.read(scheduled_fact.thread))[-1]
    assert (fact.type, fact.claim_id, fact.occurred_at, fact.lease_until) == (
        "attempt_claimed",
        found.ref.claim_id,
        t(10),
        t(40),
    )
    assert (fact.owner_id, fact.fencing_token, fact.claim_token_hash) == ("worker-9", 1, found.ref.token_hash)
    assert statuses(desk) == {key(): "claimed"}


def test_an_empty_queue_gives_nothing_and_writes_nothing(desk: Desk) -> None:
    assert claim(desk, limit=10) == []
    desk.put(work("run-1", queue="slow"))
    assert claim(desk, limit=10) == []
    assert desk.entries() == 1


def test_higher_priority_goes_first_then_due_time_then_position(desk: Desk) -> None:
    desk.put(
        work("late", visible_at=t(20)),
        work("early", visible_at=t(10)),
        work("urgent", visible_at=t(30), priority=10),
        work("lazy", visible_at=t(0), priority=-10),
        work("early-too", visible_at=t(10)),
    )
    desk.wait(60)
    assert keys(claim(desk, limit=10)) == ["urgent", "early", "early-too", "late", "lazy"]


def test_a_limit_is_kept_and_the_next_claim_goes_on_from_there(desk: Desk) -> None:
    desk.put(*(work(f"run-{n}") for n in range(5)))
    assert keys(claim(desk, limit=2)) == ["run-0", "run-1"]
    assert keys(claim(desk)) == ["run-2"]
    assert keys(claim(desk, limit=1000)) == ["run-3", "run-4"]
    assert claim(desk, limit=1000) == []


def test_an_attempt_of_the_future_is_claimable_at_its_very_instant(desk: Desk) -> None:
    desk.put(work("run-1", visible_at=t(10), priority=10))
    desk.wait(9.999999)
    assert claim(desk) == []
    assert desk.store.visible(QUEUE) == []
    desk.wait(0.000001)
    assert [a.run_id for a in desk.store.visible(QUEUE)] == ["run-1"]
    assert keys(claim(desk)) == ["run-1"]
    assert desk.store.visible(QUEUE) == []


def test_an_attempt_that_is_not_due_never_stands_in_the_way_of_one_that_is(desk: Desk) -> None:
    desk.put(*(work(f"later-{n}", visible_at=t(99), priority=10) for n in range(20)), work("now", priority=-10))
    assert keys(claim(desk, limit=5)) == ["now"]


@given(data=st.data())
@settings(max_examples=20, phases=(Phase.explicit, Phase.generate))
def test_any_set_of_attempts_is_claimed_in_claim_order(data: st.DataObject, postgres_shared: PostgresStorage) -> None:
    # given attempts of any priority, due at any time, some of them claimed before
    times = st.sampled_from([0, 0, 5, 10, 20, 40])
    rows = data.draw(
        st.lists(
            st.tuples(st.sampled_from([-10, -1, 0, 0, 1, 10]), times, st.sampled_from([None, None, None, 1, 30, 50])),
            min_size=1,
            max_size=12,
        )
    )
    limit, queue = data.draw(st.integers(1, 8)), f"order{next(_numbers)}"
    facts: list[Fact] = []
    expected: list[tuple[int, datetime, int, str]] = []
    for n, (priority, due, leased) in enumerate(rows):
        run = f"{queue}-{n}"
        facts.append(work(run, priority=priority, visible_at=t(due), queue=queue, workflow=f"flow{n % 3}"))
        if leased is not None:
            facts.append(claimed(run, at=due, lease=leased, queue=queue))
        ready = t(due) if leased is None else t(due + leased)
        if ready <= t(40):
            expected.append((-priority, ready, n, run))
    in_order = [run for *_, run in sorted(expected)]
    clock = VirtualClock(t(40))
    postgres_shared.clock = clock
    memory = MemoryStorage(clock)
    put(memory, *facts)
    put(postgres_shared, *facts)
    stores: list[tuple[Storage, DispatchStore]] = [
        (memory, FoldDispatchStore(memory)),
        (postgres_shared, PostgresDispatchStore(postgres_shared)),
    ]
    for storage, store in stores:
        projection = DispatchProjection.fold(storage.read(f"squid:dispatch:{queue}"))
        assert [a.run_id for a in sorted(projection.claimable(t(40)), key=claim_order)] == in_order
        # when they are claimed, few at a time
        found: list[str] = []
        while claims := store.claim(queue, "worker", limit=limit):
            assert len(claims) <= limit
            found += keys(claims)
        # then they come by priority, due time and position; an expired claim was due when its lease ran out
        assert found == in_order


def test_many_who_claim_at_once_share_the_work_without_overlap(desk: Desk) -> None:
    # given forty attempts and six workers
    desk.put(*(work(f"run-{n}") for n in range(40)))
    taken: list[str] = []
    lock = threading.Lock()

    def drain(owner: str) -> None:
        while claims := desk.store.claim(QUEUE, owner, limit=3):
            with lock:
                taken.extend(keys(claims))

    # when all claim until nothing is left
    at_once([partial(drain, f"worker-{n}") for n in range(6)])
    # then each attempt went to one of them
    assert sorted(taken) == sorted(f"run-{n}" for n in range(40))
    assert all(statuses(desk, f"run-{n}") == {key(f"run-{n}"): "claimed"} for n in range(40))


# --- tokens ---------------------------------------------------------------------------------------------------------


def test_the_raw_token_is_nowhere_but_in_the_claim(desk: Desk) -> None:
    # given claims that were used for everything
    desk.put(work("run-1"), work("run-2"), work("run-3"))
    claims = claim(desk, limit=3)
    answers = desk.store.heartbeat([c.ref for c in claims])
    answers += desk.store.release([claims[0].ref], "going home")
    answers += desk.store.settle([done(claims[1]), broke(claims[2])])
    answers += desk.store.settle([done(claims[0])])
    stored = "\n".join(to_json(fact) for fact in facts_of(all_entries(desk.storage)))
    if isinstance(desk.storage, PostgresStorage):
        with raw(desk.storage) as connection:
            for table in ("journal_entries", "attempts", "runs", "journal_commits", "journal_checkpoints", "anomalies"):
                found = connection.execute(f"SELECT to_json(x)::text FROM {table} x").fetchall()
                stored += "\n".join(text for (text,) in found)
    for c in claims:
        # then neither the journal nor anything printed shows its token, only its hash
        assert len(c.ref.token) >= 32
        assert c.ref.token not in stored
        assert c.ref.token_hash in stored
        assert c.ref.token not in repr(c) + str(c) + repr(c.ref) + repr(claims) + repr(answers)
        assert c.ref.token not in repr(done(c)) + "".join(str(a.error) for a in answers)
    assert len({c.ref.token for c in claims}) == len({c.ref.claim_id for c in claims}) == 3


def test_the_fencing_token_counts_claims_over_all_attempts_of_a_visit_and_never_falls(desk: Desk) -> None:
    desk.put(scheduled(), scheduled(visit=2, visible_at=t(9999)), work("run-2", visible_at=t(9999)))
    tokens: list[int] = []
    # claimed and released
    first = one(desk)
    tokens.append(first.attempt.fencing_token)
    desk.store.release([first.ref])
    # claimed and lost
    tokens.append(one(desk).attempt.fencing_token)
    desk.wait(60)
    # taken over and failed
    third = one(desk)
    tokens.append(third.attempt.fencing_token)
    (answer,) = desk.store.settle([broke(third, Retry(key(attempt=2), seconds(0)))])
    assert answer.unwrap().status == "failed"
    # tried again
    fourth = one(desk)
    tokens.append(fourth.attempt.fencing_token)
    assert (fourth.attempt.runnable_key, fourth.attempt.deliveries) == (key(attempt=2), 1)
    assert tokens == [1, 2, 3, 4]
    # and another visit, or another run, counts for itself
    desk.wait(9999)
    assert [c.attempt.fencing_token for c in claim(desk, limit=9)] == [5, 1, 1]


def test_attempts_of_one_visit_that_are_claimed_together_get_tokens_of_their_own(desk: Desk) -> None:
    desk.put(scheduled(attempt=1), scheduled(attempt=2), scheduled(attempt=3))
    assert [c.attempt.fencing_token for c in claim(desk, limit=3)] == [1, 2, 3]
    assert set(statuses(desk).values()) == {"claimed"}


def test_two_runs_that_use_the_same_idempotency_key_are_counted_apart(desk: Desk) -> None:
    desk.put(work("run-1", idempotency_key="same"), work("run-2", idempotency_key="same"))
    assert [c.attempt.fencing_token for c in claim(desk, limit=2)] == [1, 1]
    assert statuses(desk, "run-2") == {key("run-2"): "claimed"}


# --- fences and leases ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pretend", [other_token, other_claim])
def test_only_the_holder_of_claim_and_token_may_act(desk: Desk, pretend: Callable[[ClaimRef], ClaimRef]) -> None:
    # given a claim, and somebody who shows another id or token
    desk.put(scheduled())
    held = one(desk)
    stranger, before = pretend(held.ref), desk.entries()
    # when that one tries everything
    for answers in (
        desk.store.settle([Settlement(stranger, Completed({"ok": True}))]),
        desk.store.settle([Settlement(stranger, Failed({"message": "no"}))]),
        desk.store.heartbeat([stranger]),
        desk.store.release([stranger]),
    ):
        # then all of it is refused and nothing is written
        refused(answers[0], StaleClaim)
    assert desk.entries() == before
    # and the holder goes on
    assert desk.store.settle([done(held)])[0].unwrap().status == "completed"
    # nor does the stranger's repeat of a settled outcome pass for the holder's
    refused(desk.store.settle([Settlement(stranger, Completed({"ok": True}))])[0], StaleClaim)


def test_an_answer_holds_either_the_attempt_or_the_error(desk: Desk) -> None:
    desk.put(scheduled())
    held = one(desk)
    (bad,) = desk.store.heartbeat([other_token(held.ref)])
    (good,) = desk.store.heartbeat([held.ref])
    assert (bad.attempt, type(bad.error)) == (None, StaleClaim)
    assert good.attempt is not None
    assert good.error is None


def test_what_was_never_scheduled_is_not_found(desk: Desk) -> None:
    desk.put(scheduled())
    held = one(desk)
    for ref in (
        ClaimRef(QUEUE, "nobody", "nobody:charge:1:1", "a", "b"),
        ClaimRef(QUEUE, RUN, key(visit=7), "a", "b"),
        ClaimRef("slow", RUN, key(), held.ref.claim_id, held.ref.token),
    ):
        refused(desk.store.settle([Settlement(ref, Completed(1))])[0], NotFound)
        refused(desk.store.heartbeat([ref])[0], NotFound)
        refused(desk.store.release([ref])[0], NotFound)
    assert desk.entries() == 2


def test_a_lease_runs_out_exactly_at_its_end(desk: Desk) -> None:
    desk.put(scheduled())
    first = one(desk, lease=seconds(30))
    desk.wait(29.999999)
    assert desk.store.expired(QUEUE) == []
    assert claim(desk) == []
    desk.wait(0.000001)
    assert [a.runnable_key for a in desk.store.expired(QUEUE)] == [key()]
    (second,) = claim(desk)
    assert second.ref.claim_id != first.ref.claim_id
    assert (second.attempt.deliveries, second.attempt.fencing_token) == (2, 2)
    assert desk.store.expired(QUEUE) == []


def test_a_zombie_can_do_nothing_after_takeover(desk: Desk) -> None:
    # given a worker that lost its lease to another
    desk.put(scheduled())
    zombie = one(desk)
    desk.wait(60)
    holder = one(desk)
    before = desk.entries()
    # when it comes back
    refused(desk.store.settle([done(zombie)])[0], StaleClaim)
    refused(desk.store.settle([broke(zombie)])[0], StaleClaim)
    refused(desk.store.heartbeat([zombie.ref])[0], StaleClaim)
    refused(desk.store.release([zombie.ref])[0], StaleClaim)
    # then nothing of it stays
    assert desk.entries() == before
    assert desk.store.settle([done(holder)])[0].unwrap().status == "completed"
    refused(desk.store.settle([done(zombie)])[0], StaleClaim)


def test_a_late_outcome_is_refused_although_nobody_took_over(desk: Desk) -> None:
    desk.put(scheduled())
    late = one(desk, lease=seconds(30))
    desk.wait(30)
    before = desk.entries()
    refused(desk.store.settle([done(late)])[0], ExpiredClaim)
    refused(desk.store.settle([broke(late)])[0], ExpiredClaim)
    refused(desk.store.heartbeat([late.ref])[0], ExpiredClaim)
    refused(desk.store.release([late.ref])[0], ExpiredClaim)
    assert desk.entries() == before
    assert statuses(desk) == {key(): "claimed"}


def test_an_outcome_an_instant_before_the_lease_ends_counts(desk: Desk) -> None:
    desk.put(scheduled())
    held = one(desk, lease=seconds(30))
    desk.wait(29.999999)
    assert desk.store.settle([done(held)])[0].unwrap().status == "completed"


def test_a_heartbeat_extends_a_lease_and_never_shortens_it(desk: Desk) -> None:
    desk.put(scheduled())
    held = one(desk, lease=seconds(60))
    desk.wait(30)
    assert desk.store.heartbeat([held.ref], seconds(60))[0].unwrap().lease_until == t(90)
    assert desk.store.heartbeat([held.ref], seconds(1))[0].unwrap().lease_until == t(90)
    desk.wait(59)
    assert claim(desk) == []
    desk.wait(1)
    assert [a.lease_until for a in desk.store.expired(QUEUE)] == [t(90)]
    assert len(claim(desk)) == 1


def test_heartbeats_of_many_claims_go_together_and_a_lost_one_does_not_fail_the_rest(desk: Desk) -> None:
    desk.put(*(work(f"run-{n}") for n in range(3)))
    first, lost, third = claim(desk, limit=3)
    desk.store.release([lost.ref])
    answers = desk.store.heartbeat([first.ref, lost.ref, third.ref], seconds(120))
    assert [answer.ref for answer in answers] == [first.ref, lost.ref, third.ref]
    assert answers[0].unwrap().lease_until == answers[2].unwrap().lease_until == t(120)
    refused(answers[1], StaleClaim)


def test_a_released_attempt_is_claimable_at_once_and_was_neither_a_failure_nor_a_delivery(desk: Desk) -> None:
    desk.put(scheduled(max_deliveries=1))
    for _ in range(3):
        held = one(desk)
        assert held.attempt.deliveries == 1
        released = desk.store.release([held.ref], "shutting down")[0].unwrap()
        assert (released.status, released.deliveries, released.lease_until) == ("available", 0, None)
        assert [a.runnable_key for a in desk.store.visible(QUEUE)] == [key()]
        refused(desk.store.settle([done(held)])[0], StaleClaim)
        refused(desk.store.release([held.ref])[0], StaleClaim)
    assert facts_of(all_entries(desk.storage))[-1].reason == "shutting down"


def test_a_clock_that_goes_back_neither_steals_nor_loses_a_claim(desk: Desk) -> None:
    desk.put(scheduled())
    desk.wait(100)
    held = one(desk, lease=seconds(60))
    desk.wait(-90)
    assert claim(desk) == []
    assert desk.store.heartbeat([held.ref], seconds(60))[0].unwrap().lease_until == t(160)
    # a release and a new claim, by a clock that is behind, happen when the attempt was last heard of
    assert desk.store.release([held.ref])[0].unwrap().last_at == t(100)
    again = one(desk, lease=seconds(60))
    assert (again.attempt.last_at, again.lease_until) == (t(100), t(160))
    assert desk.store.settle([done(again)])[0].unwrap().settled_at == t(100)
    assert statuses(desk) == {key(): "completed"}


# --- outcomes -------------------------------------------------------------------------------------------------------


def test_a_completion_is_recorded_with_its_result(desk: Desk) -> None:
    desk.put(scheduled())
    held = one(desk)
    desk.wait(5)
    settled = desk.store.settle([done(held, {"big": 10**30, "text": "ü🦑"})])[0].unwrap()
    assert (settled.status, settled.settled_at) == ("completed", t(5))
    assert facts_of(all_entries(desk.storage))[-1].result == {"big": 10**30, "text": "ü🦑"}
    desk.wait(9999)
    assert claim(desk) == []
    assert desk.store.visible(QUEUE) == desk.store.expired(QUEUE) == []


def test_a_failure_with_a_retry_makes_the_next_attempt(desk: Desk) -> None:
    # given a step that failed
    desk.put(scheduled(input={"n": 1}, priority=3, max_deliveries=2, definition_fingerprint="f1"))
    held = one(desk)
    desk.wait(5)
    # when its worker asks for a retry ten seconds later
    retry = Retry(key(attempt=2), seconds(10))
    assert desk.store.settle([broke(held, retry)])[0].unwrap().status == "failed"
    assert statuses(desk) == {key(): "failed", key(attempt=2): "retry_scheduled"}
    # then the next attempt is due by then, as the first was but for its number
    desk.wait(9)
    assert claim(desk) == []
    desk.wait(1)
    again = one(desk).attempt
    assert (again.runnable_key, again.attempt_number, again.idempotency_key) == (
        key(attempt=2),
        2,
        held.attempt.idempotency_key,
    )
    assert (again.input, again.priority, again.max_deliveries, again.step) == ({"n": 1}, 3, 2, "charge")
    assert (again.deliveries, again.fencing_token, again.definition_fingerprint) == (1, 2, "f1")


def test_repeating_an_outcome_is_no_error_and_writes_nothing(desk: Desk) -> None:
    desk.put(work("run-1"), work("run-2"))
    first, second = claim(desk, limit=2)
    group = [done(first), broke(second, Retry(key("run-2", attempt=2), seconds(5)))]
    desk.store.settle(group)
    before = desk.entries()
    desk.wait(500)
    again = [answer.unwrap() for answer in desk.store.settle(group)]
    assert [(a.status, a.settled_at) for a in again] == [("completed", T0), ("failed", T0)]
    assert desk.entries() == before


def test_another_outcome_by_the_same_claim_is_a_conflict_and_the_first_one_stands(desk: Desk) -> None:
    desk.put(work("run-1"), work("run-2"))
    first, second = claim(desk, limit=2)
    desk.store.settle([done(first, {"n": 1}), broke(second)])
    before = desk.entries()
    refused(desk.store.settle([done(first, {"n": 2})])[0], ConflictingCompletion)
    refused(desk.store.settle([Settlement(second.ref, Failed({"message": "timeout"}))])[0], ConflictingCompletion)
    # what is settled one way cannot be settled the other way
    assert isinstance(desk.store.settle([broke(first)])[0].error, ConflictingCompletion | StaleClaim)
    assert isinstance(desk.store.settle([done(second)])[0].error, ConflictingCompletion | StaleClaim)
    assert desk.entries() == before


def test_a_secret_in_an_error_is_redacted_and_its_repeat_is_still_a_repeat(desk: Desk) -> None:
    desk.put(scheduled())
    held = one(desk)
    outcome = Settlement(held.ref, Failed({"message": "401", "api_key": "hunter2"}))
    desk.store.settle([outcome])
    assert "hunter2" not in "".join(to_json(fact) for fact in facts_of(all_entries(desk.storage)))
    before = desk.entries()
    assert desk.store.settle([outcome])[0].unwrap().status == "failed"
    assert desk.entries() == before


def test_a_stale_member_does_not_fail_its_group(desk: Desk) -> None:
    # given four claims, one of which was lost and one of which belongs to a run that ended
    desk.put(*(work(f"run-{n}") for n in range(4)))
    good, lost, ended, late = claim(desk, limit=4)
    desk.store.release([lost.ref])
    desk.put(terminal("run-2"), fenced("run-2"))
    # when all four are settled together
    answers = desk.store.settle([done(good), done(lost), done(ended), broke(late)])
    # then each gets its own answer
    assert [answer.ref for answer in answers] == [c.ref for c in (good, lost, ended, late)]
    assert answers[0].unwrap().status == "completed"
    refused(answers[1], StaleClaim)
    refused(answers[2], TerminalRun)
    assert answers[3].unwrap().status == "failed"
    assert statuses(desk, "run-1") == {key("run-1"): "available"}


def test_members_of_several_queues_are_settled_in_one_call(desk: Desk) -> None:
    desk.put(work("run-1"), work("run-2", queue="slow"))
    (first,) = claim(desk)
    (second,) = desk.store.claim("slow", "worker-1")
    answers = desk.store.settle([done(second), done(first)])
    assert [a.unwrap().run_id for a in answers] == ["run-2", "run-1"]
    assert [a.unwrap().status for a in answers] == ["completed"] * 2


_UNRECORDABLE: dict[str, Completed | Failed] = {
    "no JSON": Completed(object()),
    "NaN": Completed(float("nan")),
    "NUL": Completed({"text": "\0"}),
    "too large": Completed("x" * 1_100_000),
    "error too large": Failed({"message": "x" * 1_100_000}),
    "error no JSON": Failed({"when": datetime(2026, 1, 1)}),  # noqa: DTZ001
    "retry without a key": Failed({"message": "no"}, Retry("", seconds(1))),
    "retry with the key of the attempt": Failed({"message": "no"}, Retry(key("bad"), seconds(1))),
}


def test_an_outcome_that_cannot_be_recorded_is_refused_and_does_not_fail_its_group(desk: Desk) -> None:
    # given a claim with a result that the journal cannot hold, and others beside it
    desk.put(work("bad", priority=1), *(work(f"run-{n}") for n in range(len(_UNRECORDABLE))))
    bad, *good = claim(desk, limit=9)
    wrong: dict[str, str] = {}
    for (name, outcome), other in zip(_UNRECORDABLE.items(), good, strict=True):
        # when both are settled together
        try:
            answers = desk.store.settle([Settlement(bad.ref, outcome), done(other)])
        except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
            wrong[name] = f"the whole group failed with {type(error).__name__}"
            continue
        # then that one is told so, and the other is settled
        if not isinstance(answers[0].error, InvalidFact | InvalidArgument) or answers[1].error is not None:
            wrong[name] = f"{answers[0].error!r}, {answers[1].error!r}"
    assert wrong == {}
    # and it may still be settled with something better
    assert desk.store.settle([done(bad)])[0].unwrap().status == "completed"


# --- deliveries -----------------------------------------------------------------------------------------------------


def test_what_was_delivered_too_often_is_dead_lettered_by_the_claim_that_meets_it(desk: Desk) -> None:
    # given an attempt that two workers lost, and one behind it
    desk.put(work("run-1", max_deliveries=2, priority=5), work("run-2"))
    for _ in range(2):
        assert keys(claim(desk)) == ["run-1"]
        desk.wait(60)
    # when somebody claims
    assert keys(claim(desk)) == ["run-2"]
    # then the first is parked and the second is given
    assert statuses(desk, "run-1") == {key("run-1"): "dead_lettered"}
    fact = next(f for f in facts_of(all_entries(desk.storage)) if f.type == "attempt_dead_lettered")
    assert (fact.deliveries, fact.occurred_at, fact.run_id) == (2, t(120), "run-1")
    desk.wait(60)
    assert desk.store.dead_letter_expired(QUEUE) == []


def test_a_claim_parks_what_is_spent_even_when_it_gets_nothing(desk: Desk) -> None:
    desk.put(scheduled(max_deliveries=1))
    one(desk)
    desk.wait(60)
    assert claim(desk) == []
    assert statuses(desk) == {key(): "dead_lettered"}


def test_recovery_dead_letters_without_claiming(desk: Desk) -> None:
    desk.put(work("run-1", max_deliveries=1), work("run-2", max_deliveries=1), work("run-3"))
    lost = claim(desk, limit=3)
    assert desk.store.dead_letter_expired(QUEUE) == []
    desk.wait(60)
    assert desk.store.dead_letter_expired("slow") == []
    assert desk.store.dead_letter_expired(QUEUE, limit=1) == [key("run-1")]
    assert desk.store.dead_letter_expired(QUEUE) == [key("run-2")]
    assert desk.store.dead_letter_expired(QUEUE) == []
    assert statuses(desk, "run-3") == {key("run-3"): "claimed"}
    refused(desk.store.settle([done(lost[0])])[0], StaleClaim)
    assert keys(claim(desk, limit=9)) == ["run-3"]


def test_more_than_a_thousand_spent_attempts_do_not_hide_a_live_one(desk: Desk) -> None:
    spent = [work(f"spent-{n}", max_deliveries=1, priority=1) for n in range(1100)]
    desk.put(*spent, *(claimed(fact.run_id, at=0, lease=10) for fact in spent), work("alive"), work("alive-too"))
    desk.wait(60)
    assert keys(claim(desk, limit=2)) == ["alive", "alive-too"]
    parked = [f for f in facts_of(all_entries(desk.storage)) if f.type == "attempt_dead_lettered"]
    assert len({f.run_id for f in parked}) == len(parked) == 1100


def test_more_than_a_thousand_expired_claims_do_not_hide_a_spent_one_from_recovery(desk: Desk) -> None:
    waiting = [work(f"run-{n}") for n in range(1050)]
    desk.put(*waiting, *(claimed(fact.run_id, at=0, lease=10) for fact in waiting))
    desk.put(work("spent", max_deliveries=1), claimed("spent", at=0, lease=20))
    desk.wait(60)
    assert desk.store.dead_letter_expired(QUEUE) == [key("spent")]


# --- what gives no claims -------------------------------------------------------------------------------------------


def test_a_paused_queue_gives_no_claims_until_it_is_resumed(desk: Desk) -> None:
    # given a queue with work, of which one is claimed
    desk.put(work("run-1"), work("run-2", max_deliveries=1), work("run-3", queue="slow"))
    held = one(desk)
    # when it is paused
    desk.put(queue_paused())
    # then nothing can be claimed from it, although it is shown
    assert claim(desk, limit=9) == []
    assert [a.run_id for a in desk.store.visible(QUEUE)] == ["run-2"]
    # other queues go on, and what was claimed before can be settled
    assert keys(desk.store.claim("slow", "worker-1")) == ["run-3"]
    assert desk.store.heartbeat([held.ref])[0].unwrap().status == "claimed"
    assert desk.store.settle([done(held)])[0].unwrap().status == "completed"
    # and when it is resumed, claims go on
    desk.put(queue_resumed())
    assert keys(claim(desk, limit=9)) == ["run-2"]


def test_a_worker_claims_only_what_it_has_registered(desk: Desk) -> None:
    # given work of several definitions
    desk.put(
        work("other", workflow="refund", definition_fingerprint="f1", priority=10),
        work("older", workflow="billing", definition_fingerprint="f0"),
        work("mine", workflow="billing", definition_fingerprint="f1"),
        work("bare", workflow=None),
    )
    mine = definition_key("billing", "f1")
    # when a worker claims that knows one of them, or none
    assert claim(desk, limit=9, definitions=[]) == []
    assert claim(desk, limit=9, definitions=["nothing/known"]) == []
    assert keys(claim(desk, limit=9, definitions={mine})) == ["mine"]
    # then the rest stays visible for others
    assert [a.run_id for a in desk.store.visible(QUEUE)] == ["other", "older", "bare"]
    assert keys(claim(desk, limit=9, definitions=(mine, definition_key(None, None)))) == ["bare"]
    assert keys(claim(desk, limit=9, definitions=None)) == ["other", "older"]


def test_a_thousand_attempts_of_another_definition_do_not_hide_one_of_mine(desk: Desk) -> None:
    desk.put(*(work(f"run-{n}", workflow="refund", priority=10) for n in range(1050)), work("mine"))
    assert keys(claim(desk, limit=5, definitions=[definition_key("billing", None)])) == ["mine"]
    assert len(desk.store.visible(QUEUE, limit=2000)) == 1050


def test_a_worker_does_not_dead_letter_what_it_has_not_registered(desk: Desk) -> None:
    desk.put(scheduled(workflow="refund", max_deliveries=1))
    one(desk)
    desk.wait(60)
    assert claim(desk, definitions=[definition_key("billing", None)]) == []
    assert statuses(desk) == {key(): "claimed"}


@pytest.mark.parametrize("how", ["terminal", "terminal and fenced", "fenced"])
def test_a_run_that_has_ended_gives_no_claims_and_takes_no_outcomes(desk: Desk, how: str) -> None:
    # given a run with one attempt claimed, one visible and one expired
    desk.put(
        scheduled("run-1", "c", priority=3), scheduled("run-1", "b", priority=2), scheduled("run-1", "a"), work("x")
    )
    lost, held = *claim(desk, lease=seconds(5)), *claim(desk, lease=seconds(500))
    desk.wait(10)
    # when the run ends
    ends: dict[str, list[Fact]] = {"terminal": [terminal(at=10)], "fenced": [fenced(at=10)]}
    desk.put(*(ends.get(how) or [fenced(at=10), terminal(at=10)]))
    # then nothing of it can be claimed, seen or settled; all else can
    assert keys(claim(desk, limit=9)) == ["x"]
    assert desk.store.visible(QUEUE) == desk.store.expired(QUEUE) == []
    assert desk.store.dead_letter_expired(QUEUE) == []
    before = desk.entries()
    for c in (lost, held):
        refused(desk.store.settle([done(c)])[0], TerminalRun)
        refused(desk.store.settle([broke(c, Retry(c.ref.runnable_key + "x", seconds(1)))])[0], TerminalRun)
        refused(desk.store.heartbeat([c.ref])[0], TerminalRun)
        refused(desk.store.release([c.ref])[0], TerminalRun)
    desk.wait(9999)
    assert keys(claim(desk, limit=9)) == ["x"]
    assert desk.entries() == before + 1


def test_a_quarantined_run_gives_no_claims_and_all_others_do(desk: Desk) -> None:
    desk.put(scheduled(), scheduled(step="ship", max_deliveries=1), work("run-2"))
    first, second = claim(desk, limit=2)
    desk.store.release([first.ref])
    desk.put(quarantined())
    desk.wait(60)
    assert keys(claim(desk, limit=9)) == ["run-2"]
    assert desk.store.visible(QUEUE) == []
    assert statuses(desk) == {key(): "available", key(step="ship"): "claimed"}
    refused(desk.store.settle([done(second)])[0], ExpiredClaim)


# --- planning -------------------------------------------------------------------------------------------------------


class Planner:
    """Applies what was settled, plans one more visit of the step, and remembers what it was asked."""

    def __init__(self, last_visit: int = 99) -> None:
        self.asked: list[PlanRequest] = []
        self._last_visit = last_visit

    def __call__(self, request: PlanRequest) -> list[Fact]:
        self.asked.append(request)
        at = (request.now - T0).total_seconds()
        facts: list[Fact] = []
        for attempt in request.settled:
            if attempt.runnable_key in request.run.applied:
                continue
            visit = int(attempt.runnable_key.split(":")[2])
            facts.append(
                applied(request.run_id, attempt.step, visit=visit, attempt=attempt.attempt_number, at=at, result=None)
            )
            if visit >= self._last_visit:
                facts += [fenced(request.run_id, at=at), terminal(request.run_id, at=at)]
            else:
                follow: dict[str, Any] = {"visit": visit + 1, "visible_at": request.now}
                facts.append(planned(runnable(request.run_id, **follow), run=request.run_id, at=at))
                facts.append(scheduled(request.run_id, at=at, **follow))
        return facts


def start(desk: Desk, *runs: str) -> None:
    """Start runs with their first attempt planned and scheduled."""
    for run in runs:
        desk.put(started(run), queued(run), planned(run=run), scheduled(run))


def test_what_follows_from_an_outcome_is_written_with_it(desk: Desk) -> None:
    # given a run whose first step is done
    start(desk, RUN)
    held = one(desk)
    desk.wait(5)
    revision = desk.storage.revision(run_thread(RUN))
    plan = Planner()
    # when it is settled with a planner
    answer = desk.store.settle([done(held)], plan)[0].unwrap()
    assert answer.status == "completed"
    # then the planner saw the run, what was settled, and the time
    (request,) = plan.asked
    assert (request.run_id, request.now) == (RUN, t(5))
    assert set(request.run.planned) == {key()}
    assert request.run.start is not None
    assert [(a.runnable_key, a.status, a.result) for a in request.settled] == [(key(), "completed", {"ok": True})]
    # and all that followed is on record, the outcome before its application
    written = facts_of(all_entries(desk.storage))[-4:]
    assert {f.type for f in written} == {
        "attempt_completed",
        "runnable_applied",
        "runnables_planned",
        "attempt_scheduled",
    }
    assert [f.type for f in written].index("attempt_completed") < [f.type for f in written].index("runnable_applied")
    assert desk.storage.revision(run_thread(RUN)) == revision + 2
    assert statuses(desk) == {key(): "completed", key(visit=2): "available"}
    assert one(desk).attempt.runnable_key == key(visit=2)


def test_a_planner_sees_each_run_once_with_all_that_was_settled_of_it(desk: Desk) -> None:
    desk.put(planned(runnable(), runnable(step="ship")), scheduled(), scheduled(step="ship"), planned(run="run-2"))
    desk.put(work("run-2"))
    claims = claim(desk, limit=3)
    plan = Planner(last_visit=0)
    desk.store.settle([done(c) for c in claims[:1]] + [broke(claims[2])] + [done(claims[1])], plan)
    assert sorted((r.run_id, sorted(a.step for a in r.settled)) for r in plan.asked) == [
        (RUN, ["charge", "ship"]),
        ("run-2", ["charge"]),
    ]


def test_the_end_of_a_run_is_written_with_its_last_outcome_and_fences_the_rest(desk: Desk) -> None:
    # given a run with two attempts claimed
    start(desk, RUN)
    desk.put(planned(runnable(step="ship")), scheduled(step="ship"))
    first, second = claim(desk, limit=2)
    # when the first of them ends the run
    assert desk.store.settle([done(first)], Planner(last_visit=1))[0].unwrap().status == "completed"
    # then the other comes too late
    refused(desk.store.settle([done(second)])[0], TerminalRun)
    unit = RunUnit.fold(desk.storage.read_run(RUN))
    assert (unit.run.status, unit.dispatch.fenced, unit.anomalies) == ("completed", True, [])
    desk.wait(9999)
    assert claim(desk) == []


def test_a_planner_that_refuses_one_run_leaves_that_run_as_it_was_and_the_others_go_on(desk: Desk) -> None:
    # given three runs, one of which cannot be planned
    start(desk, "run-1", "run-2", "run-3")
    claims = claim(desk, limit=3)
    plan = Planner()

    def picky(request: PlanRequest) -> Sequence[Fact]:
        if request.run_id == "run-2":
            raise InvalidArgument("no such step")
        return plan(request)

    # when all three are settled together
    answers = desk.store.settle([done(c) for c in claims], picky)
    # then that one is told why, and nothing of it is written
    assert [type(a.error) for a in answers] == [type(None), InvalidArgument, type(None)]
    assert statuses(desk, "run-2") == {key("run-2"): "claimed"}
    for run in ("run-1", "run-3"):
        assert statuses(desk, run) == {key(run): "completed", key(run, visit=2): "available"}
    # and it can be settled later
    assert desk.store.settle([done(claims[1])], plan)[1 - 1].unwrap().status == "completed"
    assert statuses(desk, "run-2")[key("run-2", visit=2)] == "available"


def test_a_planner_whose_facts_cannot_be_written_fails_its_own_run_only(desk: Desk) -> None:
    start(desk, "run-1", "run-2")
    claims = claim(desk, limit=2)

    def verbose(request: PlanRequest) -> Sequence[Fact]:
        return [signal(request.run_id, payload={"x": "y" * (1_100_000 if request.run_id == "run-1" else 1)})]

    answers = desk.store.settle([done(c) for c in claims], verbose)
    assert isinstance(answers[0].error, InvalidFact)
    assert answers[1].unwrap().status == "completed"
    assert statuses(desk, "run-1") == {key("run-1"): "claimed"}


def test_a_planner_is_not_asked_about_refused_outcomes(desk: Desk) -> None:
    start(desk, RUN)
    held = one(desk)
    plan = Planner()
    refused(desk.store.settle([Settlement(other_token(held.ref), Completed(1))], plan)[0], StaleClaim)
    assert plan.asked == []


def test_repeating_a_planned_outcome_changes_nothing(desk: Desk) -> None:
    start(desk, RUN)
    held = one(desk)
    desk.store.settle([done(held)], Planner())
    before = desk.entries()
    assert desk.store.settle([done(held)], Planner())[0].unwrap().status == "completed"
    assert desk.entries() == before
    assert statuses(desk) == {key(): "completed", key(visit=2): "available"}


def test_a_planner_may_schedule_the_work_of_other_runs(desk: Desk) -> None:
    start(desk, RUN)
    held = one(desk)
    child: list[Fact] = [started("child-1"), planned(run="child-1"), scheduled("child-1")]
    desk.store.settle([done(held)], lambda _: child)
    assert keys(claim(desk, limit=9)) == ["child-1"]


# --- bad arguments --------------------------------------------------------------------------------------------------

_OUT_OF_RANGE: dict[str, Callable[[Any, ClaimRef], object]] = {
    "limit 0": lambda store, _: store.claim(QUEUE, "w", limit=0),
    "limit -1": lambda store, _: store.claim(QUEUE, "w", limit=-1),
    "limit 1001": lambda store, _: store.claim(QUEUE, "w", limit=1001),
    "limit True": lambda store, _: store.claim(QUEUE, "w", limit=True),
    "limit 1.5": lambda store, _: store.claim(QUEUE, "w", limit=1.5),
    "no lease": lambda store, _: store.claim(QUEUE, "w", lease=seconds(0)),
    "negative lease": lambda store, _: store.claim(QUEUE, "w", lease=seconds(-1)),
    "lease of 31 days": lambda store, _: store.claim(QUEUE, "w", lease=timedelta(days=31)),
    "lease without a unit": lambda store, _: store.claim(QUEUE, "w", lease=60),
    "no owner": lambda store, _: store.claim(QUEUE, ""),
    "long owner": lambda store, _: store.claim(QUEUE, "w" * 1001),
    "owner None": lambda store, _: store.claim(QUEUE, None),
    "owner with a NUL": lambda store, _: store.claim(QUEUE, "w\0"),
    "definitions as one text": lambda store, _: store.claim(QUEUE, "w", definitions="billing/f1"),
    "heartbeat of no time": lambda store, ref: store.heartbeat([ref], seconds(0)),
    "heartbeat of 31 days": lambda store, ref: store.heartbeat([ref], timedelta(days=31)),
    "heartbeat twice": lambda store, ref: store.heartbeat([ref, ref]),
    "release twice": lambda store, ref: store.release([ref, ref]),
    "release for no reason": lambda store, ref: store.release([ref], ""),
    "release for a long reason": lambda store, ref: store.release([ref], "x" * 10_001),
    "settle twice": lambda store, ref: store.settle([Settlement(ref, Completed(1)), Settlement(ref, Failed({}))]),
}


def test_an_argument_out_of_range_is_refused_and_nothing_is_written(desk: Desk) -> None:
    desk.put(scheduled(), work("run-2", definition_fingerprint="f1"))
    held = one(desk)
    wrong: dict[str, str] = {}
    for name, call in _OUT_OF_RANGE.items():
        before = desk.entries()
        try:
            answer = call(desk.store, held.ref)
        except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
            if not isinstance(error, InvalidArgument):
                wrong[name] = f"{type(error).__name__}: {error}"
        else:
            wrong[name] = f"answered {answer}"
        assert desk.entries() == before, name
    assert wrong == {}


def test_an_odd_queue_is_refused(desk: Desk) -> None:
    odd: list[Any] = ["", "a b", "a:b", "queue\n", "-x", "x" * 201, None]
    for queue in odd:
        with pytest.raises(InvalidThread):
            desk.store.claim(queue, "w")
        for look in (desk.store.visible, desk.store.expired, desk.store.dead_letter_expired):
            with pytest.raises(InvalidThread):
                look(queue)
    assert desk.entries() == 0


def test_an_empty_group_is_no_error(desk: Desk) -> None:
    assert desk.store.settle([]) == desk.store.heartbeat([]) == desk.store.release([]) == []
    assert desk.entries() == 0


# --- lost answers ---------------------------------------------------------------------------------------------------


def test_a_claim_whose_answer_was_lost_is_given_again_in_claim_order(
    wire: Wire, behind_wire: PostgresStorage, postgres_desk: Desk
) -> None:
    # given a connection that breaks after the database has claimed, before it says so
    postgres_desk.put(*(work(f"run-{n}", priority=n) for n in range(6)))
    store = PostgresDispatchStore(behind_wire)
    behind_wire.now()
    store.visible(QUEUE)
    wire.lose_answer_to("claim_attempts")
    # when attempts are claimed
    claims = store.claim(QUEUE, "worker-1", limit=4)
    # then they were claimed once, and come with tokens that fit
    assert wire.lost == 1
    assert keys(claims) == ["run-5", "run-4", "run-3", "run-2"]
    assert [c.attempt.deliveries for c in claims] == [1] * 4
    assert all(a.unwrap().status == "completed" for a in store.settle([done(c) for c in claims]))
    assert keys(store.claim(QUEUE, "worker-1", limit=9)) == ["run-1", "run-0"]


def test_an_outcome_whose_answer_was_lost_is_recorded_once_and_every_member_hears_the_truth(
    wire: Wire, behind_wire: PostgresStorage, postgres_desk: Desk
) -> None:
    # given a group with a stale member, and a connection that breaks after the commit
    start(postgres_desk, "run-1", "run-2", "run-3")
    store = PostgresDispatchStore(behind_wire)
    good, stale, ending = store.claim(QUEUE, "worker-1", limit=3)
    postgres_desk.store.release([stale.ref])
    taken = one(postgres_desk)
    assert taken.ref.run_id == "run-2"
    wire.lose_answer_to("COMMIT")
    plan = Planner()
    # when the group is settled
    answers = store.settle([done(good), done(stale), done(ending)], plan)
    # then what was written is told as written, and the stale one as refused
    assert wire.lost == 1
    assert [answers[0].unwrap().status, answers[2].unwrap().status] == ["completed"] * 2
    refused(answers[1], StaleClaim)
    # and nothing is there twice
    for run in ("run-1", "run-3"):
        assert statuses(postgres_desk, run) == {key(run): "completed", key(run, visit=2): "available"}
    types = [f.type for f in facts_of(all_entries(postgres_desk.storage))]
    assert (types.count("attempt_completed"), types.count("runnable_applied")) == (2, 2)
    assert_views_agree_with_the_journal(behind_wire)


# --- statement and fold agree ---------------------------------------------------------------------------------------

_MOVES = (
    *("schedule",) * 4,
    *("claim",) * 6,
    *("complete",) * 3,
    "complete and plan",
    "complete and plan",
    *("fail",) * 2,
    "retry",
    "retry",
    "heartbeat",
    "heartbeat",
    "release",
    "dead letter",
    *("wait",) * 5,
    "pause",
    "resume",
    "resume",
    "end",
    "fence",
    "quarantine",
    "look",
)
_moves = st.lists(
    st.tuples(st.sampled_from(_MOVES), st.integers(0, 999), st.integers(0, 999)), min_size=18, max_size=40
)


class World:
    """One dispatch store, driven by moves that mean the same to every other one."""

    def __init__(self, storage: Storage, store: DispatchStore, clock: VirtualClock, name: str) -> None:
        self.desk, self.clock, self.name = Desk(storage, store, clock), clock, name
        self.claims: list[Claim] = []
        self.runs = [f"{name}-{n}" for n in range(3)]
        self.visits = dict.fromkeys(self.runs, 0)
        self.ended: set[str] = set()

    @property
    def at(self) -> float:
        return (self.clock.now() - T0).total_seconds()

    def move(self, kind: str, a: int, b: int) -> Any:
        """Make one move, and tell what came of it without naming what differs by chance."""
        run = self.runs[a % 3]
        held = self.claims[-1 - a % min(4, len(self.claims))] if self.claims else None
        match kind:
            case "schedule" if run not in self.ended:
                return self._schedule(run, b)
            case "claim":
                return self._claim(a, b)
            case "wait":
                self.clock.advance(seconds((0, 1, 10, 30, 31, 30, -5, -20)[a % 8]))
            case "pause" | "resume":
                pause = queue_paused if kind == "pause" else queue_resumed
                self.desk.put(pause(self.name, at=self.at))
            case "end" | "fence" | "quarantine" if b % 3 == 0 and run not in self.ended and self.visits[run]:
                self._stop(kind, run)
            case "dead letter":
                return self.desk.store.dead_letter_expired(self.name)
            case "look":
                visible, expired = self.desk.store.visible(self.name), self.desk.store.expired(self.name)
                return [x.runnable_key for x in visible], [x.runnable_key for x in expired]
            case _ if held is not None:
                return self._act(kind, held, a, b)
        return None

    def _schedule(self, run: str, b: int) -> None:
        self.visits[run] += 1
        options: dict[str, Any] = {
            "visit": self.visits[run],
            "visible_at": self.clock.now() + seconds((0, 0, 0, 20)[b % 4]),
            "priority": (0, 0, 5, -5)[b % 4],
            "max_deliveries": (1, 1, 2, 5)[b % 4],
            "queue": self.name,
        }
        work_fact = scheduled(run, at=self.at, definition_fingerprint=("f1", "f2")[b % 2], **options)
        self.desk.put(planned(runnable(run, **options), run=run, at=self.at), work_fact)

    def _stop(self, kind: str, run: str) -> None:
        facts: dict[str, list[Fact]] = {
            "end": [fenced(run, at=self.at, queue=self.name), terminal(run, at=self.at)],
            "fence": [fenced(run, at=self.at, queue=self.name)],
            "quarantine": [quarantined(run, at=self.at)],
        }
        self.desk.put(*facts[kind])
        if kind != "quarantine":
            self.ended.add(run)

    def _claim(self, a: int, b: int) -> Any:
        known = [None, None, [definition_key("billing", "f1")], []][b % 4]
        found = self.desk.store.claim(
            self.name, "w", limit=1 + a % 3, lease=seconds((10, 30)[b % 2]), definitions=known
        )
        self.claims += found
        return [
            (c.attempt.runnable_key, c.attempt.deliveries, c.attempt.fencing_token, c.lease_until, c.attempt.input)
            for c in found
        ]

    def _act(self, kind: str, held: Claim, a: int, b: int) -> Any:
        store = self.desk.store
        group = list({c.ref.runnable_key: c for c in [held, *self.claims[-1 - b % 3 :]]}.values())
        match kind:
            case "complete":
                answers = store.settle([done(c, {"n": b % 2}) for c in group])
            case "complete and plan":
                answers = store.settle([done(c) for c in group], self._plan)
            case "fail":
                answers = store.settle([broke(c) for c in group])
            case "retry":
                answers = store.settle([broke(c, self._retry(c, b)) for c in group])
            case "heartbeat":
                answers = store.heartbeat([c.ref for c in group], seconds((5, 30)[b % 2]))
            case "release":
                answers = store.release([c.ref for c in group])
            case _:
                return None
        return [
            type(answer.error).__name__
            if answer.attempt is None or answer.error
            else (
                answer.attempt.runnable_key,
                answer.attempt.status,
                answer.attempt.deliveries,
                answer.attempt.fencing_token,
                answer.attempt.lease_until,
                answer.attempt.settled_at,
            )
            for answer in answers
        ]

    def _retry(self, c: Claim, b: int) -> Retry:
        run, step, visit, number = c.ref.runnable_key.split(":")
        return Retry(key(run, step, int(number) + 1, int(visit)), seconds((0, 15)[b % 2]))

    def _plan(self, request: PlanRequest) -> Sequence[Fact]:
        run = request.run_id
        if request.run.applied_visits >= 3:
            self.ended.add(run)
            return [fenced(run, at=self.at, queue=self.name), terminal(run, at=self.at)]
        facts: list[Fact] = [
            applied(run, runnable_key=a.runnable_key, at=self.at)
            for a in request.settled
            if a.runnable_key in request.run.planned
        ]
        self.visits[run] += 1
        follow: dict[str, Any] = {"visit": self.visits[run], "visible_at": request.now, "queue": self.name}
        facts.append(planned(runnable(run, **follow), run=run, at=self.at))
        facts.append(scheduled(run, at=self.at, **follow))
        return facts


@given(moves=_moves)
@settings(max_examples=110, phases=(Phase.explicit, Phase.generate))
def test_statement_and_fold_agree_on_any_sequence_of_operations(
    postgres_shared: PostgresStorage, moves: list[tuple[str, int, int]]
) -> None:
    # given the same moves on the set-based store in Postgres and on the fold in memory
    name = f"agree{next(_numbers)}"
    clocks = VirtualClock(T0), VirtualClock(T0)
    postgres_shared.clock = clocks[0]
    memory = MemoryStorage(clocks[1])
    statement = World(postgres_shared, PostgresDispatchStore(postgres_shared), clocks[0], name)
    fold = World(memory, FoldDispatchStore(memory), clocks[1], name)
    for number, move in enumerate(moves):
        # when both make each move, then the same comes of it
        assert statement.move(*move) == fold.move(*move), f"move {number}, {move}, of {moves}"
    for run in statement.runs:
        mine, theirs = (world.desk.storage.read_run(run) for world in (statement, fold))
        # and both wrote the same facts, but for ids and hashes, without an anomaly
        assert [_comparable(f) for f in facts_of(mine)] == [_comparable(f) for f in facts_of(theirs)]
        assert RunUnit.fold(mine).anomalies == []
    # and the rows of the views are what the fold gives
    touched = [run for run in statement.runs if postgres_shared.read_run(run)]
    assert_views_agree_with_the_journal(postgres_shared, touched)


def _comparable(fact: Any) -> Any:
    return fact.model_dump(exclude={"claim_id", "claim_token_hash"})


def test_workers_at_full_speed_leave_no_anomaly_and_views_that_agree(postgres: PostgresStorage) -> None:
    # given twelve runs of three visits each, and four workers, one of which loses every second claim
    store = PostgresDispatchStore(postgres)
    runs = [f"run-{n}" for n in range(12)]
    for run in runs:
        put(postgres, started(run), planned(run=run), scheduled(run))

    def plan(request: PlanRequest) -> Sequence[Fact]:
        (attempt,) = request.settled
        visit = int(attempt.runnable_key.split(":")[2])
        at = (request.now - T0).total_seconds()
        facts: list[Fact] = [applied(request.run_id, visit=visit, at=at)]
        if visit == 3:
            return [*facts, terminal(request.run_id, at=at)]
        follow: dict[str, Any] = {"visit": visit + 1, "visible_at": request.now}
        facts.append(planned(runnable(request.run_id, **follow), run=request.run_id, at=at))
        return [*facts, scheduled(request.run_id, at=at, **follow)]

    def ended() -> bool:
        return all(f"{run}:charge:3:1" in RunUnit.fold(postgres.read_run(run)).run.applied for run in runs)

    def labour(number: int) -> None:
        turn = 0
        while True:
            claims = store.claim(QUEUE, f"worker-{number}", limit=2)
            turn += 1
            if claims and number == 0 and turn % 2:
                store.release([c.ref for c in claims])
            elif claims:
                for answer in store.settle([done(c) for c in claims], plan):
                    answer.unwrap()
            elif ended():
                return

    # when all work until everything is done
    at_once([partial(labour, n) for n in range(4)])
    # then every run has ended, nothing was done twice, and rows and journal agree
    for run in runs:
        unit = RunUnit.fold(postgres.read_run(run))
        assert (unit.run.status, unit.run.applied_visits, unit.anomalies) == ("completed", 3, [])
        facts = facts_of(postgres.read(run_thread(run)))
        assert [f.type for f in facts].count("runnable_applied") == 3
        assert all(before.position < after.position for before, after in pairwise(postgres.read_run(run)))
    assert_views_agree_with_the_journal(postgres)


def test_an_attempt_without_a_cap_of_its_own_is_delivered_five_times(desk: Desk) -> None:
    desk.put(scheduled())
    for _ in range(DEFAULT_MAX_DELIVERIES):
        assert len(claim(desk)) == 1
        desk.wait(60)
    assert claim(desk) == []
    assert statuses(desk) == {key(): "dead_lettered"}
