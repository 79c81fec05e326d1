"""How a drain run ends: idle, too old, for newer code, terminated, killed or forgotten; what is due is done once."""

import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest

from squid_dagster.api import Squid
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.plugin import SquidResource
from squid_dagster.plugin.dispatch.code_version import NO_LOCATION, code_version, report_version
from squid_dagster.plugin.dispatch.job import DRAIN_OP
from tests.plugin.dispatch import drains
from tests.plugin.dispatch.drains import WORKFLOWS, drain, messages, metadata
from tests.plugin.drain_workflows import wait_until
from tests.processes import Child, children
from tests.runtime.runs import facts

MakeSquid = Callable[..., Squid]


# --- how it ends ----------------------------------------------------------------------------------------------------


def in_background(work: Callable[[], Any]) -> threading.Thread:
    """Start a thread that works while this one runs a job."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_it_lingers_and_starts_work_that_comes_meanwhile(
    resource: SquidResource, instance: dg.DagsterInstance, make_squid: MakeSquid
) -> None:
    squid = make_squid(WORKFLOWS)
    done: list[str] = []

    def later() -> None:
        wait_until(lambda: squid.runtime.liveness.workers(timedelta(minutes=1)))
        for number in range(3):  # each comes when the one before is done
            run_id = squid.start("quick", {"number": number}).run_id
            wait_until(lambda run_id=run_id: squid.inspect_run(run_id).terminal)
            done.append(run_id)

    helper = in_background(later)
    result = drain(resource, instance, linger_seconds=2)
    helper.join()
    assert len(done) == 3
    assert metadata(result)["squid/completed"] == 3
    assert squid.runtime.liveness.workers(timedelta(minutes=1)) == []


def test_its_presence_tells_the_dagster_run_and_the_code(
    resource: SquidResource, instance: dg.DagsterInstance, make_squid: MakeSquid
) -> None:
    squid = make_squid(WORKFLOWS)
    seen: list[Any] = []

    def look() -> None:
        wait_until(lambda: squid.runtime.liveness.workers(timedelta(minutes=1)))
        seen.extend(squid.runtime.liveness.workers(timedelta(minutes=1)))

    helper = in_background(look)
    result = drain(resource, instance, concurrency=7)
    helper.join()
    row = seen[0]
    assert (row.worker_id, row.kind, row.queues) == (f"dagster:{result.run_id}", "dagster_run", ("default",))
    assert (row.capacity, frozenset(row.definitions)) == (7, squid.runtime.registry.keys)
    version = code_version(workflow.freeze() for workflow in WORKFLOWS)
    assert row.details == {"dagster_run_id": result.run_id, "location": NO_LOCATION, "code_version": version}


def test_it_ends_at_its_maximum_age_and_lets_steps_finish(
    resource: SquidResource, instance: dg.DagsterInstance, make_squid: MakeSquid, tmp_path: Path
) -> None:
    squid = make_squid(WORKFLOWS)
    gate, marks = tmp_path / "gate", tmp_path / "marks"
    run_id = squid.start("holding", {"marks": str(marks), "gate": str(gate)}).run_id

    def open_when_too_old() -> None:
        # a worker that claims nothing more says that it has no room
        wait_until(lambda: [r.capacity for r in squid.runtime.liveness.workers(timedelta(minutes=1))] == [0])
        gate.touch()

    helper = in_background(open_when_too_old)
    result = drain(resource, instance, max_age_seconds=0.5, linger_seconds=60)
    helper.join()
    assert metadata(result)["squid/ended_because"] == "it is 0.5 s old"
    assert squid.inspect_run(run_id).status == "completed"
    assert marks.read_text() == "1\n"


def test_it_stops_for_newer_code_of_its_location(
    resource: SquidResource, instance: dg.DagsterInstance, make_squid: MakeSquid
) -> None:
    squid = make_squid(WORKFLOWS)
    # given code that was there before the run began: that is no news, though it is not the run's
    report_version(squid, NO_LOCATION, "before")

    def deploy() -> None:
        wait_until(lambda: [r for r in squid.runtime.liveness.workers(timedelta(minutes=1)) if r.queues])
        report_version(squid, "another location", "newer")
        report_version(squid, NO_LOCATION, "newer")

    helper = in_background(deploy)
    result = drain(resource, instance, linger_seconds=60)
    helper.join()
    assert metadata(result)["squid/ended_because"] == "its location has newer code"


def test_it_works_on_when_dagster_s_storage_is_deleted(
    resource: SquidResource, make_squid: MakeSquid, tmp_path: Path
) -> None:
    squid, home = make_squid(WORKFLOWS), tmp_path / "dagster"
    home.mkdir()
    seen: list[str] = []

    def delete() -> None:
        wait_until(lambda: squid.runtime.liveness.workers(timedelta(minutes=1)))
        shutil.rmtree(home, ignore_errors=True)
        runs = [squid.start(name).run_id for name in ("talking", "failing", "talking")]
        wait_until(lambda: all(squid.inspect_run(run).terminal for run in runs))
        seen.extend(squid.inspect_run(run).status for run in runs)

    helper = in_background(delete)
    with suppress(Exception), dg.DagsterInstance.local_temp(str(home)) as instance:
        drain(resource, instance, linger_seconds=2)  # how Dagster ends a run that it has forgotten is its own business
    helper.join()
    assert seen == ["completed", "failed", "completed"]
    assert squid.runtime.liveness.workers(timedelta(minutes=1)) == []


# --- processes ------------------------------------------------------------------------------------------------------


def test_the_multiprocess_executor_runs_it_and_print_is_in_the_compute_logs(
    postgres: PostgresStorage,
    resource: SquidResource,
    make_squid: MakeSquid,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv(drains.SCHEMA_VARIABLE, postgres.schema)
    squid = make_squid(WORKFLOWS)
    run_id = squid.start("talking").run_id
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        config = {"ops": {DRAIN_OP: {"config": {"linger_seconds": 0.3}}}}
        with dg.execute_job(dg.reconstructable(drains.in_processes), instance=instance, run_config=config) as result:
            assert result.success
            said = messages(instance, result.run_id)
        printed = "".join(path.read_text() for path in tmp_path.rglob("*.out"))
    assert squid.inspect_run(run_id).status == "completed"
    assert (logging.INFO, f"[say, attempt 1, run {run_id}] info hello") in said
    assert "printed hello" in printed
    (claim,) = facts(squid, run_id, "attempt_claimed")
    assert claim.owner_id == f"dagster:{result.run_id}"


@dataclass
class Held:
    """A run whose step runs, in a drain run that is a process of its own, until a gate is there."""

    squid: Squid
    run_id: str
    gate: Path
    child: Child
    dagster_run_id: str
    home: Path


@pytest.fixture
def hold(resource: SquidResource, make_squid: MakeSquid, tmp_path: Path) -> Iterator[Callable[[float], Held]]:
    """Starts a run and a process that holds its step, with a lease of so many seconds."""
    with children() as started:

        def hold(lease_seconds: float) -> Held:
            squid = make_squid(WORKFLOWS)
            marks, gate, home, run_id = tmp_path / "marks", tmp_path / "gate", tmp_path / "dagster", str(uuid4())
            held = squid.start("holding", {"marks": str(marks), "gate": str(gate)}).run_id
            home.mkdir()
            schema = resource.schema_name or ""
            child = Child("tests.plugin.dispatch.drains", str(home), run_id, schema, str(lease_seconds))
            started.append(child)
            wait_until(lambda: marks.exists() or child.process.poll() is not None)
            assert marks.exists(), child.errors()
            return Held(squid, held, gate, child, run_id, home)

        yield hold


def test_a_terminated_run_gives_its_claims_back_and_ends_canceled(
    hold: Callable[[float], Held], resource: SquidResource, instance: dg.DagsterInstance
) -> None:
    held = hold(600)
    # when it is terminated as the UI does it
    with dg.DagsterInstance.local_temp(str(held.home)) as other:
        run = other.get_run_by_id(held.dagster_run_id)
        assert run is not None
        other.report_run_canceling(run)
        os.kill(held.child.process.pid, signal.SIGINT)
        assert held.child.end() == 0, held.child.errors()
        ended = other.get_run_by_id(held.dagster_run_id)
        assert ended is not None
        assert ended.status is dg.DagsterRunStatus.CANCELED
    # then the attempt is released by a fact, long before its lease is over, and no worker is alive
    squid = held.squid
    (released,) = facts(squid, held.run_id, "attempt_released")
    (claim,) = facts(squid, held.run_id, "attempt_claimed")
    assert released.claim_id == claim.claim_id
    assert claim.owner_id == f"dagster:{held.dagster_run_id}"
    assert squid.runtime.liveness.workers(timedelta(minutes=1)) == []
    held.gate.touch()
    assert drain(resource, instance).success
    assert squid.inspect_run(held.run_id).status == "completed"


def test_after_a_killed_run_worker_another_takes_over_when_the_lease_is_over(
    hold: Callable[[float], Held], resource: SquidResource, instance: dg.DagsterInstance
) -> None:
    held = hold(1)
    held.child.kill()
    held.gate.touch()
    assert drain(resource, instance, linger_seconds=2).success
    assert held.squid.inspect_run(held.run_id).status == "completed"
    claims = facts(held.squid, held.run_id, "attempt_claimed")
    assert [claim.fencing_token for claim in claims] == [1, 2]
    assert len(facts(held.squid, held.run_id, "attempt_completed")) == 1
