"""Errors of the database in transactional steps: which of them are failures of the step."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg import sql

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.runtime.execution import transactional_steps
from squid_dagster.workflow import StepContext, Workflow
from tests.faults import Faults
from tests.journal.access import raw
from tests.runtime.workers import all_done, queue_facts, running_worker, status_of, until


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
    with running_worker(squid):
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
    # given a step that waits in a statement of its own until a person cancels it, the first time
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
    with running_worker(squid), raw(postgres) as connection:

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
    with running_worker(squid):
        until(all_done(postgres, [run_id]), "the run")
    assert (calls, status_of(postgres, run_id)) == ([1, 2], "completed")
    assert queue_facts(postgres, "attempt_failed") == []
