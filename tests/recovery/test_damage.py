"""Each kind of damage by itself: recovery repairs it, counts it, and finds nothing to do the second time."""

from datetime import timedelta

import pytest

from squid_dagster import RecoveryReport
from squid_dagster.journal.contract.dispatch_store import Completed
from squid_dagster.protocol import RunIndexed
from tests.recovery import workflows as w
from tests.recovery.damage import (
    DAMAGE,
    Plant,
    completed_but_unapplied,
    failed_with_an_unplanned_retry,
    settle_half,
)
from tests.recovery.scenario import Client, counts, ends_of, everything, work


@pytest.mark.parametrize("plant", DAMAGE, ids=lambda plant: plant.__name__)
def test_recovery_repairs_it_and_counts_it_once(client: Client, plant: Plant) -> None:
    plant(client.squid, client.clock, client.name("run"))
    expected = DAMAGE[plant]

    first = client.squid.recover()
    written = everything(client.squid.journal)
    second = client.squid.recover()

    assert counts(first) == expected.counts
    assert (first.held, first.quarantined, first.failed) == ([], [], {})
    assert second == RecoveryReport()
    assert everything(client.squid.journal) == written
    work(client)
    runs = ends_of(client.squid.journal)[client.case]["runs"]
    assert runs["run"]["status"] == expected.status
    assert all(run["listed"] == [True, True] and run["anomalies"] == [] for run in runs.values())


@pytest.mark.parametrize("plant", DAMAGE, ids=lambda plant: plant.__name__)
def test_recovery_of_one_queue_repairs_that_queue(client: Client, plant: Plant) -> None:
    plant(client.squid, client.clock, client.name("run"))

    elsewhere = client.squid.recover("another")
    here = client.squid.recover(client.case)

    unknown = {name: count for name, count in DAMAGE[plant].counts.items() if name in ("queued", "scheduled")}
    assert counts(elsewhere) == unknown  # a run without a queue on record is repaired by every queue's recovery
    assert counts(here) == {name: count for name, count in DAMAGE[plant].counts.items() if name not in unknown}


def test_a_retry_that_was_done_before_its_failure_was_planned_for_is_applied_at_once(client: Client) -> None:
    failed_with_an_unplanned_retry(client.squid, client.clock, client.name("run"))

    work(client)  # no recovery: the worker that takes the retry plans for both

    assert client.squid.inspect_run(client.name("run")).status == "completed"
    assert counts(client.squid.recover()) == {}


def test_two_halves_of_one_run_are_repaired_by_one_recovery(client: Client) -> None:
    # A retry that is not planned was completed, and nothing followed from that either.
    failed_with_an_unplanned_retry(client.squid, client.clock, client.name("run"))

    client.clock.advance(timedelta(minutes=1))
    settle_half(client.squid, "retried", Completed({"attempt": 2}))

    report = client.squid.recover()

    assert counts(report) == {"progressed": 1, "applied": 1}
    assert counts(client.squid.recover()) == {}
    work(client)
    assert client.squid.inspect_run(client.name("run")).status == "completed"


def test_many_damaged_runs_are_repaired_page_by_page(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squid_dagster.runtime.recovery.recovery._PAGE", 3)
    for number in range(10):
        completed_but_unapplied(client.squid, client.clock, client.name(f"run-{number}"))

    report = client.squid.recover()

    assert (report.applied, report.listed) == (10, 10)
    assert counts(client.squid.recover()) == {}


def test_a_start_is_listed_once_in_the_index_and_in_the_catalog(client: Client) -> None:
    for name in ("neither", "indexed-only"):
        client.start(w.line(), name)
    at = client.facts("indexed-only", "run_started")[0].occurred_at
    fact = RunIndexed(run_id=client.name("indexed-only"), workflow="line", queue=client.case, occurred_at=at)
    client.squid.journal.append(fact.thread, [fact])

    first, second = client.squid.recover(), client.squid.recover()

    assert (first.listed, second.listed) == (2, 0)
    for name in ("neither", "indexed-only"):
        assert len(client.facts(name, "run_indexed")) == len(client.facts(name, "run_cataloged")) == 1
