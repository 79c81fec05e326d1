"""Runs that another session has locked: they delay neither other runs nor their leases."""

import threading
import time
from datetime import timedelta

import pytest

from squid_dagster import JournalLeases, work_one_lease
from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage, verify
from squid_dagster.workflow import StepContext, Workflow
from tests.journal.access import raw
from tests.runtime.outages.two_steps import OFTEN, Steps, warnings
from tests.runtime.workers import NEVER, all_done, lease_end, queue_facts, running_worker, status_of, until


def test_a_locked_run_keeps_none_of_twelve_others_waiting(
    postgres: PostgresStorage, steps: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    # given a worker with twelve results, and another session that holds the row of one run
    squid = Squid(postgres, steps.workflow)
    runs = [receipt.run_id for receipt in squid.start_many("two", [{"n": n} for n in range(12)])]
    others = runs[:3] + runs[4:]
    with (
        raw(postgres, autocommit=False) as connection,
        running_worker(squid, concurrency=12, lease=NEVER, housekeeping=OFTEN) as working,
    ):
        until(lambda: len(steps.calls) == 12, "all steps under way")
        connection.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (runs[3],))
        for gate in steps.releases:
            gate.set()
        # then all others come to their end while the lock is held
        until(all_done(postgres, others), "the others")
        until(lambda: working.worker.waiting, "the worker to wait for one")
        assert status_of(postgres, runs[3]) == "running"
        assert (working.worker.report.completed, working.worker.held) == (22, 1)
        # and the locked one, once, when it goes
        connection.rollback()
        until(all_done(postgres, runs), "all runs")
        until(lambda: not working.worker.waiting, "the worker to go on")
        report = working.stop()
    assert (len(warnings(caplog, "must wait")), len(warnings(caplog, "goes on after"))) == (1, 1)
    assert steps.calls == {f"{run}:{step}": 1 for run in runs for step in ("first", "second")}
    assert (report.completed, report.refused) == (24, 0)
    assert len(queue_facts(postgres, "attempt_completed")) == 24
    assert verify(postgres) == []


def test_the_leases_of_others_are_extended_beside_a_locked_run(postgres: PostgresStorage, steps: Steps) -> None:
    squid = Squid(postgres, steps.workflow)
    locked, other = [receipt.run_id for receipt in squid.start_many("two", [{"n": n} for n in range(2)])]
    every = timedelta(milliseconds=200)
    with (
        raw(postgres, autocommit=False) as connection,
        running_worker(squid, concurrency=2, lease=timedelta(minutes=1), heartbeat=every) as working,
    ):
        until(lambda: len(steps.calls) == 2, "all steps under way")
        connection.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (locked,))
        for _ in range(3):
            before = lease_end(postgres, other)
            until(lambda before=before: lease_end(postgres, other) > before, "a heartbeat of the other")  # type: ignore[misc]
        held = lease_end(postgres, locked)
        connection.rollback()
        until(lambda: lease_end(postgres, locked) > held, "a heartbeat of the locked one")
        for gate in steps.releases:
            gate.set()
        until(all_done(postgres, [locked, other]), "both runs")
        report = working.stop()
    assert (report.completed, report.refused) == (4, 0)


def test_a_worker_that_stops_keeps_trying_to_give_back_what_is_locked_for_a_moment(
    postgres: PostgresStorage, steps: Steps
) -> None:
    squid = Squid(postgres, steps.workflow)
    run_id = squid.start("two").run_id
    with (
        raw(postgres, autocommit=False) as connection,
        running_worker(squid, lease=NEVER, grace=timedelta(0)) as working,
    ):
        until(lambda: steps.calls, "the step")
        connection.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (run_id,))
        working.worker.stop()
        until(lambda: working.worker.held == 0, "that it gives back")
        time.sleep(1)
        connection.rollback()
        report = working.end()
    assert (report.released, report.refused) == (1, 0)
    assert len(queue_facts(postgres, "attempt_released")) == 1


@pytest.mark.parametrize("kind", ["execute_next", "a lease backend"])
def test_one_step_at_a_time_keeps_its_result_while_its_run_is_locked(
    postgres: PostgresStorage, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    workflow, calls = Workflow("one"), list[int]()
    with raw(postgres, autocommit=False) as connection:

        @workflow.step
        def step(ctx: StepContext) -> None:
            calls.append(1)
            connection.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (ctx.run_id,))
            threading.Timer(2, connection.rollback).start()

        squid = Squid(postgres, workflow)
        run_id = squid.start("one").run_id
        if kind == "execute_next":
            assert squid.execute_next() is not None
        else:
            report = work_one_lease(squid.runtime, JournalLeases(squid.runtime), "default", "me")
            assert report is not None
            assert report.completed
    assert (status_of(postgres, run_id), len(calls)) == ("completed", 1)
    assert warnings(caplog, "dropped") == []
