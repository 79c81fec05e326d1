"""Which workers are alive, by the storage's clock: one suite for liveness in memory and on Postgres."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from squid_dagster.journal import (
    MemoryLiveness,
    MemoryStorage,
    PostgresLiveness,
    PostgresStorage,
    WorkerLiveness,
    WorkerRow,
    per_storage,
    rebuild_views,
    verify,
)
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.protocol.errors import InvalidArgument, InvalidThread
from tests.facts import T0, started, t
from tests.journal.access import at_once, put, raw

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
WORKER = WorkerRow(worker_id="w1", queues=("default", "slow"), host="box", pid=42)


@dataclass
class LivenessFixture:
    """Worker liveness, the clock of its storage, a second reader of the same rows, and a count of all rows."""

    liveness: WorkerLiveness
    clock: VirtualClock
    another: Callable[[], WorkerLiveness]
    count_rows: Callable[[], int]

    def ids(self, within: timedelta = MINUTE) -> list[str]:
        """Return the ids of workers that are alive."""
        return [worker.worker_id for worker in self.liveness.workers(within)]

    def wait(self, seconds: float) -> None:
        """Advance the clock."""
        self.clock.advance(timedelta(seconds=seconds))


@pytest.fixture(params=["memory", "postgres"])
def fixture(request: pytest.FixtureRequest, clock: VirtualClock) -> LivenessFixture:
    """No worker has reported yet."""
    if request.param == "memory":
        memory = MemoryStorage(clock)
        liveness = MemoryLiveness(memory)
        return LivenessFixture(liveness, clock, lambda: MemoryLiveness(memory), lambda: len(liveness._table.rows))
    postgres: PostgresStorage = request.getfixturevalue("postgres_virtual")
    return LivenessFixture(
        PostgresLiveness(postgres),
        clock,
        lambda: PostgresLiveness(postgres),
        lambda: len(postgres.rows("SELECT worker_id FROM {schema}.presence")),
    )


def test_whoever_is_announced_is_seen_by_all(fixture: LivenessFixture) -> None:
    full = replace(
        WORKER,
        kind="dagster_run",
        definitions=("billing/f1",),
        capacity=8,
        running=3,
        details={"version": "1", "n": [1]},
    )
    fixture.liveness.report(full)
    fixture.liveness.report(replace(WORKER, worker_id="w0"))
    seen = fixture.another().workers(MINUTE)
    assert seen == [
        replace(WORKER, worker_id="w0", started_at=T0, seen_at=T0),
        replace(full, started_at=T0, seen_at=T0),
    ]


def test_nobody_is_there_at_first(fixture: LivenessFixture) -> None:
    assert fixture.liveness.workers(DAY) == []


def test_an_announcement_replaces_the_one_before_and_the_start_stays(fixture: LivenessFixture) -> None:
    fixture.liveness.report(WORKER)
    fixture.wait(30)
    fixture.liveness.report(replace(WORKER, queues=("slow",), definitions=(), running=1, details={"now": "other"}))
    (seen,) = fixture.liveness.workers(MINUTE)
    assert (seen.queues, seen.definitions, seen.running, seen.details) == (("slow",), (), 1, {"now": "other"})
    assert (seen.started_at, seen.seen_at) == (T0, t(30))


def test_the_worker_s_own_idea_of_the_time_does_not_matter(fixture: LivenessFixture) -> None:
    fixture.liveness.report(replace(WORKER, started_at=t(-9999), seen_at=t(9999)))
    (seen,) = fixture.liveness.workers(MINUTE)
    assert (seen.started_at, seen.seen_at) == (T0, T0)
    fixture.wait(61)
    assert fixture.ids() == []


def test_whoever_says_nothing_for_a_while_is_not_alive_but_not_forgotten_yet(fixture: LivenessFixture) -> None:
    fixture.liveness.report(WORKER)
    fixture.wait(30)
    fixture.liveness.report(replace(WORKER, worker_id="w2"))
    fixture.wait(30)
    # at the very instant counts as too long ago
    assert fixture.ids() == ["w2"]
    assert fixture.ids(timedelta(seconds=61)) == ["w1", "w2"]
    fixture.liveness.report(WORKER)
    assert fixture.ids() == ["w1", "w2"]
    assert fixture.liveness.workers(MINUTE)[0].started_at == T0


def test_whoever_withdraws_is_gone_and_starts_anew(fixture: LivenessFixture) -> None:
    fixture.liveness.report(WORKER)
    fixture.liveness.report(replace(WORKER, worker_id="w2"))
    fixture.liveness.withdraw("w1")
    fixture.liveness.withdraw("w1")
    fixture.liveness.withdraw("never there")
    assert fixture.ids() == ["w2"]
    fixture.wait(10)
    fixture.liveness.report(WORKER)
    assert fixture.liveness.workers(MINUTE)[0].started_at == t(10)


def test_rows_older_than_a_day_are_swept_by_the_next_announcement(fixture: LivenessFixture) -> None:
    for n in range(3):
        fixture.liveness.report(replace(WORKER, worker_id=f"old{n}"))
    fixture.wait(3600)
    fixture.liveness.report(replace(WORKER, worker_id="younger"))
    fixture.wait(DAY.total_seconds() - 3600)
    assert fixture.count_rows() == 4
    fixture.liveness.report(replace(WORKER, worker_id="new"))
    assert fixture.ids(DAY) == ["new", "younger"]
    assert fixture.count_rows() == 2


def test_secrets_are_not_kept(fixture: LivenessFixture) -> None:
    details: dict[str, Any] = {"api_key": "s3cret", "nested": [{"password": "s3cret"}], "kept": "yes"}
    fixture.liveness.report(replace(WORKER, details=details))
    (seen,) = fixture.liveness.workers(MINUTE)
    assert "s3cret" not in repr(seen)
    assert seen.details["kept"] == "yes"
    assert details["api_key"] == "s3cret"


def test_what_the_caller_changes_later_changes_nothing(fixture: LivenessFixture) -> None:
    details: dict[str, Any] = {"steps": ["a"]}
    fixture.liveness.report(replace(WORKER, details=details))
    details["steps"].append("b")
    assert fixture.liveness.workers(MINUTE)[0].details == {"steps": ["a"]}


@pytest.mark.parametrize(
    "fields",
    [
        {"worker_id": ""},
        {"worker_id": "x" * 201},
        {"worker_id": "a\0b"},
        {"kind": ""},
        {"host": 5},
        {"queues": "default"},
        {"queues": None},
        {"queues": ("",)},
        {"queues": ("a b",)},
        {"definitions": "billing/f1"},
        {"definitions": ("",)},
        {"pid": -1},
        {"pid": 2**31},
        {"capacity": True},
        {"running": 1.5},
        {"details": ["not", "an", "object"]},
        {"details": {"not": object()}},
        {"details": {"not": float("nan")}},
        {"details": {"not": "\ud800"}},
        {"details": {"not": "\0"}},
        {"details": {"much": "x" * 20_000}},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_a_row_that_makes_no_sense_is_refused_and_nothing_is_changed(
    fixture: LivenessFixture, fields: dict[str, Any]
) -> None:
    with pytest.raises((InvalidArgument, InvalidThread)):
        fixture.liveness.report(replace(WORKER, **fields))
    assert fixture.liveness.workers(DAY) == []


@pytest.mark.parametrize("within", [timedelta(0), timedelta(seconds=-1), timedelta(days=2), 60, None])
def test_a_time_that_makes_no_sense_is_refused(fixture: LivenessFixture, within: Any) -> None:
    with pytest.raises(InvalidArgument, match="alive_within"):
        fixture.liveness.workers(within)


def test_other_bad_arguments_are_refused(fixture: LivenessFixture) -> None:
    with pytest.raises(InvalidArgument):
        fixture.liveness.withdraw("")
    with pytest.raises(InvalidArgument):
        fixture.liveness.report({"worker_id": "w1"})  # type: ignore[arg-type]


def test_many_may_announce_and_sweep_at_once(fixture: LivenessFixture) -> None:
    for n in range(20):
        fixture.liveness.report(replace(WORKER, worker_id=f"old{n}"))
    fixture.wait(DAY.total_seconds())
    at_once([partial(fixture.another().report, replace(WORKER, worker_id=f"w{n % 4}")) for n in range(8)])
    fixture.liveness.report(WORKER)
    assert fixture.ids(DAY) == ["w0", "w1", "w2", "w3"]
    assert fixture.count_rows() == 4


# --- memory ---------------------------------------------------------------------------------------------------------


def test_two_storages_in_memory_know_nothing_of_each_other_and_leave_nothing_behind() -> None:
    first, second = MemoryStorage(), MemoryStorage()
    MemoryLiveness(first).report(WORKER)
    assert MemoryLiveness(second).workers(MINUTE) == []
    before = len(per_storage._objects)
    del first, second
    gc.collect()
    assert len(per_storage._objects) <= before - 2


# --- Postgres -------------------------------------------------------------------------------------------------------


def test_presence_goes_by_the_clock_of_the_database(postgres: PostgresStorage) -> None:
    liveness = PostgresLiveness(postgres)
    before = postgres.now()
    liveness.report(WORKER)
    (seen,) = liveness.workers(MINUTE)
    assert seen.started_at == seen.seen_at
    assert seen.seen_at is not None
    assert before <= seen.seen_at <= postgres.now()
    with raw(postgres) as connection:
        connection.execute("UPDATE presence SET seen_at = seen_at - interval '2 minutes'")
    assert liveness.workers(MINUTE) == []


def test_presence_is_no_view_of_facts_and_survives_a_rebuild(postgres: PostgresStorage) -> None:
    liveness = PostgresLiveness(postgres)
    put(postgres, started())
    liveness.report(WORKER)
    before = liveness.workers(MINUTE)
    rebuild_views(postgres)
    assert liveness.workers(MINUTE) == before
    # and no worker misses a row
    with raw(postgres) as connection:
        connection.execute("TRUNCATE presence")
    assert liveness.workers(MINUTE) == []
    assert verify(postgres) == []
