"""Errors of the database that are no lost connection: a worker outlives them, keeps its results, and says so once."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg import sql
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal import Claim, PostgresDispatchStore, PostgresStorage, verify
from squid_dagster.protocol.errors import ExpiredClaim, StorageUnavailable
from squid_dagster.runtime.execution import transactional_steps
from squid_dagster.runtime.leases.lease_backend import JournalLeases
from squid_dagster.runtime.leases.lease_work import work_one_lease
from squid_dagster.runtime.worker.outage import Outage
from squid_dagster.workflow import Cron, StepContext, Workflow
from tests.faults import Faults
from tests.journal.access import raw
from tests.runtime.workers import NEVER, PATIENCE, all_done, at_work, lease_end, queue_facts, status_of, until

SURVIVED = ("25006", "40001", "53100", "57014", "XX000")
"""One for each thing that is done about them; `tests/journal/connection/test_failures.py` has all of them."""


OFTEN = timedelta(milliseconds=100)


class Item(BaseModel):
    """A number."""

    n: int = 0


class Steps:
    """A workflow of two steps, of which the first waits; counts calls."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.gates: list[threading.Event] = [threading.Event() for _ in range(100)]
        self.workflow = Workflow("two", payload=Item)

        @self.workflow.step
        def first(ctx: StepContext, n: int) -> int:
            self.calls[f"{ctx.run_id}:first"] += 1
            self.gates[n].wait(PATIENCE)
            return n

        @self.workflow.step(after=first)
        def second(ctx: StepContext, first: int) -> int:
            self.calls[f"{ctx.run_id}:second"] += 1
            return first


@pytest.fixture
def steps() -> Steps:
    """Steps that wait."""
    return Steps()


@pytest.fixture
def faults(postgres: PostgresStorage) -> Iterator[Faults]:
    """Faults on order."""
    made = Faults(postgres)
    yield made
    made.close()


def warnings(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """Warnings with a text in them."""
    return [each.getMessage() for each in caplog.records if text in each.getMessage()]


def test_a_worker_outlives_every_error_that_is_worth_waiting_for_and_keeps_its_results(
    postgres: PostgresStorage, steps: Steps, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    # given a worker with a step under way for each of the errors
    squid = Squid(postgres, steps.workflow)
    runs = [each.run_id for each in squid.start_many("two", [{"n": n} for n in range(len(SURVIVED))])]
    with at_work(squid, concurrency=len(SURVIVED), lease=NEVER, housekeeping=OFTEN) as working:
        until(lambda: len(steps.calls) == len(SURVIVED), "all steps under way")
        for n, code in enumerate(SURVIVED):
            # when the database raises it from every write, and a step comes to its end
            caplog.clear()
            with faults.raising(code):
                steps.gates[n].set()
                until(lambda: working.worker.waiting, f"the worker to wait for {code}")
                until(lambda: faults.raised() > 10, "several tries")
            # then its result is written as soon as the database lets it
            until(all_done(postgres, [runs[n]]), f"the run after {code}")
            until(lambda: not working.worker.waiting, "the worker to go on")
            # and what was waited for was said once, and that it is over
            assert len(warnings(caplog, "must wait")) == 1, (code, caplog.messages)
            assert len(warnings(caplog, "goes on after")) == 1
        assert not working.ended
        report = working.stop()
    assert steps.calls == {f"{run}:{step}": 1 for run in runs for step in ("first", "second")}
    assert (report.completed, report.refused) == (2 * len(runs), 0)
    assert len(queue_facts(postgres, "attempt_completed")) == 2 * len(runs)
    assert verify(postgres) == []


def test_a_locked_run_keeps_none_of_twelve_others_waiting(
    postgres: PostgresStorage, steps: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    # given a worker with twelve results, and another session that holds the row of one run
    squid = Squid(postgres, steps.workflow)
    runs = [each.run_id for each in squid.start_many("two", [{"n": n} for n in range(12)])]
    others = runs[:3] + runs[4:]
    with (
        raw(postgres, autocommit=False) as connection,
        at_work(squid, concurrency=12, lease=NEVER, housekeeping=OFTEN) as working,
    ):
        until(lambda: len(steps.calls) == 12, "all steps under way")
        connection.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (runs[3],))
        for gate in steps.gates:
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
    locked, other = [each.run_id for each in squid.start_many("two", [{"n": n} for n in range(2)])]
    every = timedelta(milliseconds=200)
    with (
        raw(postgres, autocommit=False) as connection,
        at_work(squid, concurrency=2, lease=timedelta(minutes=1), heartbeat=every) as working,
    ):
        until(lambda: len(steps.calls) == 2, "all steps under way")
        connection.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (locked,))
        for _ in range(3):
            before = lease_end(postgres, other)
            until(lambda before=before: lease_end(postgres, other) > before, "a heartbeat of the other")  # type: ignore[misc]
        held = lease_end(postgres, locked)
        connection.rollback()
        until(lambda: lease_end(postgres, locked) > held, "a heartbeat of the locked one")
        for gate in steps.gates:
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
        at_work(squid, lease=NEVER, grace=timedelta(0)) as working,
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


def test_cancelled_statements_end_no_worker_and_double_nothing(postgres: PostgresStorage, steps: Steps) -> None:
    for gate in steps.gates:
        gate.set()
    squid = Squid(postgres, steps.workflow)
    runs = [each.run_id for each in squid.start_many("two", [{"n": n} for n in range(100)])]
    cancel = """SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
        WHERE application_name = 'squid_dagster' AND state <> 'idle'"""
    cancelled, done = 0, threading.Event()

    def wait() -> None:
        until(all_done(postgres, runs), "all runs under cancelled statements")
        done.set()

    with (
        raw(postgres) as connection,
        at_work(squid, concurrency=10, housekeeping=OFTEN) as one,
        at_work(squid, concurrency=10) as other,
    ):
        waiting = threading.Thread(target=wait)
        waiting.start()
        while not done.wait(0.001) and waiting.is_alive():
            row = connection.execute(cancel).fetchone()
            cancelled += row[0] if row is not None else 0
        waiting.join()
        assert done.is_set()
        assert (one.ended, other.ended) == (False, False)
    assert cancelled > 0
    assert set(steps.calls.values()) == {1}
    assert len(steps.calls) == 200
    assert len(queue_facts(postgres, "attempt_completed")) == 200
    assert verify(postgres) == []


@pytest.mark.parametrize("code", ["25006", "40001", "53100", "57P01"])
def test_a_transactional_step_that_the_database_rolled_back_is_done_again_and_did_not_fail(
    postgres: PostgresStorage, faults: Faults, code: str
) -> None:
    # given a step that writes, and a database that takes neither its completion nor, the second time, its own write
    workflow, calls = Workflow("paid"), list[str]()
    with raw(postgres) as connection:
        connection.execute("CREATE TABLE payments (run_id text)")

    @workflow.step(transactional=True)
    def pay(connection: psycopg.Connection[Any], ctx: StepContext) -> None:
        calls.append(ctx.run_id)
        table = sql.Identifier(postgres.schema, "payments")
        connection.execute(sql.SQL("INSERT INTO {} VALUES (%s)").format(table), (ctx.run_id,))
        if len(calls) == 1:
            planted.__enter__()
        if len(calls) == 2:
            connection.execute(sql.SQL("DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = {}; END $$").format(code))

    planted = faults.raising(code, times=3)
    squid = Squid(postgres, workflow)
    run_id = squid.start("paid").run_id
    # when a worker runs it
    with at_work(squid):
        until(all_done(postgres, [run_id]), "the run")
    planted.__exit__(None, None, None)
    # then it was done in the end, once, and never failed
    assert queue_facts(postgres, "attempt_failed") == []
    with raw(postgres) as connection:
        assert connection.execute("SELECT run_id FROM payments").fetchall() == [(run_id,)]
    assert len(calls) >= 3


@pytest.mark.parametrize("form", ["psycopg", "sqlalchemy"])
def test_a_transactional_step_whose_statement_a_person_cancelled_is_done_again_and_did_not_fail(
    postgres: PostgresStorage, form: str
) -> None:
    # given a step that waits in a statement of its own until somebody cancels it, the first time
    workflow, sessions = Workflow("paid"), list[int]()

    def work(execute: Callable[[str], Any]) -> None:
        sessions.append(execute("SELECT pg_backend_pid()").fetchone()[0])
        if len(sessions) == 1:
            execute("SELECT pg_sleep(600)")

    def by_psycopg(connection: psycopg.Connection[Any]) -> None:
        work(connection.execute)

    def by_sqlalchemy(connection: sqlalchemy.Connection) -> None:
        work(lambda statement: connection.execute(sqlalchemy.text(statement)))

    steps: dict[str, Callable[..., None]] = {"psycopg": by_psycopg, "sqlalchemy": by_sqlalchemy}
    workflow.step(name="pay", transactional=True)(steps[form])
    squid = Squid(postgres, workflow)
    run_id = squid.start("paid").run_id
    # when a person does
    cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = %s AND query LIKE %s"
    with at_work(squid), raw(postgres) as connection:

        def cancelled() -> bool:
            return bool(sessions and connection.execute(cancel, (sessions[0], "SELECT pg_sleep%")).fetchall())

        until(cancelled, "that the statement is cancelled")
        until(all_done(postgres, [run_id]), "the run")
    # then it was interrupted, which counts as a delivery, and never failed
    assert len(sessions) == 2
    assert queue_facts(postgres, "attempt_failed") == []
    (released,) = queue_facts(postgres, "attempt_released")
    assert released.counted
    assert status_of(postgres, run_id) == "completed"


def test_a_statement_timeout_of_a_transactional_step_is_its_failure(postgres: PostgresStorage) -> None:
    workflow = Workflow("paid")

    @workflow.step(transactional=True)
    def pay(connection: psycopg.Connection[Any]) -> None:
        connection.execute("SET LOCAL statement_timeout = 20")
        connection.execute("SELECT pg_sleep(600)")

    squid = Squid(postgres, workflow)
    run_id = squid.start("paid").run_id
    squid.worker(until_idle=True)
    assert status_of(postgres, run_id) == "failed"
    (failed,) = queue_facts(postgres, "attempt_failed")
    assert "statement timeout" in failed.error["message"]


def test_a_timeout_of_our_own_statement_behind_a_transactional_step_is_not_its_failure(
    postgres: PostgresStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow, calls = Workflow("paid"), list[int]()

    @workflow.step(transactional=True)
    def pay(connection: psycopg.Connection[Any], ctx: StepContext) -> None:
        calls.append(ctx.fencing_token)
        if len(calls) == 1:  # the second time, no statement of ours is hurried, however slow the machine
            connection.execute("SET LOCAL statement_timeout = 20")
            monkeypatch.setattr(transactional_steps, "_MARKED", "SELECT pg_sleep(600)")
        else:
            monkeypatch.undo()

    squid = Squid(postgres, workflow)
    run_id = squid.start("paid").run_id
    with at_work(squid):
        until(all_done(postgres, [run_id]), "the run")
    assert (calls, status_of(postgres, run_id)) == ([1, 2], "completed")
    assert queue_facts(postgres, "attempt_failed") == []


class _Buggy(PostgresDispatchStore):
    """A dispatch store with a mistake in it."""

    mistakes = 0

    def claim(self, *args: Any, **options: Any) -> list[Claim]:
        if self.mistakes < 3:
            self.mistakes += 1
            raise ZeroDivisionError("a mistake")
        return super().claim(*args, **options)


def test_a_mistake_in_the_claim_loop_ends_no_worker_and_is_logged_once_with_its_place(
    postgres: PostgresStorage, steps: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    steps.gates[0].set()
    squid = Squid(postgres, steps.workflow)
    squid.runtime = replace(squid.runtime, dispatch=_Buggy(postgres))
    run_id = squid.start("two").run_id
    with at_work(squid):
        until(all_done(postgres, [run_id]), "the run")
    (logged,) = [each for each in caplog.records if "must wait" in each.getMessage()]
    assert logged.exc_info is not None
    assert logged.exc_info[0] is ZeroDivisionError


def test_execute_next_keeps_its_result_until_the_database_takes_it(postgres: PostgresStorage, faults: Faults) -> None:
    workflow, planted = Workflow("one"), faults.raising("53100")
    calls = []

    @workflow.step
    def step() -> None:
        calls.append(1)
        planted.__enter__()

    squid = Squid(postgres, workflow)
    run_id = squid.start("one").run_id

    def free_the_disk() -> None:
        until(lambda: calls and faults.raised() > 4, "several tries")
        planted.__exit__(None, None, None)

    freeing = threading.Thread(target=free_the_disk)
    freeing.start()
    executed = squid.execute_next()
    freeing.join()
    assert executed is not None
    assert (executed.run_id, executed.status, len(calls)) == (run_id, "completed", 1)


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


def test_execute_next_gives_its_result_up_with_the_lease(postgres: PostgresStorage, faults: Faults) -> None:
    workflow, planted = Workflow("one"), faults.raising("53100")
    workflow.step(name="step")(lambda: planted.__enter__())
    squid = Squid(postgres, workflow)
    squid.start("one")
    with pytest.raises((StorageUnavailable, ExpiredClaim)):  # whichever is found out first
        squid.execute_next(lease=timedelta(milliseconds=300))
    planted.__exit__(None, None, None)


def test_recovery_stops_where_the_database_does_and_blames_no_run(postgres: PostgresStorage, faults: Faults) -> None:
    workflow = Workflow("one")
    workflow.step(name="step")(lambda: None)
    squid = Squid(postgres, workflow)
    squid.start_many("one", [None] * 3)
    with faults.raising("53100"), pytest.raises(StorageUnavailable, match="53100"):
        squid.recover()
    assert squid.recover().failed == {}


def test_a_cron_that_cannot_be_started_now_keeps_no_other_waiting(postgres: PostgresStorage) -> None:
    # given an internal error of the database about one of two workflows that are due
    made = [Workflow(name, triggers=[Cron("0 * * * *")]) for name in ("bad", "good")]
    for workflow in made:
        workflow.step(name="step")(lambda: None)
    squid = Squid(postgres, made)
    with raw(postgres) as connection:
        connection.execute("""CREATE FUNCTION internal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.data->>'workflow' = 'bad' THEN RAISE EXCEPTION 'a defect' USING ERRCODE = 'XX000'; END IF;
            RETURN NEW; END $$""")
        connection.execute(
            "CREATE TRIGGER internal BEFORE INSERT ON journal_entries FOR EACH ROW EXECUTE FUNCTION internal()"
        )
        now = datetime(2026, 1, 1, 12, 1, tzinfo=UTC)
        (receipt,) = squid.start_due_crons(now)
        connection.execute("DROP TRIGGER internal ON journal_entries")
    assert squid.inspect_run(receipt.run_id).workflow == "good"
    (other,) = [each for each in squid.start_due_crons(now) if not each.repeated]
    assert squid.inspect_run(other.run_id).workflow == "bad"


def test_every_reason_is_said_once_per_outage_and_the_end_of_it_once(caplog: pytest.LogCaptureFixture) -> None:
    def error(state: str | None, text: str) -> StorageUnavailable:
        made = StorageUnavailable(text)
        made.sqlstate = state
        return made

    outage = Outage("worker w")
    with caplog.at_level(logging.WARNING):
        for part in ("claiming", "the heartbeat"):
            outage.begin(part, error("57P01", "shuts down"))
            outage.begin(part, error(None, "refused"))
            outage.begin(part, error("53100", "disk full"))
        outage.end("claiming")
        assert outage.under_way
        outage.end("the heartbeat")
        outage.end("the heartbeat")
    said = [text.partition(": ")[2] for text in caplog.messages]
    assert [text.rpartition(": ")[2] for text in said[:-1]] == ["shuts down", "disk full"]
    assert said[-1].startswith("goes on after")
    assert not outage.under_way
