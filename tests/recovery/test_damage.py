"""Each kind of damage by itself: recovery repairs it, counts it, and finds nothing to do the second time."""

from datetime import timedelta

import pytest

from squid_dagster.journal.contract.dispatch_store import Completed
from squid_dagster.protocol import RunIndexed
from squid_dagster.runtime.recovery.recovery import RecoveryReport
from tests.recovery import workflows as w
from tests.recovery.damage import (
    DAMAGE,
    Plant,
    completed_but_unapplied,
    failed_with_an_unplanned_retry,
    settle_half,
)
from tests.recovery.scenario import Scene, counts, ends_of, everything, work


@pytest.mark.parametrize("plant", DAMAGE, ids=lambda plant: plant.__name__)
def test_recovery_repairs_it_and_counts_it_once(scene: Scene, plant: Plant) -> None:
    plant(scene.squid, scene.clock, scene.name("run"))
    expected = DAMAGE[plant]

    first = scene.squid.recover()
    written = everything(scene.squid.journal)
    second = scene.squid.recover()

    assert counts(first) == expected.counts
    assert (first.held, first.quarantined, first.failed) == ([], [], {})
    assert second == RecoveryReport()
    assert everything(scene.squid.journal) == written
    work(scene)
    runs = ends_of(scene.squid.journal)[scene.case]["runs"]
    assert runs["run"]["status"] == expected.status
    assert all(run["listed"] == [True, True] and run["anomalies"] == [] for run in runs.values())


@pytest.mark.parametrize("plant", DAMAGE, ids=lambda plant: plant.__name__)
def test_recovery_of_one_queue_repairs_that_queue(scene: Scene, plant: Plant) -> None:
    plant(scene.squid, scene.clock, scene.name("run"))

    elsewhere = scene.squid.recover("another")
    here = scene.squid.recover(scene.case)

    unknown = {name: count for name, count in DAMAGE[plant].counts.items() if name in ("queued", "scheduled")}
    assert counts(elsewhere) == unknown  # whose queue is not on record is anybody's
    assert counts(here) == {name: count for name, count in DAMAGE[plant].counts.items() if name not in unknown}


def test_a_retry_that_was_done_before_its_failure_was_planned_for_is_applied_at_once(scene: Scene) -> None:
    failed_with_an_unplanned_retry(scene.squid, scene.clock, scene.name("run"))

    work(scene)  # no recovery: the worker that takes the retry plans for both

    assert scene.squid.inspect_run(scene.name("run")).status == "completed"
    assert counts(scene.squid.recover()) == {}


def test_two_halves_of_one_run_are_repaired_by_one_recovery(scene: Scene) -> None:
    """A retry that nobody planned for was completed, and nothing followed from that either."""
    failed_with_an_unplanned_retry(scene.squid, scene.clock, scene.name("run"))

    scene.clock.advance(timedelta(minutes=1))
    settle_half(scene.squid, "retried", Completed({"attempt": 2}))

    report = scene.squid.recover()

    assert counts(report) == {"progressed": 1, "applied": 1}
    assert counts(scene.squid.recover()) == {}
    work(scene)
    assert scene.squid.inspect_run(scene.name("run")).status == "completed"


def test_many_damaged_runs_are_repaired_page_by_page(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squid_dagster.runtime.recovery.recovery._PAGE", 3)
    for number in range(10):
        completed_but_unapplied(scene.squid, scene.clock, scene.name(f"run-{number}"))

    report = scene.squid.recover()

    assert (report.applied, report.listed) == (10, 10)
    assert counts(scene.squid.recover()) == {}


def test_a_start_is_listed_once_in_the_index_and_in_the_catalog(scene: Scene) -> None:
    for name in ("neither", "indexed-only"):
        scene.start(w.line(), name)
    at = scene.facts("indexed-only", "run_started")[0].occurred_at
    fact = RunIndexed(run_id=scene.name("indexed-only"), workflow="line", queue=scene.case, occurred_at=at)
    scene.squid.journal.append(fact.thread, [fact])

    first, second = scene.squid.recover(), scene.squid.recover()

    assert (first.listed, second.listed) == (2, 0)
    for name in ("neither", "indexed-only"):
        assert len(scene.facts(name, "run_indexed")) == len(scene.facts(name, "run_cataloged")) == 1
