"""Dispatch over a wire that breaks: an answer that was lost is told again, and nothing is done twice."""

from squid_dagster.journal.commands import CommandTarget
from squid_dagster.journal.postgres.dispatch import PostgresDispatchStore
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import StaleClaim
from tests.facts import QUEUE, claimed, key, terminal
from tests.journal.contract import Wire, all_entries, assert_views_agree_with_the_journal, facts_of
from tests.journal.desk import Desk, Planner, done, keys, one, refused, seconds, start, statuses, work


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


def test_an_answer_that_was_lost_holds_each_claim_once_and_none_of_others(
    wire: Wire, behind_wire: PostgresStorage, postgres_desk: Desk
) -> None:
    # given a claim of another worker, one that ran out, and dead letters between those that can be claimed
    spent = [work(f"spent-{n}", max_deliveries=1) for n in range(9)]
    postgres_desk.put(*spent, work("first", priority=2), work("last", priority=-1), work("other", priority=1))
    postgres_desk.put(*(claimed(fact.run_id, at=0, lease=10) for fact in spent), claimed("first", at=0, lease=10))
    assert keys([one(postgres_desk, seconds(9999))]) == ["other"]
    postgres_desk.wait(60)
    store = PostgresDispatchStore(behind_wire)
    behind_wire.now()
    store.visible(QUEUE)
    wire.lose_answer_to("claim_attempts")
    # when the answer to a claim is lost
    claims = store.claim(QUEUE, "worker-2", limit=2)
    # then all that was claimed is given again, and nothing else
    assert wire.lost == 1
    assert keys(claims) == ["first", "last"]
    assert all(answer.unwrap().status == "completed" for answer in store.settle([done(c) for c in claims]))


def test_a_command_whose_answer_was_lost_is_recorded_once(
    wire: Wire, behind_wire: PostgresStorage, postgres_desk: Desk
) -> None:
    start(postgres_desk, "run-1")
    store = PostgresDispatchStore(behind_wire)
    wire.lose_answer_to("COMMIT")
    # when the answer to a command is lost
    written = store.command([CommandTarget("run-1")], lambda runs, now: [terminal("run-1", status="cancelled")])
    # then it is on record once, and the state that is kept knows it
    assert (wire.lost, len(written)) == (1, 1)
    assert [f.type for f in facts_of(all_entries(postgres_desk.storage))].count("run_terminal") == 1
    seen: list[str | None] = []
    store.command([CommandTarget("run-1")], lambda runs, now: seen.append(runs["run-1"].state.terminal_status) or [])  # type: ignore[func-returns-value]
    assert seen == ["cancelled"]


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
