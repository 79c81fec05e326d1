"""The generator: through the real storage path, in the proportions that were asked for, the same for the same seed."""

from dataclasses import replace

import pytest

from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.verification import verify
from squid_dagster.protocol import RunUnit
from squid_dagster.protocol.entries import by_run
from squid_dagster.protocol.errors import InvalidArgument
from tests.spark.journal_generator import Generated, Plan, generate
from tests.spark.synthetic_runs import EventRates

NOTHING = EventRates(0, 0, 0, 0, 0, 0)
EVERYTHING = EventRates(1, 1, 1, 1, 1, 0)


def units(storage: MemoryStorage | PostgresStorage) -> dict[str, RunUnit]:
    """Return all folded runs."""
    groups = by_run(storage.read_between(0, storage.cut()))
    return {run_id: RunUnit.fold(entries) for run_id, entries in groups.items() if run_id is not None}


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(InvalidArgument, match=f"retries is {share}: give a share from 0 to 1"):
        EventRates(retries=share)


@pytest.mark.parametrize(("name", "value"), [("facts", 0), ("steps", 0), ("runs_per_commit", 0), ("first_run", -1)])
def test_a_number_that_makes_no_sense_is_refused(name: str, value: int) -> None:
    with pytest.raises(InvalidArgument, match=f"{name} is {value}: use"):
        Plan(**{"facts": 1, name: value})  # type: ignore[arg-type]  # names are given as text


def test_what_is_counted_is_what_the_fold_finds(postgres: PostgresStorage) -> None:
    mix = EventRates(retries=0.3, expiries=0.2, approvals=0.3, children=0.2, anomalies=0.2, unfinished=0.1)

    done = generate(postgres, Plan(1_500, seed=7, mix=mix, runs_per_commit=25))

    folded = units(postgres)
    attempts = [attempt for unit in folded.values() for attempt in unit.dispatch.attempts.values()]
    assert done.facts == len(postgres.read_between(0, postgres.cut())) >= 1_500
    assert done.runs == len(folded)
    assert done.retries == sum(attempt.attempt_number == 2 for attempt in attempts)
    assert done.expiries == sum(attempt.deliveries == 2 for attempt in attempts)
    assert done.approvals == sum(len(unit.run.resolutions) for unit in folded.values())
    assert done.children == sum(len(unit.run.children) for unit in folded.values())
    assert done.anomalies == sum(len(unit.anomalies) for unit in folded.values())
    assert done.unfinished == sum(not unit.run.terminal for unit in folded.values())
    assert min(done.retries, done.expiries, done.approvals, done.children, done.anomalies, done.unfinished) > 0
    assert verify(postgres) == []


def test_nothing_happens_that_was_not_asked_for() -> None:
    storage = MemoryStorage()

    done = generate(storage, Plan(200, mix=NOTHING, runs_per_commit=5))

    assert done == Generated(done.facts, done.runs, done.next_run)
    assert {unit.run.status for unit in units(storage).values()} == {"completed"}


def test_everything_at_once_gives_one_anomaly_a_run_and_no_other() -> None:
    storage = MemoryStorage()

    done = generate(storage, Plan(500, mix=EVERYTHING, steps=3, runs_per_commit=5))

    parents = {run_id: unit for run_id, unit in units(storage).items() if not run_id.endswith("-child")}
    assert done.anomalies == len(parents)
    assert {len(unit.anomalies) for unit in parents.values()} == {1}


def test_the_same_seed_writes_the_same_facts_and_nothing_twice() -> None:
    first, second = MemoryStorage(), MemoryStorage()
    plan = Plan(300, seed=3, runs_per_commit=5)

    done = generate(first, plan)
    generate(second, plan)
    assert first.read_between(0, first.cut()) == second.read_between(0, second.cut())

    longer = generate(second, replace(plan, facts=done.facts + 1))
    resumed = generate(first, replace(plan, facts=1, first_run=done.next_run))
    assert longer.facts == done.facts + resumed.facts
    assert first.read_between(0, first.cut()) == second.read_between(0, second.cut())
