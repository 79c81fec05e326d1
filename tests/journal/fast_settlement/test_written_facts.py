"""The fast way of a settlement writes what the general way writes."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresDispatchStore, PostgresStorage, verify
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Answer, Completed, PlanRequest, Settlement
from squid_dagster.journal.plan_state.cache import PlanStates
from squid_dagster.protocol import Fact, dispatch_thread, run_thread
from squid_dagster.protocol.folds.unknown_state import UnknownState
from squid_dagster.runtime.execution.settlement import settle
from tests.facts import QUEUE
from tests.journal.access import AWKWARD, assert_views_agree_with_the_journal, raw
from tests.journal.fast_settlement.workflows import (
    ALONE,
    SHAPES,
    begun,
    claimed,
    completions,
    facts_without_names,
    fast,
    settled,
    workflow,
)

# --- what it writes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("result", [None, {"deep": [1, {"x": 1e300}], "text": "ü\u2028"}], ids=["none", "deep"])
def test_what_it_writes_is_what_the_general_way_writes(
    postgres_virtual: PostgresStorage, clock: VirtualClock, fast_counts: list[int], shape: str, result: Any
) -> None:
    # given two runs that are alike
    squid, (mine, other) = begun(postgres_virtual, workflow(shape), 2)
    clock.advance(timedelta(seconds=3))
    # when one is settled by the store that has claimed it, and the other by one that has not
    (first,) = settled(squid, [mine], result)
    (second,) = PostgresDispatchStore(postgres_virtual).settle(completions([other], result), squid.runtime.plan)
    # then only the first has taken the fast way, and both read the same
    assert fast_counts == [1, 0]
    facts = [facts_without_names(postgres_virtual, claim.ref.run_id) for claim in (mine, other)]
    assert facts[0] == facts[1]
    assert _state(first) == _state(second)
    assert_views_agree_with_the_journal(postgres_virtual)
    assert verify(postgres_virtual) == []


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("result", [None, "x", 1.0, AWKWARD], ids=["none", "text", "number", "awkward"])
def test_what_a_worker_writes_is_what_the_general_way_writes(
    postgres_virtual: PostgresStorage, clock: VirtualClock, fast_counts: list[int], shape: str, result: Any
) -> None:
    # given three runs that are alike
    squid, claims = begun(postgres_virtual, workflow(shape), 3)
    clock.advance(timedelta(seconds=3))
    # when two are settled as a worker does, which makes a template and then fills it in, and one in the general way
    answers = [settle(squid.runtime, completions([claim], result)).answers[0] for claim in claims[:2]]
    answers += PostgresDispatchStore(postgres_virtual).settle(completions(claims[2:], result), squid.runtime.plan)
    # then all read the same
    assert fast_counts == [1, 1, 0]
    facts = [facts_without_names(postgres_virtual, claim.ref.run_id) for claim in claims]
    assert facts[0] == facts[1] == facts[2]
    assert _state(answers[0]) == _state(answers[1]) == _state(answers[2])
    assert_views_agree_with_the_journal(postgres_virtual)
    assert verify(postgres_virtual) == []


def test_a_result_that_a_template_cannot_take_is_refused_alone(
    postgres: PostgresStorage, fast_counts: list[int]
) -> None:
    squid, claims = begun(postgres, workflow("chain"), 4)
    settle(squid.runtime, completions(claims[:1]))
    results: list[Any] = ["nul \0", float("nan"), "fine"]
    group = [Settlement(claim.ref, Completed(result)) for claim, result in zip(claims[1:], results, strict=True)]
    answers = settle(squid.runtime, group).answers
    # a result that cannot be written fails its step, as always
    assert [answer.unwrap().status for answer in answers] == ["failed", "failed", "completed"]
    assert fast_counts[:2] == [1, 1]
    assert_views_agree_with_the_journal(postgres)


def _state(answer: Answer) -> tuple[object, ...]:
    attempt = answer.unwrap()
    return (
        attempt.status,
        attempt.last_at,
        attempt.settled_at,
        attempt.outcome_digest,
        attempt.lease_until,
        attempt.result,
    )


def test_a_group_is_one_commit_of_queue_facts_by_run_and_then_of_each_runs_own(postgres: PostgresStorage) -> None:
    squid, claims = begun(postgres, workflow("chain"), 5)
    before, revision = postgres.cut(), postgres.revision(dispatch_thread(QUEUE))
    assert fast(postgres, claims, squid.runtime.plan) == [claim.ref.run_id for claim in claims]
    entries = postgres.read_between(before, postgres.cut())
    types = [entry.fact.type for entry in entries]
    assert types == ["attempt_completed", "attempt_scheduled"] * 5 + ["runnable_applied", "runnables_planned"] * 5
    # one commit, whose positions follow each other, as do the numbers in each thread
    assert [after.position - entry.position for entry, after in pairwise(entries)] == [1] * 19
    assert [entry.seq for entry in entries[:10]] == list(range(revision + 1, revision + 11))
    for n, claim in enumerate(claims):
        mine = postgres.read(run_thread(claim.ref.run_id))
        assert [entry.seq for entry in mine] == [1, 2, 3, 4, 5]
        assert mine[3:] == entries[10 + 2 * n : 12 + 2 * n]
    assert postgres.revision(dispatch_thread(QUEUE)) == revision + 10
    assert {postgres.revision(run_thread(claim.ref.run_id)) for claim in claims} == {5}
    assert_views_agree_with_the_journal(postgres)
    assert verify(postgres) == []


def test_runs_of_several_queues_are_written_at_once(postgres: PostgresStorage) -> None:
    # given runs on queues whose names come in another order than the runs
    squid = Squid(postgres, [workflow("chain")])
    for run_id, queue in (("run-1", "slow"), ("run-2", "Quick"), ("run-3", "slow"), ("run-4", "default")):
        squid.start("shape", run_id=run_id, queue=queue)
    queues = ("Quick", "default", "slow")
    for _ in range(2):
        claims = [claim for queue in queues for claim in squid.runtime.dispatch.claim(queue, "worker", limit=2)]
        claims.sort(key=lambda claim: claim.ref.run_id)
        # when all are settled together, then all are written
        assert fast(postgres, claims, squid.runtime.plan) == ["run-1", "run-2", "run-3", "run-4"]
        for queue in queues:
            assert [entry.seq for entry in postgres.read(dispatch_thread(queue))] == list(
                range(1, postgres.revision(dispatch_thread(queue)) + 1)
            )
        assert_views_agree_with_the_journal(postgres)
    assert verify(postgres) == []


def test_an_end_deletes_the_attempts_of_its_run_and_of_no_other(postgres: PostgresStorage) -> None:
    squid, claims = begun(postgres, workflow("chain"), 3)
    settled(squid, claims[:2])
    (last,) = [claim for claim in claimed(squid, 2) if claim.ref.run_id == claims[0].ref.run_id]
    assert fast(postgres, [last, claims[2]], squid.runtime.plan) == [last.ref.run_id, claims[2].ref.run_id]
    with raw(postgres) as connection:
        rows = connection.execute("SELECT run_id, count(*) FROM attempts GROUP BY 1 ORDER BY 1").fetchall()
        fenced = connection.execute("SELECT run_id FROM runs WHERE fenced").fetchall()
    assert dict(rows) == {claims[1].ref.run_id: 2, claims[2].ref.run_id: 2}
    assert fenced == [(claims[0].ref.run_id,)]
    assert_views_agree_with_the_journal(postgres)


def test_two_of_one_run_in_a_group_are_planned_together(postgres: PostgresStorage, fast_counts: list[int]) -> None:
    squid, first = begun(postgres, workflow("fan out"))
    settled(squid, first)
    both = claimed(squid, 2)
    requests: list[PlanRequest] = []

    def plan(request: PlanRequest) -> Sequence[Fact]:
        requests.append(request)
        return squid.runtime.plan(request)

    answers = squid.runtime.dispatch.settle(completions(both), plan)
    assert [answer.unwrap().step for answer in answers] == ["b", "c"]
    assert fast_counts == [1, 2]
    assert [len(request.settled) for request in requests] == [2]
    assert squid.inspect_run(first[0].ref.run_id).status == "completed"
    assert_views_agree_with_the_journal(postgres)


def test_a_run_whose_state_is_known_is_not_read_again(postgres: PostgresStorage) -> None:
    # given the state that a settlement has left behind
    squid, claims = begun(postgres, workflow("loop"))
    states = PlanStates()
    assert len(fast(postgres, claims, squid.runtime.plan, states)) == 1
    (known,) = [states.take(claim.ref.run_id) for claim in claims]
    assert known is not None
    assert known.revision == postgres.revision(run_thread(claims[0].ref.run_id)) == 5
    # then the next step is planned by it, and by no other
    states.put(claims[0].ref.run_id, *known)
    (second,) = claimed(squid, 1)
    with raw(postgres) as connection:
        before = _entries_read(connection)
        assert len(fast(postgres, [second], squid.runtime.plan, states)) == 1
        assert _entries_read(connection) == before
    assert states.take(claims[0].ref.run_id) is None, "a run that has ended needs none"
    assert_views_agree_with_the_journal(postgres)


def _entries_read(connection: Any) -> int:
    """Return how many entries statements of any session have read so far."""
    connection.execute("SELECT pg_stat_force_next_flush()")
    (row,) = connection.execute(
        "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_user_tables WHERE relid = 'journal_entries'::regclass"
    ).fetchall()
    return int(row[0])


@pytest.mark.parametrize("shape", ALONE)
def test_a_run_at_one_step_alone_is_planned_for_without_its_state(postgres: PostgresStorage, shape: str) -> None:
    squid, claims = begun(postgres, workflow(shape))
    requests: list[PlanRequest] = []

    def plan(request: PlanRequest) -> Sequence[Fact]:
        requests.append(request)
        return squid.runtime.plan(request)

    states = PlanStates()
    assert len(fast(postgres, claims, plan, states)) == 1
    assert [type(request.run).__name__ for request in requests] == [UnknownState.__name__]
    assert states.take(claims[0].ref.run_id) is None
    assert_views_agree_with_the_journal(postgres)
