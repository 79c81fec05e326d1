"""Groups, in every version on every storage: whatever one member is, every other is written as if it stood alone."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Answer
from squid_dagster.journal.fold_store.dispatch_store import FoldDispatchStore
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.limits import MAX_ROUND_BYTES, commit_bytes
from squid_dagster.protocol import RunUnit
from squid_dagster.protocol.errors import (
    ExpiredClaim,
    InvalidFact,
    NotFound,
    PlanningFailed,
    StaleClaim,
    StorageUnavailable,
    TerminalRun,
)
from tests.facts import QUEUE, key
from tests.journal.access import raw
from tests.journal.dispatch_fixture import DispatchFixture, Planner, claim, done, seconds, start
from tests.journal.settlement.group_fixture import (
    ALWAYS_WRITTEN,
    OUTCOMES,
    SMALL,
    BadPlanner,
    GroupFixture,
    errors_of,
    others_hold,
    repeat_unavailable,
)

_numbers = iter(range(10**9))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12, deadline=None)
@given(kinds=st.lists(st.sampled_from(sorted(OUTCOMES)), min_size=2, max_size=12))
def test_members_of_any_kind_fare_in_a_group_as_they_do_alone(dispatch: DispatchFixture, kinds: list[str]) -> None:
    run = next(_numbers)
    named = [(f"{kind}-{run}-{i}", kind) for i, kind in enumerate(kinds)]
    names = [name for name, _ in named]
    # given the same runs and claims here, and in a journal of their own
    clock = VirtualClock(dispatch.clock.now())
    memory = MemoryStorage(clock, atomic_across_threads=dispatch.storage.atomic_across_threads)
    twin = DispatchFixture(memory, FoldDispatchStore(memory), clock)
    here, alone = GroupFixture.of(dispatch, names), GroupFixture.of(twin, names)
    # when they are settled in one group, and one by one
    group = here.settlements(named)
    with others_hold(dispatch, [name for name in names if "locked" in name]) as locked:
        answers = dispatch.store.settle(group, BadPlanner())
    assert [a.ref.run_id for a in answers if a.unavailable] == locked
    answers = repeat_unavailable(answers, lambda left: dispatch.store.settle([group[i] for i in left], BadPlanner()))
    expected = [twin.store.settle([settlement], BadPlanner())[0] for settlement in alone.settlements(named)]
    # then every one was told the same, and the journals say the same
    assert errors_of(answers) == errors_of(expected)
    assert here.statuses(names) == alone.statuses(names)
    for name, kind in named:
        if kind in ALWAYS_WRITTEN:
            assert here.statuses([name])[name][here.claims[name].ref.runnable_key] != "claimed", name


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=6, deadline=None)
@given(
    kinds=st.lists(
        st.sampled_from(["good", "locked", "stale", "wrongtoken", "ended", "oddrun", "oddkey", "unknown", "doubled"]),
        min_size=2,
        max_size=10,
    ),
    releases=st.booleans(),
)
def test_heartbeats_and_releases_reach_every_claim_that_stands(
    dispatch: DispatchFixture, kinds: list[str], releases: bool
) -> None:
    run = next(_numbers)
    named = [(f"{kind}-{run}-{i}", kind) for i, kind in enumerate(kinds)]
    stage = GroupFixture.of(dispatch, [name for name, _ in named])
    refs = [settlement.ref for settlement in stage.settlements(named)]

    def write(which: Sequence[int]) -> list[Answer]:
        mine = [refs[i] for i in which]
        return dispatch.store.release(mine) if releases else dispatch.store.heartbeat(mine, timedelta(hours=1))

    with others_hold(dispatch, [name for name, kind in named if kind == "locked"]) as locked:
        answers = write(range(len(refs)))
    assert [a.ref.run_id for a in answers if a.unavailable] == locked
    answers = repeat_unavailable(answers, write)
    expected: list[str] = []
    for kind in kinds:
        match kind:
            case "good" | "locked":
                expected.append("available" if releases else "claimed")
            case "doubled":
                expected += ["available", "StaleClaim"] if releases else ["claimed"] * 2
            case "stale" | "wrongtoken":
                expected.append("StaleClaim")
            case "ended":
                expected.append("TerminalRun")
            case _:
                expected.append("NotFound")
    assert errors_of(answers) == expected


# --- one by one -----------------------------------------------------------------------------------------------------


def test_both_deliveries_of_one_attempt_in_a_group_are_judged_one_by_one(dispatch: DispatchFixture) -> None:
    # given a worker that was suspended beyond its lease, and has claimed its own attempt again
    start(dispatch, "run-1", "run-2")
    old = claim(dispatch, limit=2, lease=seconds(1))
    dispatch.wait(2)
    new = claim(dispatch, limit=2)
    # when both deliveries are in one group, with the result of another run
    answers = dispatch.store.settle([done(old[0], "old"), done(new[0], "new"), done(new[1])], Planner())
    # then only the older one is dropped
    assert errors_of(answers) == ["StaleClaim", "completed", "completed"]
    assert answers[1].unwrap().result == "new"


def test_a_sibling_of_the_same_run_is_written_beside_one_that_cannot_be(dispatch: DispatchFixture) -> None:
    stage = GroupFixture.of(dispatch, ["badsibling-1"])
    bad, good = stage.settlements([("badsibling-1", "badsibling")])
    for group in ([bad, good], [good, bad]):
        errors = errors_of(dispatch.store.settle(group, Planner()))
        assert sorted(errors) == ["InvalidFact", "completed"], "and when it is repeated"


def test_what_each_kind_is_told(dispatch: DispatchFixture) -> None:
    named = [
        (f"{kind}-x", kind) for kind in sorted(OUTCOMES) if kind not in ("doubled", "zombie", "sibling", "badsibling")
    ]
    stage = GroupFixture.of(dispatch, [name for name, _ in named])
    answers = dispatch.store.settle(stage.settlements(named), BadPlanner())
    errors = {kind: type(a.error) for (_, kind), a in zip(named, answers, strict=True) if a.error is not None}
    invalid = ["nul", "surrogate", "nojson", "nan", "deep", "large", "badmessage", "badretry", "badreason", "forever"]
    assert errors == {
        **dict.fromkeys([*invalid, "nofact"], InvalidFact),
        **dict.fromkeys(["wrongtoken", "stale"], StaleClaim),
        **dict.fromkeys(["oddrun", "oddkey", "unknown"], NotFound),
        **dict.fromkeys(["ended", "held"], TerminalRun),
        "defect": PlanningFailed,
        "greedy": InvalidFact,
    }
    assert "hunter2" not in " ".join(str(a.error) for a in answers)


def test_an_expired_claim_is_refused_alone(dispatch: DispatchFixture) -> None:
    start(dispatch, "run-1", "run-2")
    (late,) = claim(dispatch, lease=seconds(1))
    (held,) = claim(dispatch)
    dispatch.wait(2)
    answers = dispatch.store.settle([done(late), done(held)], Planner())
    assert [type(a.error) for a in answers] == [ExpiredClaim, type(None)]


# --- bytes ----------------------------------------------------------------------------------------------------------


def test_a_group_is_bounded_by_bytes_and_all_of_it_is_written(
    postgres_dispatch: DispatchFixture, postgres_virtual: PostgresStorage
) -> None:
    runs = [f"run-{i}" for i in range(20)]
    start(postgres_dispatch, *runs)
    claims = claim(postgres_dispatch, limit=20)
    big = "ü" * 500_000  # a million bytes each: more in all than one round
    assert len(runs) * len(big.encode()) > MAX_ROUND_BYTES
    with raw(postgres_virtual) as connection:
        count = "SELECT count(*) FROM journal_commits"
        before = connection.execute(count).fetchone()
        answers = postgres_dispatch.store.settle([done(c, big) for c in claims], Planner())
        after = connection.execute(count).fetchone()
    assert errors_of(answers) == ["completed"] * 20
    assert before is not None
    assert after == (before[0] + 2,)


def test_a_claim_of_more_than_one_answer_can_hold_is_made_in_parts(
    postgres_dispatch: DispatchFixture, postgres_virtual: PostgresStorage
) -> None:
    # given a database that cannot answer more than three attempts at once, such as very large ones
    with raw(postgres_virtual) as connection:
        connection.execute("ALTER FUNCTION claim_attempts RENAME TO claim_few")
        connection.execute("""CREATE FUNCTION claim_attempts(
            uuid, text, text, interval, text[], text[], text[], timestamptz, integer, boolean, json)
            RETURNS json LANGUAGE plpgsql AS $$ BEGIN
                IF cardinality($5) > 3 THEN
                    RAISE EXCEPTION 'out of memory: cannot enlarge string buffer' USING ERRCODE = '54000';
                END IF;
                RETURN claim_few($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);
            END $$""")
        connection.execute(f"ALTER FUNCTION claim_attempts SET search_path = {postgres_virtual.schema}")
    start(postgres_dispatch, *(f"run-{i}" for i in range(10)))
    assert len(claim(postgres_dispatch, limit=9)) == 9
    assert len(claim(postgres_dispatch, limit=9)) == 1


def test_plans_that_are_too_large_together_are_written_in_parts(dispatch: DispatchFixture) -> None:
    dispatch.storage.max_fact_bytes = SMALL  # type: ignore[misc]
    runs = [f"run-{i}" for i in range(12)]
    start(dispatch, *runs)
    result = "x" * (SMALL - 600)
    assert len(runs) * len(result) > commit_bytes(SMALL)
    answers = dispatch.store.settle([done(c, result) for c in claim(dispatch, limit=12)], Planner())
    assert errors_of(answers) == ["completed"] * 12
    assert {key(run, visit=2) in RunUnit.fold(dispatch.storage.read_run(run)).dispatch.attempts for run in runs} == {
        True
    }


def test_an_error_of_the_database_about_one_member_refuses_that_one_alone(
    postgres_dispatch: DispatchFixture, postgres_virtual: PostgresStorage
) -> None:
    # given a constraint of another application that one result violates
    from tests.journal.access import raw

    with raw(postgres_virtual) as connection:
        connection.execute(
            "ALTER TABLE journal_entries ADD CONSTRAINT theirs CHECK (data->>'result' IS DISTINCT FROM 'thirteen')"
        )
    runs = [f"run-{i}" for i in range(20)]
    start(postgres_dispatch, *runs)
    claims = claim(postgres_dispatch, limit=20)
    results = ["thirteen" if i == 13 else str(i) for i in range(20)]
    answers = postgres_dispatch.store.settle([done(c, r) for c, r in zip(claims, results, strict=True)], Planner())
    assert [i for i, a in enumerate(answers) if a.error is not None] == [13]
    assert type(answers[13].error).__name__ == "StorageRefused"
    assert {type(a.error) for a in postgres_dispatch.store.heartbeat([c.ref for c in claims])} == {
        StaleClaim,
        type(None),
    }


def test_nothing_is_split_while_the_database_is_away(
    postgres_dispatch: DispatchFixture, monkeypatch: pytest.MonkeyPatch
) -> None:

    start(postgres_dispatch, "run-1", "run-2")
    claims = claim(postgres_dispatch, limit=2)
    calls: list[int] = []

    def away(*_: Any, **__: Any) -> Any:
        calls.append(1)
        raise StorageUnavailable("gone")

    monkeypatch.setattr(postgres_dispatch.storage, "transaction", away)
    with pytest.raises(StorageUnavailable):
        postgres_dispatch.store.heartbeat([c.ref for c in claims])
    assert len(calls) <= 2
    assert claims[0].ref.queue == QUEUE
