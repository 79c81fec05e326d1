"""The short way of a settlement: what takes it, what does not, and that nobody can tell afterwards."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresDispatchStore, PostgresStorage, verify
from squid_dagster.journal.clock import VirtualClock
from squid_dagster.journal.dispatch import Answer, Claim, Completed, Planner, PlanRequest, Settlement
from squid_dagster.journal.postgres.short import settle_plain
from squid_dagster.protocol import Fact, RunUnit, run_thread
from squid_dagster.protocol.errors import StaleClaim, StorageRefused
from squid_dagster.workflow import Workflow
from tests.facts import QUEUE, terminal
from tests.journal.contract import assert_views_agree_with_the_journal, raw


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many members of each group took the short way."""
    counts: list[int] = []
    usual = settle_plain

    def counting(
        storage: PostgresStorage,
        settlements: Sequence[Settlement],
        plan: Planner,
        commit: Any,
        answers: dict[int, Answer],
    ) -> None:
        usual(storage, settlements, plan, commit, answers)
        counts.append(len(answers))

    monkeypatch.setattr(f"{PostgresDispatchStore.__module__}.settle_plain", counting)
    return counts


def workflow(shape: str) -> Workflow:
    """A workflow whose first completion leads to another kind of fact."""
    wf = Workflow("shape")
    wf.step(name="a")(_nothing)
    if shape == "approval":
        wf.approval("b")
        wf.route("a", to="b")
        wf.route("b", to="complete")
        wf.route("b", on="error", to="fail")
    elif shape != "one":
        wf.step(name="b", after=["a"])(_nothing)
        if shape == "fan out":
            wf.step(name="c", after=["a"])(_nothing)
    return wf


def _nothing() -> None:
    """A step of which only the facts matter."""


def started(storage: PostgresStorage, wf: Workflow, count: int = 1) -> tuple[Squid, list[Claim]]:
    squid = Squid(storage, [wf])
    squid.start_many(wf, [None] * count)
    return squid, squid.runtime.dispatch.claim(QUEUE, "worker", limit=count)


def settled(squid: Squid, claims: Sequence[Claim], result: Any = None) -> list[Answer]:
    done = [Settlement(claim.ref, Completed(result), claim.attempt) for claim in claims]
    return squid.runtime.dispatch.settle(done, squid.runtime.plan)


@pytest.mark.parametrize("shape", ["one", "chain", "fan out", "approval"])
@pytest.mark.parametrize("result", [None, {"deep": [1, {"x": 1e300}], "text": "ü\u2028"}])
def test_what_it_writes_is_what_the_long_way_writes(
    postgres_virtual: PostgresStorage, clock: VirtualClock, taken: list[int], shape: str, result: Any
) -> None:
    # given two runs that are alike
    squid, (short, long) = started(postgres_virtual, workflow(shape), 2)
    clock.advance(timedelta(seconds=3))
    # when one is settled with its claim at hand, and the other without
    (mine,) = settled(squid, [short], result)
    (other,) = squid.runtime.dispatch.settle([Settlement(long.ref, Completed(result))], squid.runtime.plan)
    # then only the first has taken the short way, and both say the same
    assert taken == [1, 0]
    told = [_facts(postgres_virtual, claim.ref.run_id) for claim in (short, long)]
    assert told[0] == told[1]
    assert _state(mine) == _state(other)
    assert_views_agree_with_the_journal(postgres_virtual)
    assert verify(postgres_virtual) == []


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


def _facts(storage: PostgresStorage, run_id: str) -> list[str]:
    facts = [entry.fact for entry in storage.read_run(run_id)]
    held = {getattr(fact, "claim_id", None) for fact in facts} | {
        getattr(fact, "claim_token_hash", None) for fact in facts
    }
    text = [fact.model_dump_json().replace(run_id, "<run>") for fact in facts]  # type: ignore[union-attr]
    for secret in filter(None, held):
        text = [each.replace(secret, "<claim>") for each in text]
    return text


def refused_plan(_: PlanRequest) -> Sequence[Fact]:
    raise StaleClaim("the planner says no")


def plan_that_fences(request: PlanRequest) -> Sequence[Fact]:
    return [terminal(request.run_id, at=0)]


def cancelled(squid: Squid, claim: Claim) -> None:
    squid.cancel(claim.ref.run_id)


def taken_over(squid: Squid, claim: Claim) -> None:
    squid.runtime.dispatch.release([claim.ref])
    assert squid.runtime.dispatch.claim(QUEUE, "rival")


def damaged(squid: Squid, claim: Claim) -> None:
    storage = squid.runtime.storage
    assert isinstance(storage, PostgresStorage)
    with raw(storage) as connection:
        connection.execute("ALTER TABLE journal_entries DISABLE TRIGGER ALL")
        connection.execute(
            "UPDATE journal_entries SET data = '{}' WHERE thread = %s AND type = 'run_started'",
            (run_thread(claim.ref.run_id),),
        )
        connection.execute("ALTER TABLE journal_entries ENABLE ALWAYS TRIGGER journal_entries_append_only")


@pytest.mark.parametrize("event", [cancelled, taken_over, damaged], ids=lambda event: event.__name__)
def test_what_is_not_plain_goes_the_long_way_and_takes_nobody_with_it(
    postgres: PostgresStorage, taken: list[int], event: Callable[[Squid, Claim], None]
) -> None:
    # given three claims, to one of whose runs something happens
    squid, claims = started(postgres, workflow("chain"), 3)
    event(squid, claims[1])
    # when all are settled together
    answers = settled(squid, claims)
    # then the others have taken the short way, and that one is answered as it would be alone
    assert taken == [2]
    assert [answer.error is None for answer in answers] == [True, event is damaged, True]
    for claim in (claims[0], claims[2]):
        unit = RunUnit.fold(postgres.read_run(claim.ref.run_id))
        assert set(unit.run.applied) == {claim.ref.runnable_key}
        assert len(unit.dispatch.attempts) == 2
    if event is not damaged:
        assert verify(postgres) == []


def test_two_of_one_run_in_a_group_are_planned_together_by_the_long_way(
    postgres: PostgresStorage, taken: list[int]
) -> None:
    squid, first = started(postgres, workflow("fan out"))
    settled(squid, first)
    both = squid.runtime.dispatch.claim(QUEUE, "worker", limit=2)
    assert all(answer.error is None for answer in settled(squid, both))
    assert taken == [1, 0]
    assert squid.inspect_run(first[0].ref.run_id).status == "completed"


def test_a_planner_that_refuses_is_heard_by_the_long_way(postgres: PostgresStorage, taken: list[int]) -> None:
    squid, claims = started(postgres, workflow("chain"), 2)
    done = [Settlement(claim.ref, Completed(None), claim.attempt) for claim in claims]
    store = squid.runtime.dispatch
    before = postgres.cut()
    assert isinstance(store.settle(done[:1], refused_plan)[0].error, StaleClaim)
    assert postgres.cut() == before, "nothing was written"
    assert taken == [0]


def test_a_run_that_ends_while_another_attempt_is_open_goes_the_long_way(
    postgres: PostgresStorage, taken: list[int]
) -> None:
    squid, first = started(postgres, workflow("fan out"))
    settled(squid, first)
    one, _ = squid.runtime.dispatch.claim(QUEUE, "worker", limit=2)
    ends = Settlement(one.ref, Completed(None), one.attempt)
    assert squid.runtime.dispatch.settle([ends], plan_that_fences)[0].error is None
    assert taken == [1, 0]
    assert_views_agree_with_the_journal(postgres)


def test_a_result_that_cannot_be_written_is_refused_alone(postgres: PostgresStorage, taken: list[int]) -> None:
    squid, claims = started(postgres, workflow("one"), 2)
    bad = Settlement(claims[0].ref, Completed("nul \0"), claims[0].attempt)
    good = Settlement(claims[1].ref, Completed("fine"), claims[1].attempt)
    answers = squid.runtime.dispatch.settle([bad, good], squid.runtime.plan)
    assert [answer.error is None for answer in answers] == [False, True]
    assert taken == [1]


def test_a_hint_that_cannot_be_sent_does_not_make_a_start_look_undone(
    postgres: PostgresStorage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given a notifier whose hints Postgres refuses: a channel's name has at most 63 bytes
    squid = Squid(postgres, [workflow("one")])
    monkeypatch.setattr(postgres, "channel", "x" * 100)
    # when a run is started
    run_id = squid.start("shape").run_id
    # then it is started, once, and whoever reads the log knows about the hint
    assert squid.inspect_run(run_id).status == "running"
    assert "cannot notify workers" in caplog.text
    assert len(PostgresDispatchStore(postgres).claim(QUEUE, "worker", limit=5)) == 1


def test_a_refused_start_with_a_hint_is_refused(postgres: PostgresStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    squid = Squid(postgres, [workflow("one")])
    monkeypatch.setattr(postgres, "channel", "x" * 100)
    with raw(postgres) as connection:
        connection.execute("ALTER TABLE journal_entries ADD CONSTRAINT nothing CHECK (type <> 'run_started')")
    with pytest.raises(StorageRefused, match="23514"):
        squid.start("shape")
    assert squid.list_runs().runs == ()
