"""Groups, in every version on every storage: whatever one member is, every other is written as if it stood alone."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import (
    Answer,
    Claim,
    ClaimRef,
    Completed,
    Deferred,
    Failed,
    Interrupted,
    NextAttempt,
    Outcome,
    PlanRequest,
    Settlement,
)
from squid_dagster.journal.contract.storage import Append
from squid_dagster.journal.fold_store.dispatch_store import FoldDispatchStore
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.dispatch.dispatch_store import PostgresDispatchStore
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.limits import MAX_ROUND_BYTES, commit_bytes
from squid_dagster.protocol import Fact, RunUnit, run_thread
from squid_dagster.protocol.errors import (
    ExpiredClaim,
    InvalidFact,
    NotFound,
    PlanningFailed,
    StaleClaim,
    StorageUnavailable,
    TerminalRun,
)
from tests.facts import QUEUE, fenced, key, planned, quarantined, runnable, scheduled, signal, terminal
from tests.journal.access import raw, wait_for_a_lock
from tests.journal.dispatch_fixture import (
    MINUTE,
    Desk,
    Planner,
    broke,
    claim,
    done,
    other_token,
    seconds,
    start,
    statuses,
)

SMALL = 3_000  # bytes that a fact may have in these tests


class _Plans(Planner):
    """A planner that raises, or plans what cannot be written, for runs that are named so."""

    def __call__(self, request: PlanRequest) -> list[Fact]:
        if "defect" in request.run_id:
            raise ZeroDivisionError("in the planner, of postgresql://bob:hunter2@db/x")
        if "held" in request.run_id:
            raise TerminalRun("whatever error of ours")
        if "nofact" in request.run_id:
            return ["a text"]  # type: ignore[list-item]
        facts = super().__call__(request)
        if "greedy" in request.run_id:
            huge = runnable(request.run_id, "huge", input={"x": "x" * SMALL}, visible_at=request.now)
            return [*facts, planned(huge, run=request.run_id, at=0).model_copy(update={"occurred_at": request.now})]
        return facts


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@dataclass
class Stage:
    """A desk with runs of every kind on it, each with a claim."""

    desk: Desk
    claims: dict[str, Claim]

    @classmethod
    def of(cls, desk: Desk, names: Sequence[str]) -> "Stage":
        """Start a run for each name and claim all of them; some are then made bad ones."""
        desk.storage.max_fact_bytes = SMALL  # type: ignore[misc]
        for name in names:
            start(desk, name)
            if "sibling" in name:
                desk.put(planned(runnable(name, "twin"), run=name), scheduled(name, "twin"))
        late = {c.attempt.run_id: c for c in claim(desk, limit=1000, lease=seconds(1))}
        desk.wait(2)
        fresh = claim(desk, limit=1000, lease=MINUTE)
        found = {(c.attempt.run_id, c.attempt.step): c for c in fresh}
        claims = {name: late[name] if "stale" in name else found[name, "charge"] for name in names}
        claims |= {f"{name} twin": c for (name, step), c in found.items() if step == "twin"}
        for name in names:
            if "ended" in name:
                desk.put(fenced(name, at=10), terminal(name, at=10))
            if "quarantined" in name:
                desk.put(quarantined(name, at=10))
        return cls(desk, claims)

    def settlements(self, kinds: Sequence[tuple[str, str]]) -> list[Settlement]:
        """Give what comes of the run of each name, as its kind says."""
        found: list[Settlement] = []
        for name, kind in kinds:
            own = self.claims[name]
            outcome = OUTCOMES[kind]
            if kind == "retried":
                outcome = Failed({"message": "declined"}, NextAttempt(key(name, attempt=2), seconds(1)))
            ref = BAD_REFS[kind](own.ref) if kind in BAD_REFS else own.ref
            found.append(Settlement(ref, outcome))
            if kind == "doubled":
                found.append(found[-1])
            if kind == "zombie":
                stale = ClaimRef(own.ref.queue, own.ref.run_id, own.ref.runnable_key, "an older claim", "its token")
                found.insert(len(found) - 1, Settlement(stale, Completed("of the older delivery")))
            if "sibling" in kind:
                twin = self.claims[f"{name} twin"]
                found.append(Settlement(twin.ref, Completed("of the sibling")))
        return found

    def statuses(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """Give the status of every attempt by run, and of the run; nothing in the journal is wrong."""
        found: dict[str, dict[str, str]] = {}
        for name in names:
            unit = RunUnit.fold(self.desk.storage.read_run(name))
            assert unit.anomalies == [], name
            found[name] = {k: a.status.value for k, a in unit.dispatch.attempts.items()}
            found[name]["applied"] = str(sorted(unit.run.applied))
        return found


OUTCOMES: dict[str, Outcome] = {
    "good": Completed({"ok": True}),
    "locked": Completed("of a run that another session holds"),
    "failed": Failed({"message": "declined"}),
    "retried": Failed({}),  # with a key of its own
    "deferred": Deferred("later", seconds(60)),
    "interrupted": Interrupted("the worker stopped"),
    "doubled": Completed("twice"),
    "zombie": Completed("of the newer delivery"),
    "stale": Completed("too late"),
    "wrongtoken": Completed("guessed"),
    "ended": Completed("after the end"),
    "quarantined": Completed("kept"),
    "nul": Completed("\0"),
    "surrogate": Completed("\ud800"),
    "nojson": Completed(object()),
    "nan": Completed(float("nan")),
    "deep": Completed(_nested(5_000)),
    "large": Completed("x" * SMALL),
    "badmessage": Failed({"message": object()}),
    "badretry": Failed({"message": "declined"}, NextAttempt("again", timedelta.max)),
    "badreason": Deferred("\0", seconds(1)),
    "forever": Deferred("never", timedelta.max),
    "defect": Completed("the planner raises"),
    "held": Completed("the planner refuses"),
    "nofact": Completed("the planner gives no fact"),
    "greedy": Completed("the plan is too large"),
    "oddrun": Completed("of a run that cannot be"),
    "oddkey": Completed("of an attempt that cannot be"),
    "unknown": Completed("of a run that is not there"),
    "badsibling": Completed("\0"),
    "sibling": Completed("of two"),
}
BAD_REFS: dict[str, Callable[[ClaimRef], ClaimRef]] = {
    "wrongtoken": other_token,
    "oddrun": lambda ref: ClaimRef(ref.queue, 'a"b\0', ref.runnable_key, ref.claim_id, ref.token),
    "oddkey": lambda ref: ClaimRef(ref.queue, ref.run_id, "x\ud800", ref.claim_id, ref.token),
    "unknown": lambda ref: ClaimRef(ref.queue, "nowhere", "nowhere:charge:1:1", ref.claim_id, ref.token),
}
ALWAYS_WRITTEN = {"good", "failed", "retried", "deferred", "interrupted", "doubled", "zombie", "sibling", "quarantined"}
ALWAYS_WRITTEN |= {"locked"}  # in the end


@contextmanager
def others_hold(desk: Desk, runs: Sequence[str], table: str = "runs") -> Iterator[list[str]]:
    """Have another session lock the rows of runs; yield them. Where nothing waits for locks, none."""
    if not isinstance(desk.store, PostgresDispatchStore) or not isinstance(desk.storage, PostgresStorage):
        yield []
        return
    with raw(desk.storage, autocommit=False) as connection:
        connection.execute(f"SELECT FROM {table} WHERE run_id = ANY (%s) FOR UPDATE", (list(runs),))
        yield list(runs)


def repeat_unavailable(answers: Sequence[Answer], write: Callable[[list[int]], Sequence[Answer]]) -> list[Answer]:
    """Return the answers, those anew that were neither written nor refused."""
    left = [i for i, answer in enumerate(answers) if answer.unavailable]
    again = dict(zip(left, write(left), strict=True))
    return [again.get(i, answer) for i, answer in enumerate(answers)]


def _told(answers: Sequence[Answer]) -> list[str]:
    return [type(a.error).__name__ if a.error else a.unwrap().status.value for a in answers]


_numbers = iter(range(10**9))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12, deadline=None)
@given(kinds=st.lists(st.sampled_from(sorted(OUTCOMES)), min_size=2, max_size=12))
def test_members_of_any_kind_fare_in_a_group_as_they_do_alone(desk: Desk, kinds: list[str]) -> None:
    run = next(_numbers)
    named = [(f"{kind}-{run}-{i}", kind) for i, kind in enumerate(kinds)]
    names = [name for name, _ in named]
    # given the same runs and claims here, and in a journal of their own
    clock = VirtualClock(desk.clock.now())
    memory = MemoryStorage(clock, atomic_across_threads=desk.storage.atomic_across_threads)
    twin = Desk(memory, FoldDispatchStore(memory), clock)
    here, alone = Stage.of(desk, names), Stage.of(twin, names)
    # when they are settled in one group, and one by one
    group = here.settlements(named)
    with others_hold(desk, [name for name in names if "locked" in name]) as locked:
        answers = desk.store.settle(group, _Plans())
    assert [a.ref.run_id for a in answers if a.unavailable] == locked
    answers = repeat_unavailable(answers, lambda left: desk.store.settle([group[i] for i in left], _Plans()))
    expected = [twin.store.settle([each], _Plans())[0] for each in alone.settlements(named)]
    # then every one was told the same, and the journals say the same
    assert _told(answers) == _told(expected)
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
def test_heartbeats_and_releases_reach_every_claim_that_stands(desk: Desk, kinds: list[str], releases: bool) -> None:
    run = next(_numbers)
    named = [(f"{kind}-{run}-{i}", kind) for i, kind in enumerate(kinds)]
    stage = Stage.of(desk, [name for name, _ in named])
    refs = [each.ref for each in stage.settlements(named)]

    def write(which: Sequence[int]) -> list[Answer]:
        mine = [refs[i] for i in which]
        return desk.store.release(mine) if releases else desk.store.heartbeat(mine, timedelta(hours=1))

    with others_hold(desk, [name for name, kind in named if kind == "locked"]) as locked:
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
    assert _told(answers) == expected


# --- one by one -----------------------------------------------------------------------------------------------------


def test_both_deliveries_of_one_attempt_in_a_group_are_judged_one_by_one(desk: Desk) -> None:
    # given a worker that was suspended beyond its lease, and has claimed its own attempt again
    start(desk, "run-1", "run-2")
    old = claim(desk, limit=2, lease=seconds(1))
    desk.wait(2)
    new = claim(desk, limit=2)
    # when both deliveries are in one group, with the result of another run
    answers = desk.store.settle([done(old[0], "old"), done(new[0], "new"), done(new[1])], Planner())
    # then only the older one is dropped
    assert _told(answers) == ["StaleClaim", "completed", "completed"]
    assert answers[1].unwrap().result == "new"


def test_a_sibling_of_the_same_run_is_written_beside_one_that_cannot_be(desk: Desk) -> None:
    stage = Stage.of(desk, ["badsibling-1"])
    bad, good = stage.settlements([("badsibling-1", "badsibling")])
    for group in ([bad, good], [good, bad]):
        told = _told(desk.store.settle(group, Planner()))
        assert sorted(told) == ["InvalidFact", "completed"], "and when it is repeated"


def test_what_each_kind_is_told(desk: Desk) -> None:
    named = [
        (f"{kind}-x", kind) for kind in sorted(OUTCOMES) if kind not in ("doubled", "zombie", "sibling", "badsibling")
    ]
    stage = Stage.of(desk, [name for name, _ in named])
    answers = desk.store.settle(stage.settlements(named), _Plans())
    told = {kind: type(a.error) for (_, kind), a in zip(named, answers, strict=True) if a.error is not None}
    invalid = ["nul", "surrogate", "nojson", "nan", "deep", "large", "badmessage", "badretry", "badreason", "forever"]
    assert told == {
        **dict.fromkeys([*invalid, "nofact"], InvalidFact),
        **dict.fromkeys(["wrongtoken", "stale"], StaleClaim),
        **dict.fromkeys(["oddrun", "oddkey", "unknown"], NotFound),
        **dict.fromkeys(["ended", "held"], TerminalRun),
        "defect": PlanningFailed,
        "greedy": InvalidFact,
    }
    assert "hunter2" not in " ".join(str(a.error) for a in answers)


def test_an_expired_claim_is_refused_alone(desk: Desk) -> None:
    start(desk, "run-1", "run-2")
    (late,) = claim(desk, lease=seconds(1))
    (held,) = claim(desk)
    desk.wait(2)
    answers = desk.store.settle([done(late), done(held)], Planner())
    assert [type(a.error) for a in answers] == [ExpiredClaim, type(None)]


# --- locks ----------------------------------------------------------------------------------------------------------

TWELVE = [f"run-{i:02}" for i in range(12)]
HELD = 3
WAYS: dict[str, Callable[[Desk, list[Claim]], list[Answer]]] = {
    "succeeded": lambda desk, claims: desk.store.settle([done(each) for each in claims], Planner()),
    "failed": lambda desk, claims: desk.store.settle([broke(each) for each in claims], Planner()),
    "heartbeat": lambda desk, claims: desk.store.heartbeat([each.ref for each in claims], seconds(600)),
    "release": lambda desk, claims: desk.store.release([each.ref for each in claims]),
}
WRITTEN = {"succeeded": "completed", "failed": "failed", "heartbeat": "claimed", "release": "available"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("table", ["runs", "attempts"])
def test_a_member_whose_run_is_locked_keeps_no_other_waiting(postgres_desk: Desk, way: str, table: str) -> None:
    start(postgres_desk, *TWELVE)
    claims = claim(postgres_desk, limit=12)
    # given another session that holds a row of one of twelve runs
    with others_hold(postgres_desk, [TWELVE[HELD]], table):
        began = time.monotonic()
        answers = WAYS[way](postgres_desk, claims)
        # then the others are written meanwhile, and it is said what that one waits for
        assert _told(answers) == [WRITTEN[way] if i != HELD else "StorageUnavailable" for i in range(12)]
        assert answers[HELD].unavailable
        assert TWELVE[HELD] in str(answers[HELD].error)
        # and who asks again, again and again, waits for nothing
        for _ in range(40):
            assert WAYS[way](postgres_desk, [claims[HELD]])[0].unavailable
        assert time.monotonic() - began < 15
    # when the lock goes, it is written too
    assert _told(WAYS[way](postgres_desk, [claims[HELD]])) == [WRITTEN[way]]
    for run in TWELVE:
        statuses(postgres_desk, run)


def test_a_locked_member_waits_for_the_rest_of_its_lease_and_no_longer(postgres_desk: Desk) -> None:
    start(postgres_desk, "run-1", "run-2")
    claims = claim(postgres_desk, limit=2)
    with others_hold(postgres_desk, ["run-1"]):
        answers = postgres_desk.store.heartbeat([each.ref for each in claims], seconds(600))
        assert _told(answers) == ["StorageUnavailable", "claimed"]
        postgres_desk.wait(61)
    answers = postgres_desk.store.heartbeat([each.ref for each in claims], seconds(600))
    assert _told(answers) == ["ExpiredClaim", "claimed"]


def test_a_commit_about_several_runs_does_not_hold_them_while_one_is_locked(postgres_desk: Desk) -> None:
    storage = postgres_desk.storage
    assert isinstance(storage, PostgresStorage)
    start(postgres_desk, "run-1", "run-2")
    both = [Append(run_thread(run), [signal(run)]) for run in ("run-1", "run-2")]
    before = {run: storage.revision(run_thread(run)) for run in ("run-1", "run-2")}
    # when another session holds one of two runs, then a commit about both gives up, and lets the other one go
    with ThreadPoolExecutor() as pool, others_hold(postgres_desk, ["run-2"]), raw(storage) as another:
        refused = pool.submit(storage.commit, both)
        wait_for_a_lock(storage)
        another.execute("SET lock_timeout = '10s'")
        another.execute("SELECT FROM runs WHERE run_id = 'run-1' FOR UPDATE")
        with pytest.raises(StorageUnavailable, match="55P03"):
            refused.result()
    assert {run: storage.revision(run_thread(run)) for run in before} == before
    # and one about a single run waits until it is let go
    with ThreadPoolExecutor() as pool, others_hold(postgres_desk, ["run-2"]):
        written = pool.submit(storage.commit, both[1:])
        wait_for_a_lock(storage)
    assert written.result() == {run_thread("run-2"): before["run-2"] + 1}


WAITING = """SELECT pid, xact_start FROM pg_stat_activity
    WHERE wait_event_type = 'Lock' AND datname = current_database()"""


@pytest.mark.parametrize("way", WAYS)
def test_a_group_waits_for_the_thread_of_its_queue_as_long_as_any_commit(postgres_desk: Desk, way: str) -> None:
    storage = postgres_desk.storage
    assert isinstance(storage, PostgresStorage)
    start(postgres_desk, *TWELVE)
    claims = claim(postgres_desk, limit=12)
    with raw(storage, autocommit=False) as connection, raw(storage) as look, ThreadPoolExecutor() as pool:
        connection.execute("SELECT FROM journal_threads WHERE id = %s FOR UPDATE", (f"squid:dispatch:{QUEUE}",))
        answers = pool.submit(WAYS[way], postgres_desk, claims)
        wait_for_a_lock(storage)
        since = look.execute(WAITING).fetchone()
        time.sleep(1.5)  # longer than a group waits for a row of a run
        assert look.execute(WAITING).fetchone() == since, "it was not refused meanwhile"
        connection.rollback()
        assert _told(answers.result()) == [WRITTEN[way]] * 12


INTERNAL = """CREATE FUNCTION internal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF NEW.run_id = ANY ({runs}) THEN RAISE EXCEPTION 'a defect' USING ERRCODE = 'XX000'; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER internal BEFORE INSERT ON journal_entries FOR EACH ROW EXECUTE FUNCTION internal()"""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bad", [[0], [3], [0, 1, 11], [*range(12)]], ids=str)
def test_an_internal_error_about_some_members_is_theirs_alone(postgres_desk: Desk, way: str, bad: list[int]) -> None:
    assert isinstance(postgres_desk.storage, PostgresStorage)
    start(postgres_desk, *TWELVE)
    claims = claim(postgres_desk, limit=12)
    with raw(postgres_desk.storage) as connection:
        runs = sql.Literal([TWELVE[i] for i in bad])
        connection.execute(sql.SQL(INTERNAL).format(runs=runs))
        answers = WAYS[way](postgres_desk, claims)
        assert _told(answers) == [WRITTEN[way] if i not in bad else "StorageUnavailable" for i in range(12)]
        connection.execute("DROP TRIGGER internal ON journal_entries")
    assert _told(WAYS[way](postgres_desk, [claims[i] for i in bad])) == [WRITTEN[way]] * len(bad)


def test_an_internal_error_about_everything_is_found_out_before_each_member_was_tried(postgres_desk: Desk) -> None:
    assert isinstance(postgres_desk.storage, PostgresStorage)
    runs = [f"run-{i}" for i in range(300)]
    start(postgres_desk, *runs)
    claims = claim(postgres_desk, limit=300)
    with raw(postgres_desk.storage) as connection:
        connection.execute("CREATE SEQUENCE tries")
        connection.execute(
            sql.SQL(INTERNAL.replace("BEGIN\n", "BEGIN PERFORM nextval('{schema}.tries');\n", 1)).format(
                runs=sql.Literal(runs), schema=sql.SQL(postgres_desk.storage.schema)
            )
        )
        with pytest.raises(StorageUnavailable, match="XX000"):
            WAYS["heartbeat"](postgres_desk, claims)
        tries = connection.execute("SELECT last_value FROM tries").fetchone()
        assert tries is not None
        assert tries[0] < 200
        connection.execute("DROP TRIGGER internal ON journal_entries")
    assert _told(WAYS["heartbeat"](postgres_desk, claims)) == ["claimed"] * 300


# --- bytes ----------------------------------------------------------------------------------------------------------


def test_a_group_is_bounded_by_bytes_and_all_of_it_is_written(
    postgres_desk: Desk, postgres_virtual: PostgresStorage
) -> None:
    runs = [f"run-{i}" for i in range(20)]
    start(postgres_desk, *runs)
    claims = claim(postgres_desk, limit=20)
    big = "ü" * 500_000  # a million bytes each: more in all than one round
    assert len(runs) * len(big.encode()) > MAX_ROUND_BYTES
    with raw(postgres_virtual) as connection:
        count = "SELECT count(*) FROM journal_commits"
        before = connection.execute(count).fetchone()
        answers = postgres_desk.store.settle([done(each, big) for each in claims], Planner())
        after = connection.execute(count).fetchone()
    assert _told(answers) == ["completed"] * 20
    assert before is not None
    assert after == (before[0] + 2,)


def test_a_claim_of_more_than_one_answer_can_hold_is_made_in_parts(
    postgres_desk: Desk, postgres_virtual: PostgresStorage
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
    start(postgres_desk, *(f"run-{i}" for i in range(10)))
    assert len(claim(postgres_desk, limit=9)) == 9
    assert len(claim(postgres_desk, limit=9)) == 1


def test_plans_that_are_too_large_together_are_written_in_parts(desk: Desk) -> None:
    desk.storage.max_fact_bytes = SMALL  # type: ignore[misc]
    runs = [f"run-{i}" for i in range(12)]
    start(desk, *runs)
    result = "x" * (SMALL - 600)
    assert len(runs) * len(result) > commit_bytes(SMALL)
    answers = desk.store.settle([done(each, result) for each in claim(desk, limit=12)], Planner())
    assert _told(answers) == ["completed"] * 12
    assert {key(run, visit=2) in RunUnit.fold(desk.storage.read_run(run)).dispatch.attempts for run in runs} == {True}


def test_an_error_of_the_database_about_one_member_refuses_that_one_alone(
    postgres_desk: Desk, postgres_virtual: PostgresStorage
) -> None:
    # given a constraint of somebody else's that one result violates
    from tests.journal.access import raw

    with raw(postgres_virtual) as connection:
        connection.execute(
            "ALTER TABLE journal_entries ADD CONSTRAINT theirs CHECK (data->>'result' IS DISTINCT FROM 'thirteen')"
        )
    runs = [f"run-{i}" for i in range(20)]
    start(postgres_desk, *runs)
    claims = claim(postgres_desk, limit=20)
    results = ["thirteen" if i == 13 else str(i) for i in range(20)]
    answers = postgres_desk.store.settle([done(c, r) for c, r in zip(claims, results, strict=True)], Planner())
    assert [i for i, a in enumerate(answers) if a.error is not None] == [13]
    assert type(answers[13].error).__name__ == "StorageRefused"
    assert {type(a.error) for a in postgres_desk.store.heartbeat([c.ref for c in claims])} == {StaleClaim, type(None)}


def test_nothing_is_split_while_the_database_is_away(postgres_desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:

    start(postgres_desk, "run-1", "run-2")
    claims = claim(postgres_desk, limit=2)
    calls: list[int] = []

    def away(*_: Any, **__: Any) -> Any:
        calls.append(1)
        raise StorageUnavailable("gone")

    monkeypatch.setattr(postgres_desk.storage, "transaction", away)
    with pytest.raises(StorageUnavailable):
        postgres_desk.store.heartbeat([c.ref for c in claims])
    assert len(calls) <= 2
    assert claims[0].ref.queue == QUEUE
