"""The shortest way of a settlement: completions that can only end their runs, written by one call."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from squid_dagster.journal.postgres.ending import settle_ends

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresDispatchStore, PostgresStorage, verify
from squid_dagster.journal.clock import VirtualClock
from squid_dagster.journal.dispatch import Answer, Claim, Completed, PlanRequest
from squid_dagster.protocol import Fact
from squid_dagster.protocol.errors import InvalidFact, StorageRefused, StorageUnavailable, TerminalRun
from squid_dagster.runtime.settlement import settle
from squid_dagster.workflow import Workflow, path
from tests.facts import QUEUE, child
from tests.journal.contract import Wire, assert_views_agree_with_the_journal, put, raw
from tests.journal.test_short_way import cancelled, damaged, started, taken_over, workflow


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many members of each group took the shortest way."""
    counts: list[int] = []

    def counting(storage: PostgresStorage, settlements: Any, commit: Any) -> dict[int, Answer]:
        answers = settle_ends(storage, settlements, commit)
        counts.append(len(answers))
        return answers

    monkeypatch.setattr(f"{PostgresDispatchStore.__module__}.settle_ends", counting)
    return counts


def done(squid: Squid, claims: Sequence[Claim], result: Any = None) -> list[Answer]:
    return settle(squid.runtime, [Settlement(each.ref, Completed(result)) for each in claims]).answers


def never(_: PlanRequest) -> Sequence[Fact]:
    raise AssertionError("nobody needs to plan what is known")


def test_many_end_in_one_call_without_a_plan(postgres: PostgresStorage, ended: list[int]) -> None:
    squid, claims = started(postgres, workflow("one"), 5)
    group = [Settlement(each.ref, Completed({"n": n})) for n, each in enumerate(claims)]
    before = postgres.cut()
    answers = squid.runtime.dispatch.settle(group, never)
    assert ended == [5]
    assert [answer.unwrap().result for answer in answers] == [{"n": n} for n in range(5)]
    # one commit: queue facts first, by claim, and then each run's own
    types = [entry.fact.type for entry in postgres.read_between(before, postgres.cut())]
    assert types == ["attempt_completed"] * 5 + ["runnable_applied", "run_terminal"] * 5
    assert [squid.inspect_run(each.ref.run_id).status for each in claims] == ["completed"] * 5
    assert_views_agree_with_the_journal(postgres)
    assert verify(postgres) == []


@pytest.mark.parametrize("event", [cancelled, taken_over, damaged], ids=lambda event: event.__name__)
def test_what_is_not_plain_goes_another_way_and_takes_nobody_with_it(
    postgres: PostgresStorage, ended: list[int], event: Callable[[Squid, Claim], None]
) -> None:
    # given three claims, to one of whose runs something happens
    squid, claims = started(postgres, workflow("one"), 3)
    event(squid, claims[1])
    # when all are settled together
    answers = done(squid, claims)
    # then that one is answered as it would be alone, and a run that cannot be read is stopped
    assert ended == [2]
    assert [answer.error is None for answer in answers] == [True, event is damaged, True]
    statuses = [squid.inspect_run(each.ref.run_id).status for each in claims]
    assert statuses[::2] == ["completed"] * 2
    if event is damaged:
        assert statuses[1] == "quarantined"
    else:
        assert verify(postgres) == []


def test_a_run_with_an_anomaly_is_planned_for(postgres: PostgresStorage, ended: list[int]) -> None:
    squid, (claim,) = started(postgres, workflow("one"))
    run_id = claim.ref.run_id
    put(postgres, child(run_id, child_run_id="c"), child(run_id, child_run_id="c", child_workflow="another"))
    assert done(squid, [claim])[0].error is None
    assert ended == [0]
    assert squid.inspect_run(run_id).status == "completed"
    assert_views_agree_with_the_journal(postgres)


def test_a_run_with_children_and_an_earlier_attempt_ends_as_any(
    postgres_virtual: PostgresStorage, clock: VirtualClock, ended: list[int]
) -> None:
    squid, (claim,) = started(postgres_virtual, workflow("one"))
    put(postgres_virtual, child(claim.ref.run_id, child_run_id="c"))
    clock.advance(timedelta(minutes=10))
    (again,) = squid.runtime.dispatch.claim(QUEUE, "rival")
    assert done(squid, [again])[0].error is None
    assert ended == [1]
    assert isinstance(done(squid, [claim])[0].error, TerminalRun)
    assert_views_agree_with_the_journal(postgres_virtual)


def test_a_result_that_cannot_be_written_is_refused_alone(postgres: PostgresStorage, ended: list[int]) -> None:
    squid, claims = started(postgres, workflow("one"), 2)
    group = [
        Settlement(claims[0].ref, Completed("nul \0")),
        Settlement(claims[1].ref, Completed(1)),
    ]
    answers = squid.runtime.dispatch.settle(group, squid.runtime.plan)
    assert ended == [1]
    assert isinstance(answers[0].error, InvalidFact)
    assert answers[1].unwrap().result == 1


def test_a_result_that_its_application_could_not_hold_goes_the_long_way(
    postgres_url: str, postgres: PostgresStorage, ended: list[int]
) -> None:
    small = PostgresStorage(postgres_url, postgres.schema, max_fact_bytes=10_000)
    squid, claims = started(small, workflow("one"), 2)
    assert [answer.error is None for answer in done(squid, claims[:1], "x" * 9_000)] == [True]
    assert [answer.error is None for answer in done(squid, claims[1:], "x" * 100)] == [True]
    assert ended == [0, 1]
    small.close()


def test_an_end_whose_answer_was_lost_is_recorded_once_and_told_as_it_is(
    wire: Wire, behind_wire: PostgresStorage, postgres_virtual: PostgresStorage, clock: VirtualClock, ended: list[int]
) -> None:
    # given a group with a stale member, and a connection that breaks after the database has written
    squid, claims = started(behind_wire, workflow("one"), 3)
    postgres_virtual.now()
    cancelled(squid, claims[1])
    cut = postgres_virtual.cut()
    wire.lose_answer_to("end_runs")
    # when it is settled
    answers = done(squid, claims)
    # then what was written is told as written, and nothing is there twice
    assert wire.lost == 1
    assert ended == [2]
    assert [answer.error is None for answer in answers] == [True, False, True]
    assert answers[0].unwrap().settled_at == clock.now()
    types = [entry.fact.type for entry in postgres_virtual.read_between(cut, postgres_virtual.cut())]
    assert sorted(types) == ["attempt_completed"] * 2 + ["run_terminal"] * 2 + ["runnable_applied"] * 2
    assert_views_agree_with_the_journal(postgres_virtual)


def test_a_thread_that_is_missing_is_for_the_other_ways(postgres: PostgresStorage, ended: list[int]) -> None:
    squid, claims = started(postgres, workflow("one"), 2)
    with raw(postgres) as connection:
        connection.execute("DELETE FROM journal_threads WHERE id = %s", (f"squid:run:{claims[0].ref.run_id}",))
    answers = done(squid, claims)
    assert isinstance(answers[0].error, StorageRefused), "as it would be without this way"
    assert "journal_entries_thread" in str(answers[0].error)
    assert answers[1].error is None, "it takes no other with it"
    assert set(ended) == {0}


def wf_of_routes(entry: str | None = None) -> Workflow:
    """Two steps of which the first may be the last."""
    wf = Workflow("routes", entry=entry)
    wf.step(name="a", output="a")(lambda: 1)
    wf.step(name="b")(lambda: 2)
    wf.route("a", to="b", when=path("a") == 1)
    wf.route("a", to="complete")
    wf.route("b", to="complete")
    return wf


def test_only_steps_that_leave_nothing_open_are_certain_ends() -> None:
    chain, fan, join = Workflow("chain"), Workflow("fan"), Workflow("join")
    for name, after in (("a", []), ("b", ["a"]), ("c", ["b"])):
        chain.step(name=name, after=after)(lambda: None)
    for name, after in (("a", []), ("b", ["a"]), ("c", ["a"])):
        fan.step(name=name, after=after)(lambda: None)
    for name, after in (("a", []), ("b", []), ("c", ["a", "b"])):
        join.step(name=name, after=after)(lambda: None)
    found = {each.name: dict(each.freeze().endings) for each in (workflow("one"), chain, fan, join)}
    assert found == {"shape": {"a": None}, "chain": {"c": None}, "fan": {}, "join": {"c": None}}


def test_a_route_that_depends_is_no_certain_end() -> None:
    endings = dict(wf_of_routes("a").freeze().endings)
    assert endings == {"b": {"from": "b", "on": "ok", "to": "complete"}}


def test_a_group_that_is_told_again_after_an_outage_between_its_commits_hears_of_no_refusal(
    postgres: PostgresStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a group that is written by several commits, and an outage after the first of them
    goes_on = Workflow("two")
    goes_on.step(name="first")(lambda: None)
    goes_on.step(name="second", after=["first"])(lambda: None)
    squid = Squid(postgres, [workflow("one"), goes_on])
    for name in ("shape", "two"):
        squid.start(name)
    claims = squid.runtime.dispatch.claim(QUEUE, "w", limit=2)
    group = [Settlement(claim.ref, Completed("done")) for claim in claims]

    def outage(*_: object) -> None:
        raise StorageUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(f"{PostgresDispatchStore.__module__}.settle_plain", outage)
        with pytest.raises(StorageUnavailable):
            squid.runtime.dispatch.settle(group, squid.runtime.plan)
    assert squid.inspect_run(claims[0].ref.run_id).status == "completed"
    # when the group is told again, then everything was written, once
    answers = squid.runtime.dispatch.settle(group, squid.runtime.plan)
    assert [answer.unwrap().status for answer in answers] == ["completed"] * 2
    assert_views_agree_with_the_journal(postgres)
