"""Any history three times: by the fast way of settlements, by the general way alone, and in memory."""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresDispatchStore, PostgresStorage, rebuild_views, verify
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import (
    Answer,
    Claim,
    Completed,
    Deferred,
    Failed,
    NextAttempt,
    Outcome,
    Settlement,
)
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol import AttemptCompleted, Fact, RunUnit
from squid_dagster.protocol.errors import SquidError
from squid_dagster.runtime.execution.settlement import settle
from squid_dagster.workflow import Workflow
from tests.facts import T0, child, quarantined, wakeup, with_fields
from tests.journal.access import assert_views_agree_with_the_journal, at_once, put

QUEUES = ("default", "slow")
LEASE = timedelta(seconds=60)


def _nothing() -> None:
    """Return nothing: only its facts matter."""


def workflows() -> list[Workflow]:
    """Return workflows of every shape that a completion can meet."""
    one = Workflow("one")
    one.step(name="a")(_nothing)
    chain, fan, gate, saga = Workflow("chain"), Workflow("fan"), Workflow("gate", entry="a"), Workflow("saga")
    for name, after in (("a", []), ("b", ["a"]), ("c", ["b"])):
        chain.step(name=name, after=after)(_nothing)
    for name, after in (("a", []), ("b", ["a"]), ("c", ["a"]), ("d", ["a"]), ("e", ["b", "c", "d"])):
        fan.step(name=name, after=after)(_nothing)
    gate.step(name="a", max_visits=3)(_nothing)
    gate.approval("sure")
    gate.step(name="z")(_nothing)
    gate.route("a", to="sure")
    gate.route("sure", to="z")
    gate.route("sure", on="error", to="a")
    gate.route("z", to="complete")
    for name, after in (("a", []), ("b", []), ("c", ["a", "b"])):
        saga.step(name=name, after=after, compensate=_nothing)(_nothing)
    return [one, chain, fan, gate, saga]


class JournalDriver:
    """One journal and its workers. If not `fast`, a store settles that has not claimed."""

    def __init__(self, storage: Storage, clock: VirtualClock, *, fast: bool = True) -> None:
        self.storage, self.clock, self.fast = storage, clock, fast
        self.squid = Squid(storage, workflows())
        self.store = self.squid.runtime.dispatch
        self.held: dict[str, Claim] = {}
        self.old: list[Claim] = []  # settled, given back, or lost
        self.runs: list[str] = []

    def start(self, workflow: str, queue: str) -> object:
        run_id = f"run-{len(self.runs) + 1}"
        self.runs.append(run_id)
        return self.squid.start(workflow, run_id=run_id, queue=queue).run_id

    def claim(self, queue: str) -> object:
        # All of them: which position is lower depends on the way that was taken.
        claims = self.store.claim(queue, "worker", limit=1000, lease=LEASE)
        for claim in claims:
            lost = self.held.pop(claim.ref.runnable_key, None)
            self.old += [lost] if lost is not None else []
            self.held[claim.ref.runnable_key] = claim
        return sorted((claim.ref.runnable_key, claim.attempt.deliveries, claim.lease_until) for claim in claims)

    def settle(self, chosen: Sequence[tuple[Claim, Outcome]]) -> object:
        store = self.store
        if not self.fast:
            assert isinstance(self.storage, PostgresStorage)
            store = PostgresDispatchStore(self.storage)
        settlements = [Settlement(claim.ref, outcome) for claim, outcome in chosen]
        answers = settle(replace(self.squid.runtime, dispatch=store), settlements).answers
        for claim, _ in chosen:
            if self.held.pop(claim.ref.runnable_key, None) is not None:
                self.old.append(claim)
        return [_told(answer) for answer in answers]

    def told(self, run_id: str) -> list[str]:
        """Return the facts of a run, but for random names."""
        names: dict[str, str] = {}
        facts = []
        for entry in self.storage.read_run(run_id):
            fact: Any = entry.fact
            for made in (getattr(fact, "claim_id", None), getattr(fact, "claim_token_hash", None)):
                if made is not None:
                    names.setdefault(made, f"<{len(names)}>")
            facts.append(fact.model_dump_json())
        pattern = re.compile("|".join(map(re.escape, names)) or "$.")
        return [pattern.sub(lambda match: names[match[0]], text) for text in facts]


def _told(answer: Answer) -> tuple[object, ...]:
    if answer.error is not None:
        return (type(answer.error).__name__, re.sub(r"[0-9a-f-]{36}", "", str(answer.error)))
    attempt = answer.unwrap()
    return (attempt.runnable_key, attempt.status, attempt.settled_at, attempt.last_at, attempt.outcome_digest)


class RandomOperations:
    """Random choices, made once and then followed by every driver."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def steps(self, drivers: Sequence[JournalDriver], count: int) -> Iterator[tuple[str, list[object]]]:
        """Execute so many operations in all journals; yield each with what every journal answered."""
        for _ in range(count):
            name = self._chance.choices(
                ["start", "claim", "settle", "again", "time", "heartbeat", "release", "command", "note"],
                [4, 8, 14, 2, 2, 2, 1, 4, 2],
            )[0]
            seed = self._chance.random()
            yield name, [_done(driver, name, random.Random(seed)) for driver in drivers]


def _done(driver: JournalDriver, name: str, chance: random.Random) -> object:
    """Execute one operation by these choices; an error is an answer too."""
    try:
        return _do(driver, name, chance)
    except SquidError as error:
        return type(error).__name__


def _do(driver: JournalDriver, name: str, chance: random.Random) -> object:
    held = [driver.held[name] for name in sorted(driver.held)]
    some = chance.sample(held, min(len(held), chance.randint(1, 9)))
    run = chance.choice(driver.runs) if driver.runs else "run-0"
    match name:
        case "start":
            shapes = chance.choices(["one", "chain", "fan", "gate", "saga"], k=chance.randint(1, 4))
            return [driver.start(shape, chance.choice(QUEUES)) for shape in shapes]
        case "claim":
            return [driver.claim(queue) for queue in QUEUES]
        case "settle":
            return driver.settle([(claim, _outcome(claim, chance)) for claim in some])
        case "again":
            old = sorted(driver.old, key=lambda claim: (claim.ref.runnable_key, claim.attempt.deliveries))
            return driver.settle([(claim, _outcome(claim, chance)) for claim in chance.sample(old, min(len(old), 1))])
        case "time":
            return driver.clock.advance(timedelta(seconds=chance.choice([0.001, 1, 61])))
        case "heartbeat":
            return [_told(answer) for answer in driver.store.heartbeat([claim.ref for claim in some], LEASE)]
        case "release":
            return [_told(answer) for answer in driver.store.release([claim.ref for claim in some[:1]])]
        case "note":
            return _note(driver, run, chance)
    squid = driver.squid
    commands: list[Callable[..., object]] = [squid.cancel, squid.approve, squid.approve, squid.reject]
    return type(chance.choice(commands)(run, actor="somebody")).__name__


def _note(driver: JournalDriver, run: str, chance: random.Random) -> object:
    """Write a fact about a run past the stores, as others may."""
    at = (driver.clock.now() - T0).total_seconds()
    facts: list[Fact] = [child(run, at=at, child_run_id=f"{run}-child")]
    if chance.random() < 0.3:
        facts = [quarantined(run, at=at)]
    elif chance.random() < 0.5:
        keys = sorted(k for k in driver.held if k.startswith(f"{run}:"))
        facts = [with_fields(wakeup(run, at=at), runnable_key=k, queue=driver.held[k].ref.queue) for k in keys[:1]]
    if facts:
        put(driver.storage, *facts)
    return [fact.type for fact in facts]


def _outcome(claim: Claim, chance: random.Random) -> Outcome:
    failed = Failed({"code": "no", "message": "no"})
    number = claim.attempt.attempt_number + 1
    again = NextAttempt(f"{claim.attempt.idempotency_key}:{number}", timedelta(seconds=chance.choice([0, 5])))
    results: list[Any] = [None, {"ok": [1, 1e300, "ü"]}, "", 0, []]
    outcomes: list[Outcome] = [Completed(result) for result in results * 3]
    outcomes += [failed._replace(retry=again), failed, Deferred("later", timedelta(seconds=1))]
    return chance.choice(outcomes)


@pytest.mark.parametrize("seed", range(8))
def test_no_fact_row_or_anomaly_tells_which_way_was_taken(
    postgres_url: str, schema_names: Iterator[str], fast_counts: list[int], seed: int
) -> None:
    # given three journals, one of which is settled by the fast way where that does
    clocks = [VirtualClock(T0) for _ in range(3)]
    storages = [PostgresStorage(postgres_url, next(schema_names), clock=clock) for clock in clocks[:2]]
    for storage in storages:
        storage.upgrade()
    drivers = [JournalDriver(storages[0], clocks[0]), JournalDriver(storages[1], clocks[1], fast=False)]
    drivers.append(JournalDriver(MemoryStorage(clocks[2]), clocks[2]))
    try:
        # when the same happens in all of them, whatever that is
        for name, (one, other, third) in RandomOperations(seed).steps(drivers, 120):
            # then all answer the same
            assert one == other == third, name
        assert sum(fast_counts) >= 20, "few of them were plain"
        # and all read the same in the end
        for run in drivers[0].runs:
            facts = [driver.told(run) for driver in drivers]
            assert facts[0] == facts[1] == facts[2]
            anomalies = [_anomalies(driver.storage, run) for driver in drivers]
            assert anomalies[0] == anomalies[1] == anomalies[2]
        # and the rows of the views are what the fold gives
        for storage in storages:
            assert_views_agree_with_the_journal(storage)
            assert verify(storage) == []
    finally:
        for storage in storages:
            storage.close()


def _anomalies(storage: Storage, run: str) -> list[tuple[str, object]]:
    return [(anomaly.reason.value, anomaly.subject) for anomaly in RunUnit.fold(storage.read_run(run)).anomalies]


class ConcurrentWorkers:
    """Many threads that work on one journal, at random, with each other's claims, half of them on a store of their own.

    What a store knows of a run is not what another one knows, and each of them is used by several threads.
    """

    def __init__(self, storage: PostgresStorage) -> None:
        self.storage = storage
        self.squid = Squid(storage, workflows())
        self.stores = [self.squid.runtime.dispatch, PostgresDispatchStore(storage)]
        self.claims: list[Claim] = []
        self.done: list[str] = []  # keys of attempts whose completion was acknowledged
        self.runs = [
            receipt.run_id
            for queue in QUEUES
            for name in ("one", "one", "chain", "fan", "fan", "gate", "saga")
            for receipt in self.squid.start_many(name, [None] * 3, queue=queue)
        ]

    def work(self, seed: int, rounds: int) -> None:
        """Claim, and settle what any of them has claimed, often at the same time as another one."""
        chance, store = random.Random(seed), self.stores[seed % 2]
        runtime = replace(self.squid.runtime, dispatch=store)
        for _ in range(rounds):
            lease = timedelta(seconds=chance.choice([0.005, 60, 60]))
            self.claims += store.claim(chance.choice(QUEUES), f"worker-{seed}", limit=6, lease=lease)
            recent = self.claims[-20:]
            some = {claim.ref.runnable_key: claim for claim in chance.sample(recent, min(len(recent), 8))}
            chosen = [Settlement(c.ref, _outcome(c, chance)) for c in some.values()]
            answers = settle(runtime, chosen).answers
            self.done += [
                answer.ref.claim_id
                for answer, settlement in zip(answers, chosen, strict=True)
                if answer.error is None and isinstance(settlement.outcome, Completed)
            ]

    def disturb(self, seed: int, rounds: int) -> None:
        """Extend or release leases, cancel, approve, pause a queue, rebuild the views."""
        chance, store = random.Random(seed), self.squid.runtime.dispatch
        for _ in range(rounds):
            recent = [ref.ref for ref in {ref.ref.runnable_key: ref for ref in self.claims[-9:]}.values()]
            run = chance.choice(self.runs)
            with suppress(SquidError):
                match chance.choice(
                    ["heartbeat", "heartbeat", "release", "cancel", "approve", "reject", "quarantine", "rebuild"]
                ):
                    case "heartbeat":
                        store.heartbeat(recent, timedelta(seconds=chance.choice([0.005, 60])))
                    case "release":
                        store.release(recent[:2])
                    case "cancel" if chance.random() < 0.3:
                        self.squid.cancel(run)
                    case "rebuild" if chance.random() < 0.3:
                        rebuild_views(self.storage)
                    case "approve":
                        self.squid.approve(run, actor="somebody")
                    case "reject":
                        self.squid.reject(run, actor="somebody")
                    case "quarantine" if chance.random() < 0.1:
                        put(self.storage, with_fields(quarantined(run), occurred_at=self.storage.now()))


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_else_is_at_work_nothing_is_written_that_the_fold_would_not_follow(
    postgres: PostgresStorage, fast_counts: list[int], seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    # given many runs, and many who work at them, two and two with the same claims
    concurrent = ConcurrentWorkers(postgres)
    workers = [partial(concurrent.work, 10 * seed + i, 25) for i in range(4)]
    # when all are at it at once
    at_once([*workers, *(partial(concurrent.disturb, 10 * seed + 5 + i, 40) for i in range(2))])
    # then the journal holds no fact that is wrong, and the views agree with it
    assert sum(fast_counts) >= 10, "few of them were plain"
    assert "deadlock" not in caplog.text, "locks were taken in another order"
    completed: list[str] = []
    for run in concurrent.runs:
        unit = RunUnit.fold(entries := postgres.read_run(run))
        assert [a for a in unit.anomalies if a.entry_type != "entry_quarantined"] == []  # that way was not read
        completed += [entry.fact.claim_id for entry in entries if isinstance(entry.fact, AttemptCompleted)]
    assert_views_agree_with_the_journal(postgres)
    assert verify(postgres) == []
    # and what was told as written is written, once
    assert len(set(completed)) == len(completed)
    assert set(concurrent.done) == set(completed)
