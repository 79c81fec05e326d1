"""The fast way of a settlement: what it takes, what it leaves to the general way, and that both write the same."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, LiteralString

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresDispatchStore, PostgresStorage, verify
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Answer, Claim, Completed, Failed, PlanRequest, Settlement
from squid_dagster.journal.plan_state.cache import PlanStates
from squid_dagster.journal.postgres.dispatch.settle_fast import settle_fast
from squid_dagster.journal.postgres.dispatch.settle_template import SettleTemplates
from squid_dagster.journal.settlement.rounds import GroupTooLarge
from squid_dagster.protocol import Fact, RunUnit, dispatch_thread, run_thread
from squid_dagster.protocol.errors import (
    InvalidFact,
    StaleClaim,
    StorageRefused,
    StorageUnavailable,
    TerminalRun,
)
from squid_dagster.protocol.folds.plan_state import UnknownState
from squid_dagster.runtime.execution.settlement import settle
from squid_dagster.workflow import Workflow
from tests.facts import QUEUE, child, quarantined, scheduled, signal, terminal, with_fields
from tests.journal.access import (
    AWKWARD,
    all_entries,
    assert_views_agree_with_the_journal,
    facts_of,
    put,
    raw,
    terminate_backends,
)
from tests.journal.fast_settlement.workflows import (
    ALONE,
    BY_STATE,
    SHAPES,
    begun,
    claimed,
    completions,
    facts_without_names,
    fast,
    nothing,
    settled,
    workflow,
)

# --- what it writes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("result", [None, {"deep": [1, {"x": 1e300}], "text": "ü\u2028"}], ids=["none", "deep"])
def test_what_it_writes_is_what_the_general_way_writes(
    postgres_virtual: PostgresStorage, clock: VirtualClock, taken: list[int], shape: str, result: Any
) -> None:
    # given two runs that are alike
    squid, (mine, other) = begun(postgres_virtual, workflow(shape), 2)
    clock.advance(timedelta(seconds=3))
    # when one is settled by the store that has claimed it, and the other by one that has not
    (first,) = settled(squid, [mine], result)
    (second,) = PostgresDispatchStore(postgres_virtual).settle(completions([other], result), squid.runtime.plan)
    # then only the first has taken the fast way, and both read the same
    assert taken == [1, 0]
    facts = [facts_without_names(postgres_virtual, claim.ref.run_id) for claim in (mine, other)]
    assert facts[0] == facts[1]
    assert _state(first) == _state(second)
    assert_views_agree_with_the_journal(postgres_virtual)
    assert verify(postgres_virtual) == []


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("result", [None, "x", 1.0, AWKWARD], ids=["none", "text", "number", "awkward"])
def test_what_a_worker_writes_is_what_the_general_way_writes(
    postgres_virtual: PostgresStorage, clock: VirtualClock, taken: list[int], shape: str, result: Any
) -> None:
    # given three runs that are alike
    squid, claims = begun(postgres_virtual, workflow(shape), 3)
    clock.advance(timedelta(seconds=3))
    # when two are settled as a worker does, which makes a template and then fills it in, and one in the general way
    answers = [settle(squid.runtime, completions([claim], result)).answers[0] for claim in claims[:2]]
    answers += PostgresDispatchStore(postgres_virtual).settle(completions(claims[2:], result), squid.runtime.plan)
    # then all read the same
    assert taken == [1, 1, 0]
    facts = [facts_without_names(postgres_virtual, claim.ref.run_id) for claim in claims]
    assert facts[0] == facts[1] == facts[2]
    assert _state(answers[0]) == _state(answers[1]) == _state(answers[2])
    assert_views_agree_with_the_journal(postgres_virtual)
    assert verify(postgres_virtual) == []


def test_a_result_that_a_template_cannot_take_is_refused_alone(postgres: PostgresStorage, taken: list[int]) -> None:
    squid, claims = begun(postgres, workflow("chain"), 4)
    settle(squid.runtime, completions(claims[:1]))
    results: list[Any] = ["nul \0", float("nan"), "fine"]
    group = [Settlement(claim.ref, Completed(each)) for claim, each in zip(claims[1:], results, strict=True)]
    answers = settle(squid.runtime, group).answers
    # what cannot be written down fails its step, as ever
    assert [answer.unwrap().status for answer in answers] == ["failed", "failed", "completed"]
    assert taken[:2] == [1, 1]
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


def test_two_of_one_run_in_a_group_are_planned_together(postgres: PostgresStorage, taken: list[int]) -> None:
    squid, first = begun(postgres, workflow("fan out"))
    settled(squid, first)
    both = claimed(squid, 2)
    requests: list[PlanRequest] = []

    def plan(request: PlanRequest) -> Sequence[Fact]:
        requests.append(request)
        return squid.runtime.plan(request)

    answers = squid.runtime.dispatch.settle(completions(both), plan)
    assert [answer.unwrap().step for answer in answers] == ["b", "c"]
    assert taken == [1, 2]
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


# --- what it leaves to the general way ------------------------------------------------------------------------------

ROWS: dict[str, LiteralString] = {
    "another claim": "UPDATE attempts SET claim_id = 'another' WHERE run_id = %s",
    "another token": "UPDATE attempts SET claim_token_hash = 'another' WHERE run_id = %s",
    "not claimed": "UPDATE attempts SET status = 'available' WHERE run_id = %s",
    "a lease that has run out": "UPDATE attempts SET lease_until = clock_timestamp() WHERE run_id = %s",
    "a later fact": "UPDATE attempts SET last_at = clock_timestamp() + interval '1 minute' WHERE run_id = %s",
    "an attempt of another queue": "UPDATE attempts SET queue = 'slow' WHERE run_id = %s",
    "not planned": "UPDATE attempts SET planned_digest = NULL WHERE run_id = %s",
    "applied": "UPDATE attempts SET applied_digest = 'x' WHERE run_id = %s",
    "no attempt": "DELETE FROM attempts WHERE run_id = %s",
    "a fenced run": "UPDATE runs SET fenced = true WHERE run_id = %s",
    "a run that may not be claimed": "UPDATE runs SET quarantined = true WHERE run_id = %s",
    "a quarantined run": "UPDATE runs SET quarantine = '[]' WHERE run_id = %s",
    "an ended run": "UPDATE runs SET terminal_status = 'failed' WHERE run_id = %s",
    "a run of another queue": "UPDATE runs SET queue = 'slow' WHERE run_id = %s",
    "no run": "DELETE FROM runs WHERE run_id = %s",
    "no thread": "DELETE FROM journal_threads WHERE id = 'squid:run:' || %s",
}


# What the revision of a state stands for: compared one by one where a run is planned for without its state.
ROWS_WITHOUT_STATE: dict[str, LiteralString] = {
    "another open visit": "UPDATE runs SET planned_visits = planned_visits + 1 WHERE run_id = %s",
    "no open visit": "UPDATE runs SET applied_visits = applied_visits + 1 WHERE run_id = %s",
    "a paused run": "UPDATE runs SET manual_state = '[]' WHERE run_id = %s",
    "no start": "UPDATE runs SET start_digest = NULL WHERE run_id = %s",
    "an anomaly": """INSERT INTO anomalies (run_id, position, ordinal, thread, seq, entry_type, reason)
        VALUES (%s, 1, 1, 'x', 1, 'x', 'malformed_entry')""",
}
ROWS_BY_STATE: dict[str, LiteralString] = {
    "another revision": "UPDATE journal_threads SET rev = rev + 1 WHERE id = 'squid:run:' || %s",
}


@pytest.mark.parametrize(
    ("shape", "row"),
    [
        *((shape, row) for shape in (*ALONE, *BY_STATE) for row in ROWS),
        *((shape, row) for shape in ALONE for row in ROWS_WITHOUT_STATE),
        *((shape, row) for shape in BY_STATE for row in ROWS_BY_STATE),
    ],
)
def test_a_run_whose_rows_differ_is_left_out_whole_and_alone(postgres: PostgresStorage, row: str, shape: str) -> None:
    # given three claims and the states of their runs, and a row of one of them that has changed since
    squid, claims = begun(postgres, workflow(shape), 3)
    states = PlanStates()
    assert fast(postgres, claims, _raises, states) == [], "the states are kept"
    run_id = claims[1].ref.run_id
    with raw(postgres) as connection:
        connection.execute({**ROWS, **ROWS_WITHOUT_STATE, **ROWS_BY_STATE}[row], (run_id,))
    # when all are settled together
    before = postgres.read_run(run_id), _rows(postgres, run_id)
    assert fast(postgres, claims, squid.runtime.plan, states) == [claims[0].ref.run_id, claims[2].ref.run_id]
    # then nothing of that one is written, no row of it has changed, and the others are whole
    assert (postgres.read_run(run_id), _rows(postgres, run_id)) == before
    assert_views_agree_with_the_journal(postgres, [claims[0].ref.run_id, claims[2].ref.run_id])


def _rows(storage: PostgresStorage, run_id: str) -> list[Any]:
    """Return the rows of a run, of its attempts and of its thread."""
    with raw(storage) as connection:
        return connection.execute(
            """SELECT to_json(r)::text FROM runs r WHERE run_id = %(run)s
                UNION ALL SELECT to_json(a)::text FROM attempts a WHERE run_id = %(run)s
                UNION ALL SELECT to_json(t)::text FROM journal_threads t WHERE id = 'squid:run:' || %(run)s""",
            {"run": run_id},
        ).fetchall()


def _raises(_: PlanRequest) -> Sequence[Fact]:
    raise RuntimeError("nothing follows")


def test_a_queue_without_a_thread_is_left_to_the_general_way(postgres: PostgresStorage) -> None:
    squid, claims = begun(postgres, workflow("one"), 2)
    with raw(postgres) as connection:
        connection.execute("DELETE FROM journal_threads WHERE id = %s", (dispatch_thread(QUEUE),))
    before = all_entries(postgres)
    assert fast(postgres, claims, squid.runtime.plan) == []
    assert all_entries(postgres) == before


def test_a_run_that_ends_while_an_attempt_is_open_that_was_never_planned_is_left_out(
    postgres: PostgresStorage,
) -> None:
    # given two runs, one of which has an attempt that its thread does not know
    squid, claims = begun(postgres, workflow("one"), 2)
    put(postgres, with_fields(scheduled(claims[0].ref.run_id, "other"), occurred_at=postgres.now()))
    assert fast(postgres, claims, squid.runtime.plan) == [claims[1].ref.run_id]
    # when the general way ends it, then it fences that attempt
    (answer,) = settled(squid, claims[:1])
    assert answer.unwrap().status == "completed"
    assert_views_agree_with_the_journal(postgres)


def test_a_run_that_goes_on_does_not_mind_other_attempts(postgres: PostgresStorage) -> None:
    squid, claims = begun(postgres, workflow("chain"))
    put(postgres, with_fields(scheduled(claims[0].ref.run_id, "other"), occurred_at=postgres.now()))
    assert len(fast(postgres, claims, squid.runtime.plan)) == 1
    assert_views_agree_with_the_journal(postgres)


def test_a_plan_that_ends_a_run_while_another_visit_is_open_is_left_out(
    postgres: PostgresStorage, taken: list[int]
) -> None:
    squid, first = begun(postgres, workflow("fan out"))
    settled(squid, first)
    one, _ = claimed(squid, 2)

    def ends(request: PlanRequest) -> Sequence[Fact]:
        return [terminal(request.run_id, at=0)]

    assert squid.runtime.dispatch.settle(completions([one]), ends)[0].error is None
    assert taken == [1, 0]
    assert_views_agree_with_the_journal(postgres)


def _cancelled(squid: Squid, claim: Claim) -> None:
    squid.cancel(claim.ref.run_id)


def _taken_over(squid: Squid, claim: Claim) -> None:
    squid.runtime.dispatch.release([claim.ref])
    assert squid.runtime.dispatch.claim(QUEUE, "rival")


def _quarantined(squid: Squid, claim: Claim) -> None:
    put(squid.runtime.storage, with_fields(quarantined(claim.ref.run_id), occurred_at=squid.runtime.storage.now()))


def _signalled(squid: Squid, claim: Claim) -> None:
    put(squid.runtime.storage, with_fields(signal(claim.ref.run_id), occurred_at=squid.runtime.storage.now()))


@pytest.mark.parametrize("shape", [*ALONE, *BY_STATE, "turn, known", "loop, known"])
@pytest.mark.parametrize("event", [_cancelled, _taken_over, _quarantined, _signalled], ids=lambda e: e.__name__[1:])
def test_what_is_not_plain_is_answered_as_it_would_be_alone(
    postgres: PostgresStorage, taken: list[int], event: Callable[[Squid, Claim], None], shape: str
) -> None:
    # given three claims, to one of whose runs something happens, whether its state was known before or not
    shape, _, known = shape.partition(", ")
    squid, claims = begun(postgres, workflow(shape), 3)
    if known:
        settled(squid, claims, {"again": True})
        claims = claimed(squid, 3)
        taken.clear()
    event(squid, claims[1])
    # when all are settled together
    answers = settled(squid, claims)
    # then the others have taken the fast way, and that one is answered as it would be alone
    plain = event is _signalled and not known
    assert taken == [3 if plain else 2]
    refused = event in (_cancelled, _taken_over)
    assert [answer.error is None for answer in answers] == [True, not refused, True]
    assert_views_agree_with_the_journal(postgres)
    assert verify(postgres) == []


@pytest.mark.parametrize("shape", ["one", "turn"])
def test_a_run_with_an_anomaly_and_children_ends_as_any(
    postgres: PostgresStorage, taken: list[int], shape: str
) -> None:
    squid, (claim,) = begun(postgres, workflow(shape))
    run_id = claim.ref.run_id
    put(postgres, child(run_id, child_run_id="c"), child(run_id, child_run_id="c", child_workflow="another"))
    assert settled(squid, [claim])[0].error is None
    assert taken == [0 if shape == "one" else 1], "nothing is planned by children"
    assert squid.inspect_run(run_id).status == "completed"
    assert_views_agree_with_the_journal(postgres)


def test_a_later_delivery_ends_its_run_and_the_earlier_one_comes_too_late(
    postgres_virtual: PostgresStorage, clock: VirtualClock, taken: list[int]
) -> None:
    squid, (claim,) = begun(postgres_virtual, workflow("one"))
    clock.advance(timedelta(minutes=10))
    (again,) = squid.runtime.dispatch.claim(QUEUE, "rival")
    assert settled(squid, [again])[0].error is None
    assert isinstance(settled(squid, [claim])[0].error, TerminalRun)
    assert taken == [1, 0]
    assert_views_agree_with_the_journal(postgres_virtual)


def test_completions_beside_another_outcome_of_their_run_are_left_to_the_general_way(
    postgres: PostgresStorage, taken: list[int]
) -> None:
    # given two open steps of one run, and another run
    squid, first = begun(postgres, workflow("fan out"), 2)
    settled(squid, first)
    claims = claimed(squid, 4)
    # when one of the two fails beside the other's success
    group = completions(claims)
    group[1] = Settlement(claims[1].ref, Failed({"message": "no"}))
    answers = squid.runtime.dispatch.settle(group, squid.runtime.plan)
    # then they are planned together, and the other run does not mind
    assert taken == [2, 2]
    assert [answer.unwrap().status for answer in answers] == ["completed", "failed", "completed", "completed"]
    assert [squid.inspect_run(each.ref.run_id).status for each in first] == ["failed", "completed"]
    assert_views_agree_with_the_journal(postgres)


# --- entries that were changed --------------------------------------------------------------------------------------


def _damage(storage: PostgresStorage, claim: Claim) -> None:
    with raw(storage) as connection:
        connection.execute("ALTER TABLE journal_entries DISABLE TRIGGER ALL")
        connection.execute(
            "UPDATE journal_entries SET data = '{}' WHERE thread = %s AND type = 'run_started'",
            (run_thread(claim.ref.run_id),),
        )
        connection.execute("ALTER TABLE journal_entries ENABLE ALWAYS TRIGGER journal_entries_append_only")


@pytest.mark.parametrize("shape", BY_STATE)
def test_an_entry_that_was_changed_stops_its_run_when_the_thread_is_read(
    postgres: PostgresStorage, taken: list[int], shape: str
) -> None:
    squid, claims = begun(postgres, workflow(shape), 3)
    _damage(postgres, claims[1])
    answers = settle(squid.runtime, completions(claims)).answers
    assert taken == [2]
    assert [answer.error for answer in answers] == [None] * 3
    statuses = [squid.inspect_run(claim.ref.run_id).status for claim in claims]
    usual = "completed" if shape == "turn" else "running"
    assert statuses == [usual, "quarantined", usual]


@pytest.mark.parametrize("shape", ["chain", "loop"])
def test_an_entry_that_was_changed_in_a_run_that_is_not_read_is_found_by_verify(
    postgres: PostgresStorage, taken: list[int], shape: str
) -> None:
    squid, claims = begun(postgres, workflow(shape))
    settled(squid, claims)
    _damage(postgres, claims[0])
    assert [answer.error for answer in settle(squid.runtime, completions(claimed(squid, 1))).answers] == [None]
    assert taken == [1, 1]
    assert [finding.thread for finding in verify(postgres)] == [run_thread(claims[0].ref.run_id)]


# --- planners and outcomes ------------------------------------------------------------------------------------------


def _refuses(_: PlanRequest) -> Sequence[Fact]:
    raise StaleClaim("the planner says no")


@pytest.mark.parametrize("plan", [_refuses, _raises], ids=["refuses", "raises"])
def test_a_planner_that_raises_is_answered_by_the_general_way(
    postgres: PostgresStorage, taken: list[int], plan: Callable[[PlanRequest], Sequence[Fact]]
) -> None:
    squid, claims = begun(postgres, workflow("chain"), 2)
    before = postgres.cut()
    (answer,) = squid.runtime.dispatch.settle(completions(claims[:1]), plan)
    assert type(answer.error).__name__ == ("StaleClaim" if plan is _refuses else "PlanningFailed")
    assert postgres.cut() == before, "nothing was written"
    assert taken == [0]


def test_a_planner_that_raises_for_one_run_takes_no_other_with_it(postgres: PostgresStorage) -> None:
    squid, claims = begun(postgres, workflow("chain"), 3)

    def plan(request: PlanRequest) -> Sequence[Fact]:
        if request.run_id == claims[0].ref.run_id:
            raise RuntimeError("not this one")
        return squid.runtime.plan(request)

    assert fast(postgres, claims, plan) == [claim.ref.run_id for claim in claims[1:]]


def test_a_result_that_cannot_be_written_is_refused_alone(postgres: PostgresStorage, taken: list[int]) -> None:
    squid, claims = begun(postgres, workflow("one"), 2)
    group = [Settlement(claims[0].ref, Completed("nul \0")), Settlement(claims[1].ref, Completed("fine"))]
    answers = squid.runtime.dispatch.settle(group, squid.runtime.plan)
    assert isinstance(answers[0].error, InvalidFact)
    assert answers[1].unwrap().result == "fine"
    assert taken == [1]


def test_a_result_that_a_later_step_could_not_take_is_left_to_the_general_way(
    postgres_url: str, postgres: PostgresStorage, taken: list[int]
) -> None:
    small = PostgresStorage(postgres_url, postgres.schema, max_fact_bytes=10_000)
    wf = Workflow("passes")
    for name in ("a", "b"):
        wf.step(name=name, output=name)(nothing)

    @wf.step(after=["a", "b"])
    def takes(a: str, b: str) -> None:
        """Only its facts matter."""

    # given results of 6,000 bytes each, and a step that takes both
    squid = Squid(small, [wf])
    run_id = squid.start("passes").run_id
    for claim in claimed(squid, 2):
        assert settled(squid, [claim], "x" * 6_000)[0].unwrap().status == "completed"
    # then both outcomes stand, and the run has failed
    assert taken == [1, 0]
    assert squid.inspect_run(run_id).status == "failed"
    assert_views_agree_with_the_journal(postgres)
    small.close()


def test_a_group_that_is_too_large_for_one_commit_is_written_in_parts(
    postgres_url: str, postgres: PostgresStorage, taken: list[int]
) -> None:
    # given a storage whose commits hold 80,000 bytes
    small = PostgresStorage(postgres_url, postgres.schema, max_fact_bytes=10_000)
    squid, claims = begun(small, workflow("one"), 40)
    # when results of twice as many are settled together
    known = {claim.ref.claim_id: claim.attempt for claim in claims}
    completed = completions(claims, "x" * 2_000)
    with pytest.raises(GroupTooLarge):
        settle_fast(small, PlanStates(), SettleTemplates(10_000), known, completed, squid.runtime.plan)
    answers = settled(squid, claims, "x" * 2_000)
    # then all are written, the smaller parts by the fast way
    assert [answer.unwrap().status for answer in answers] == ["completed"] * 40
    assert taken[0] == 0
    assert_views_agree_with_the_journal(postgres)
    assert verify(postgres) == []
    small.close()


# --- time -----------------------------------------------------------------------------------------------------------


def test_a_caller_whose_time_is_ahead_of_the_databases_is_left_to_the_general_way(
    postgres: PostgresStorage, taken: list[int]
) -> None:
    squid, claims = begun(postgres, workflow("chain"))
    postgres.hear_now((postgres.now() + timedelta(minutes=1)).isoformat())
    before = postgres.now()
    (answer,) = settled(squid, claims)
    assert taken == [0]
    assert before <= _settled_at(answer) <= postgres.now()


def test_a_caller_whose_time_is_long_behind_the_databases_is_left_to_the_general_way(
    postgres: PostgresStorage,
) -> None:
    # given a claim of a minute ago, and no later answer of the database
    squid, (claim,) = begun(postgres, workflow("chain"))
    with raw(postgres) as connection:
        connection.execute("UPDATE attempts SET last_at = last_at - interval '1 minute'")
    old = Claim(claim.ref, claim.attempt._replace(last_at=claim.attempt.last_at - timedelta(minutes=1)))
    postgres.hear_now(old.attempt.last_at.isoformat())
    # then the fast way does not write by that time
    assert fast(postgres, [old], squid.runtime.plan) == []
    postgres.hear_now(postgres.now().isoformat())
    assert fast(postgres, [old], squid.runtime.plan) == [claim.ref.run_id]


def test_a_lease_that_ran_out_between_the_callers_time_and_the_databases_has_run_out(postgres: PostgresStorage) -> None:
    # given a caller who is two seconds behind, and a lease that ends now
    squid, (claim,) = begun(postgres, workflow("chain"))
    behind = timedelta(seconds=2)
    with raw(postgres) as connection:
        connection.execute("UPDATE attempts SET last_at = last_at - %s, lease_until = clock_timestamp()", (behind,))
    held = Claim(claim.ref, claim.attempt._replace(last_at=claim.attempt.last_at - behind))
    postgres.hear_now(held.attempt.last_at.isoformat())
    # then the database's time decides
    assert fast(postgres, [held], squid.runtime.plan) == []


def test_a_moment_behind_is_the_time_that_is_written(postgres: PostgresStorage) -> None:
    squid, (claim,) = begun(postgres, workflow("chain"))
    assert fast(postgres, [claim], squid.runtime.plan) == [claim.ref.run_id]
    facts = facts_of(postgres.read_run(claim.ref.run_id))
    (at,) = {fact.occurred_at for fact in facts[-4:]}
    assert claim.attempt.last_at <= at <= postgres.now()


def test_a_clock_that_was_bound_counts_however_far_it_is_off(
    postgres_virtual: PostgresStorage, clock: VirtualClock, taken: list[int]
) -> None:
    squid, claims = begun(postgres_virtual, workflow("chain"), 2)
    clock.advance(timedelta(seconds=59))
    (answer,) = settled(squid, claims[:1])
    assert _settled_at(answer) == clock.now()
    assert taken == [1]


def _settled_at(answer: Answer) -> datetime:
    at = answer.unwrap().settled_at
    assert at is not None
    return at


# --- outages --------------------------------------------------------------------------------------------------------


def test_a_thread_that_is_missing_takes_no_other_run_with_it(postgres: PostgresStorage, taken: list[int]) -> None:
    squid, claims = begun(postgres, workflow("one"), 2)
    with raw(postgres) as connection:
        connection.execute("DELETE FROM journal_threads WHERE id = %s", (run_thread(claims[0].ref.run_id),))
    answers = settled(squid, claims)
    assert isinstance(answers[0].error, StorageRefused), "as it would be without the fast way"
    assert "journal_entries_thread" in str(answers[0].error)
    assert answers[1].error is None
    assert taken == [1]


def test_a_group_that_is_settled_again_after_an_outage_between_its_commits_is_told_as_written(
    postgres: PostgresStorage,
) -> None:
    # given a group of two ways, and a database that is away while the general way plans
    squid, claims = begun(postgres, workflow("one"), 2)
    group = [completions(claims)[0], Settlement(claims[1].ref, Failed({"message": "no"}))]

    def outage(request: PlanRequest) -> Sequence[Fact]:
        if request.run_id == claims[1].ref.run_id:
            terminate_backends(postgres)
        return squid.runtime.plan(request)

    with pytest.raises(StorageUnavailable):
        squid.runtime.dispatch.settle(group, outage)
    assert [squid.inspect_run(claim.ref.run_id).status for claim in claims] == ["completed", "running"]
    # when the group is settled again, then everything is written, once
    answers = squid.runtime.dispatch.settle(group, squid.runtime.plan)
    assert [answer.unwrap().status for answer in answers] == ["completed", "failed"]
    assert [squid.inspect_run(claim.ref.run_id).status for claim in claims] == ["completed", "failed"]
    assert_views_agree_with_the_journal(postgres)


def test_a_run_that_has_ended_is_told_as_it_is(postgres: PostgresStorage) -> None:
    squid, claims = begun(postgres, workflow("one"))
    assert settled(squid, claims, 1)[0].unwrap().result == 1
    before = all_entries(postgres)
    assert settled(squid, claims, 1)[0].unwrap().result == 1
    assert settled(squid, claims, 2)[0].error is not None
    assert all_entries(postgres) == before
    assert RunUnit.fold(postgres.read_run(claims[0].ref.run_id)).anomalies == []
