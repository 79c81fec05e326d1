"""The fast way of a settlement: changed entries, planners that raise, clocks that differ, and outages."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage, verify
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Answer, Claim, Completed, Failed, PlanRequest, Settlement
from squid_dagster.journal.plan_state.cache import PlanStates
from squid_dagster.journal.postgres.dispatch.settle_fast import settle_fast
from squid_dagster.journal.postgres.dispatch.settle_template import SettleTemplates
from squid_dagster.journal.settlement.rounds import GroupTooLarge
from squid_dagster.protocol import Fact, RunUnit, run_thread
from squid_dagster.protocol.errors import InvalidFact, StaleClaim, StorageRefused, StorageUnavailable
from squid_dagster.runtime.execution.settlement import settle
from squid_dagster.workflow import Workflow
from tests.journal.access import all_entries, assert_views_agree_with_the_journal, facts_of, raw, terminate_backends
from tests.journal.fast_settlement.workflows import (
    BY_STATE,
    begun,
    claimed,
    completions,
    fast,
    nothing,
    raises,
    settled,
    workflow,
)

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
    postgres: PostgresStorage, fast_counts: list[int], shape: str
) -> None:
    squid, claims = begun(postgres, workflow(shape), 3)
    _damage(postgres, claims[1])
    answers = settle(squid.runtime, completions(claims)).answers
    assert fast_counts == [2]
    assert [answer.error for answer in answers] == [None] * 3
    statuses = [squid.inspect_run(claim.ref.run_id).status for claim in claims]
    usual = "completed" if shape == "turn" else "running"
    assert statuses == [usual, "quarantined", usual]


@pytest.mark.parametrize("shape", ["chain", "loop"])
def test_an_entry_that_was_changed_in_a_run_that_is_not_read_is_found_by_verify(
    postgres: PostgresStorage, fast_counts: list[int], shape: str
) -> None:
    squid, claims = begun(postgres, workflow(shape))
    settled(squid, claims)
    _damage(postgres, claims[0])
    assert [answer.error for answer in settle(squid.runtime, completions(claimed(squid, 1))).answers] == [None]
    assert fast_counts == [1, 1]
    assert [finding.thread for finding in verify(postgres)] == [run_thread(claims[0].ref.run_id)]


# --- planners and outcomes ------------------------------------------------------------------------------------------


def _refuses(_: PlanRequest) -> Sequence[Fact]:
    raise StaleClaim("the planner says no")


@pytest.mark.parametrize("plan", [_refuses, raises], ids=["refuses", "raises"])
def test_a_planner_that_raises_is_answered_by_the_general_way(
    postgres: PostgresStorage, fast_counts: list[int], plan: Callable[[PlanRequest], Sequence[Fact]]
) -> None:
    squid, claims = begun(postgres, workflow("chain"), 2)
    before = postgres.cut()
    (answer,) = squid.runtime.dispatch.settle(completions(claims[:1]), plan)
    assert type(answer.error).__name__ == ("StaleClaim" if plan is _refuses else "PlanningFailed")
    assert postgres.cut() == before, "nothing was written"
    assert fast_counts == [0]


def test_a_planner_that_raises_for_one_run_takes_no_other_with_it(postgres: PostgresStorage) -> None:
    squid, claims = begun(postgres, workflow("chain"), 3)

    def plan(request: PlanRequest) -> Sequence[Fact]:
        if request.run_id == claims[0].ref.run_id:
            raise RuntimeError("not this one")
        return squid.runtime.plan(request)

    assert fast(postgres, claims, plan) == [claim.ref.run_id for claim in claims[1:]]


def test_a_result_that_cannot_be_written_is_refused_alone(postgres: PostgresStorage, fast_counts: list[int]) -> None:
    squid, claims = begun(postgres, workflow("one"), 2)
    group = [Settlement(claims[0].ref, Completed("nul \0")), Settlement(claims[1].ref, Completed("fine"))]
    answers = squid.runtime.dispatch.settle(group, squid.runtime.plan)
    assert isinstance(answers[0].error, InvalidFact)
    assert answers[1].unwrap().result == "fine"
    assert fast_counts == [1]


def test_a_result_that_a_later_step_could_not_take_is_left_to_the_general_way(
    postgres_url: str, postgres: PostgresStorage, fast_counts: list[int]
) -> None:
    small = PostgresStorage(postgres_url, postgres.schema, max_fact_bytes=10_000)
    wf = Workflow("passes")
    for name in ("a", "b"):
        wf.step(name=name, output=name)(nothing)

    @wf.step(after=["a", "b"])
    def takes(a: str, b: str) -> None:
        """Return nothing: only its facts matter."""

    # given results of 6,000 bytes each, and a step that takes both
    squid = Squid(small, [wf])
    run_id = squid.start("passes").run_id
    for claim in claimed(squid, 2):
        assert settled(squid, [claim], "x" * 6_000)[0].unwrap().status == "completed"
    # then both outcomes stand, and the run has failed
    assert fast_counts == [1, 0]
    assert squid.inspect_run(run_id).status == "failed"
    assert_views_agree_with_the_journal(postgres)
    small.close()


def test_a_group_that_is_too_large_for_one_commit_is_written_in_parts(
    postgres_url: str, postgres: PostgresStorage, fast_counts: list[int]
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
    assert fast_counts[0] == 0
    assert_views_agree_with_the_journal(postgres)
    assert verify(postgres) == []
    small.close()


# --- time -----------------------------------------------------------------------------------------------------------


def test_a_caller_whose_time_is_ahead_of_the_databases_is_left_to_the_general_way(
    postgres: PostgresStorage, fast_counts: list[int]
) -> None:
    squid, claims = begun(postgres, workflow("chain"))
    postgres.observe_db_time((postgres.now() + timedelta(minutes=1)).isoformat())
    before = postgres.now()
    (answer,) = settled(squid, claims)
    assert fast_counts == [0]
    assert before <= _settled_at(answer) <= postgres.now()


def test_a_caller_whose_time_is_long_behind_the_databases_is_left_to_the_general_way(
    postgres: PostgresStorage,
) -> None:
    # given a claim of a minute ago, and no later answer of the database
    squid, (claim,) = begun(postgres, workflow("chain"))
    with raw(postgres) as connection:
        connection.execute("UPDATE attempts SET last_at = last_at - interval '1 minute'")
    old = Claim(claim.ref, claim.attempt._replace(last_at=claim.attempt.last_at - timedelta(minutes=1)))
    postgres.observe_db_time(old.attempt.last_at.isoformat())
    # then the fast way does not write by that time
    assert fast(postgres, [old], squid.runtime.plan) == []
    postgres.observe_db_time(postgres.now().isoformat())
    assert fast(postgres, [old], squid.runtime.plan) == [claim.ref.run_id]


def test_a_lease_that_ran_out_between_the_callers_time_and_the_databases_has_run_out(postgres: PostgresStorage) -> None:
    # given a caller who is two seconds behind, and a lease that ends now
    squid, (claim,) = begun(postgres, workflow("chain"))
    behind = timedelta(seconds=2)
    with raw(postgres) as connection:
        connection.execute("UPDATE attempts SET last_at = last_at - %s, lease_until = clock_timestamp()", (behind,))
    held = Claim(claim.ref, claim.attempt._replace(last_at=claim.attempt.last_at - behind))
    postgres.observe_db_time(held.attempt.last_at.isoformat())
    # then the database's time decides
    assert fast(postgres, [held], squid.runtime.plan) == []


def test_a_moment_behind_is_the_time_that_is_written(postgres: PostgresStorage) -> None:
    squid, (claim,) = begun(postgres, workflow("chain"))
    assert fast(postgres, [claim], squid.runtime.plan) == [claim.ref.run_id]
    facts = facts_of(postgres.read_run(claim.ref.run_id))
    (at,) = {fact.occurred_at for fact in facts[-4:]}
    assert claim.attempt.last_at <= at <= postgres.now()


def test_a_clock_that_was_bound_counts_however_far_it_is_off(
    postgres_virtual: PostgresStorage, clock: VirtualClock, fast_counts: list[int]
) -> None:
    squid, claims = begun(postgres_virtual, workflow("chain"), 2)
    clock.advance(timedelta(seconds=59))
    (answer,) = settled(squid, claims[:1])
    assert _settled_at(answer) == clock.now()
    assert fast_counts == [1]


def _settled_at(answer: Answer) -> datetime:
    at = answer.unwrap().settled_at
    assert at is not None
    return at


# --- outages --------------------------------------------------------------------------------------------------------


def test_a_thread_that_is_missing_takes_no_other_run_with_it(postgres: PostgresStorage, fast_counts: list[int]) -> None:
    squid, claims = begun(postgres, workflow("one"), 2)
    with raw(postgres) as connection:
        connection.execute("DELETE FROM journal_threads WHERE id = %s", (run_thread(claims[0].ref.run_id),))
    answers = settled(squid, claims)
    assert isinstance(answers[0].error, StorageRefused), "as it would be without the fast way"
    assert "journal_entries_thread" in str(answers[0].error)
    assert answers[1].error is None
    assert fast_counts == [1]


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
