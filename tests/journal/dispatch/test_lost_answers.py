"""Dispatch over connections that break: a lost answer is given again, and nothing is done twice."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal.contract.command_target import CommandTarget
from squid_dagster.journal.postgres.connection.failures import NotNew
from squid_dagster.journal.postgres.dispatch.dispatch_store import PostgresDispatchStore
from squid_dagster.journal.postgres.dispatch.start_template import StartTemplates
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import StaleClaim
from squid_dagster.runtime.commands.run_start import Start, prepare_start
from squid_dagster.workflow import Workflow
from tests.facts import QUEUE, claimed, key, terminal
from tests.journal.access import (
    LossyProxy,
    all_entries,
    assert_views_agree_with_the_journal,
    facts_of,
    raw,
    wait_for_a_lock,
)
from tests.journal.dispatch_fixture import (
    DispatchFixture,
    Planner,
    done,
    keys,
    one,
    refused,
    seconds,
    start,
    statuses,
    work,
)
from tests.journal.schema.version5 import start_arguments


def test_a_claim_whose_answer_was_lost_is_given_again_in_claim_order(
    lossy_proxy: LossyProxy, behind_lossy_proxy: PostgresStorage, postgres_dispatch: DispatchFixture
) -> None:
    # given a connection that breaks after the database has claimed, before it says so
    postgres_dispatch.put(*(work(f"run-{n}", priority=n) for n in range(6)))
    store = PostgresDispatchStore(behind_lossy_proxy)
    behind_lossy_proxy.now()
    store.visible(QUEUE)
    lossy_proxy.lose_answer_to("claim_attempts")
    # when attempts are claimed
    claims = store.claim(QUEUE, "worker-1", limit=4)
    # then they were claimed once, and come with tokens that fit
    assert lossy_proxy.lost == 1
    assert keys(claims) == ["run-5", "run-4", "run-3", "run-2"]
    assert [c.attempt.deliveries for c in claims] == [1] * 4
    assert all(a.unwrap().status == "completed" for a in store.settle([done(c) for c in claims]))
    assert keys(store.claim(QUEUE, "worker-1", limit=9)) == ["run-1", "run-0"]


def test_an_answer_that_was_lost_holds_each_claim_once_and_none_of_others(
    lossy_proxy: LossyProxy, behind_lossy_proxy: PostgresStorage, postgres_dispatch: DispatchFixture
) -> None:
    # given a claim of another worker, one that ran out, and dead letters between those that can be claimed
    spent = [work(f"spent-{n}", max_deliveries=1) for n in range(9)]
    postgres_dispatch.put(*spent, work("first", priority=2), work("last", priority=-1), work("other", priority=1))
    postgres_dispatch.put(*(claimed(fact.run_id, at=0, lease=10) for fact in spent), claimed("first", at=0, lease=10))
    assert keys([one(postgres_dispatch, seconds(9999))]) == ["other"]
    postgres_dispatch.wait(60)
    store = PostgresDispatchStore(behind_lossy_proxy)
    behind_lossy_proxy.now()
    store.visible(QUEUE)
    lossy_proxy.lose_answer_to("claim_attempts")
    # when the answer to a claim is lost
    claims = store.claim(QUEUE, "worker-2", limit=2)
    # then all that was claimed is given again, and nothing else
    assert lossy_proxy.lost == 1
    assert keys(claims) == ["first", "last"]
    assert all(answer.unwrap().status == "completed" for answer in store.settle([done(c) for c in claims]))


def test_a_command_whose_answer_was_lost_is_recorded_once(
    lossy_proxy: LossyProxy, behind_lossy_proxy: PostgresStorage, postgres_dispatch: DispatchFixture
) -> None:
    start(postgres_dispatch, "run-1")
    store = PostgresDispatchStore(behind_lossy_proxy)
    lossy_proxy.lose_answer_to("COMMIT")
    # when the answer to a command is lost
    written = store.command([CommandTarget("run-1")], lambda runs, now: [terminal("run-1", status="cancelled")])
    # then it is on record once, and the state that is kept knows it
    assert (lossy_proxy.lost, len(written)) == (1, 1)
    assert [f.type for f in facts_of(all_entries(postgres_dispatch.storage))].count("run_terminal") == 1
    seen: list[str | None] = []
    store.command([CommandTarget("run-1")], lambda runs, now: seen.append(runs["run-1"].state.terminal_status) or [])  # type: ignore[func-returns-value]
    assert seen == ["cancelled"]


def test_an_outcome_whose_answer_was_lost_is_recorded_once_and_every_member_hears_the_truth(
    lossy_proxy: LossyProxy, behind_lossy_proxy: PostgresStorage, postgres_dispatch: DispatchFixture
) -> None:
    # given a group with a stale member, and a connection that breaks after the commit
    start(postgres_dispatch, "run-1", "run-2", "run-3")
    store = PostgresDispatchStore(behind_lossy_proxy)
    good, stale, ending = store.claim(QUEUE, "worker-1", limit=3)
    postgres_dispatch.store.release([stale.ref])
    taken = one(postgres_dispatch)
    assert taken.ref.run_id == "run-2"
    lossy_proxy.lose_answer_to("COMMIT")
    plan = Planner()
    # when the group is settled
    answers = store.settle([done(good), done(stale), done(ending)], plan)
    # then what was written is told as written, and the stale one as refused
    assert lossy_proxy.lost == 1
    assert [answers[0].unwrap().status, answers[2].unwrap().status] == ["completed"] * 2
    refused(answers[1], StaleClaim)
    # and nothing is there twice
    for run in ("run-1", "run-3"):
        assert statuses(postgres_dispatch, run) == {key(run): "completed", key(run, visit=2): "available"}
    types = [f.type for f in facts_of(all_entries(postgres_dispatch.storage))]
    assert (types.count("attempt_completed"), types.count("runnable_applied")) == (2, 2)
    assert_views_agree_with_the_journal(behind_lossy_proxy)


def new_runs(storage: PostgresStorage, *run_ids: str) -> list[Start]:
    """Return starts of runs of one step."""
    workflow = Workflow("one")

    @workflow.step
    def step() -> None:
        """Return nothing: only its facts matter."""

    squid = Squid(storage, [workflow])
    return [prepare_start(squid.runtime, "one", None, run_id=run_id) for run_id in run_ids]


@pytest.mark.parametrize("run_ids", [["run-1"], ["run-1", "run-2"]], ids=len)
def test_a_start_whose_answer_was_lost_is_one_start_and_returns(
    lossy_proxy: LossyProxy,
    behind_lossy_proxy: PostgresStorage,
    postgres_virtual: PostgresStorage,
    run_ids: Sequence[str],
) -> None:
    store = PostgresDispatchStore(behind_lossy_proxy)
    starts = new_runs(behind_lossy_proxy, *run_ids)
    lossy_proxy.lose_answer_to("start_runs")
    # when the answer to a start is lost
    at = store.start_runs(starts)
    # then it is on record once, at the time that is returned
    assert lossy_proxy.lost == 1
    assert at == behind_lossy_proxy.now()
    facts = facts_of(all_entries(postgres_virtual))
    assert [fact.run_id for fact in facts if fact.type == "run_started"] == run_ids
    assert {fact.occurred_at for fact in facts} == {at}
    assert_views_agree_with_the_journal(postgres_virtual)
    # and an attempt of each is there to be claimed
    assert keys(store.claim(QUEUE, "worker", limit=9)) == run_ids


def write_start(storage: PostgresStorage, start: Start, at: datetime, commit_id: UUID) -> None:
    """Send a start as the store does, under a commit id that is known."""
    new = StartTemplates(storage.max_fact_bytes).fill([start], at)
    assert new is not None
    with storage.transaction() as transaction:
        transaction.start(new, at, commit_id)


def test_a_start_that_is_sent_again_when_its_time_has_passed_has_the_first_answer(postgres: PostgresStorage) -> None:
    # given a start, by the database's clock
    (start_of_one,) = new_runs(postgres, "run-1")
    commit_id, at = uuid4(), postgres.now()
    write_start(postgres, start_of_one, at, commit_id)
    before = all_entries(postgres)
    while postgres.now() < at + timedelta(milliseconds=150):
        pass
    # when it is sent again, it returns, and nothing more is written
    write_start(postgres, start_of_one, at, commit_id)
    assert all_entries(postgres) == before
    # and another commit is refused, by its time, or for the run
    for time in (at, postgres.now()):
        with pytest.raises(NotNew):
            write_start(postgres, start_of_one, time, uuid4())
    assert all_entries(postgres) == before


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_start_that_is_sent_again_while_the_first_try_is_under_way_waits_for_its_end(
    postgres: PostgresStorage, end: str
) -> None:
    # given a start whose connection was lost to its client, while the server still works on it
    started = start_arguments(["run-1"], QUEUE, uuid4())
    with raw(postgres, autocommit=False) as first, raw(postgres) as second, ThreadPoolExecutor(1) as pool:
        first.execute(*started)
        # when it is sent again
        again = pool.submit(lambda: second.execute(*started))
        wait_for_a_lock(postgres)
        getattr(first, end)()
        again.result(30)
    # then it is written once, whatever became of the first try
    assert [postgres.revision(thread) for thread in (f"squid:dispatch:{QUEUE}", "squid:run:run-1")] == [1, 2]
