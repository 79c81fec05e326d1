"""Transactional steps that fail, lose their claim or end the transaction: none of their rows stays."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import text

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.protocol.errors import ExpiredClaim, StaleClaim, TerminalRun
from squid_dagster.workflow import Defer, Fail, StepContext
from tests.journal.access import raw
from tests.runtime.transactions.bookings import AGAIN, book, one, rows
from tests.runtime.workers import (
    facts_of,
    status_of,
    until,
)


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), Fail("for good"), Defer("not yet", after=timedelta(hours=1)), SystemExit(1)],
    ids=lambda error: type(error).__name__,
)
def test_a_step_that_raises_has_written_nothing(postgres: PostgresStorage, table: str, error: BaseException) -> None:
    def step(connection: sqlalchemy.Connection, ctx: StepContext) -> None:
        book(connection, table, ctx)
        raise error

    squid = Squid(postgres, one(step))
    run_id = squid.start("one").run_id
    squid.worker(until_idle=True)
    assert rows(postgres) == []
    last = "attempt_released" if isinstance(error, Defer) else "attempt_failed"
    assert len(facts_of(postgres, run_id, last)) == 1
    assert len(facts_of(postgres, run_id, "attempt_claimed")) == 1


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (object(), "invalid_result"),
        ("x" * 2**20, "result_too_large"),
        ("a\0b", "unwritable_outcome"),
    ],
    ids=["no json", "too large", "nul"],
)
def test_a_result_that_cannot_be_journalled_takes_the_rows_with_it(
    postgres: PostgresStorage, table: str, result: Any, code: str
) -> None:
    def step(connection: sqlalchemy.Connection, ctx: StepContext) -> Any:
        book(connection, table, ctx)
        return result

    squid = Squid(postgres, one(step))
    run_id = squid.start("one").run_id
    squid.worker(until_idle=True)
    (failed,) = facts_of(postgres, run_id, "attempt_failed")
    assert failed.error["code"] == code
    assert status_of(postgres, run_id) == "failed"
    assert rows(postgres) == []


def test_a_lease_that_ran_out_meanwhile_takes_the_rows_with_it(postgres: PostgresStorage, table: str) -> None:
    # given a step that suspends its own heartbeats, by holding on to its run until the lease is over
    def step(connection: sqlalchemy.Connection, ctx: StepContext) -> None:
        book(connection, table, ctx)
        with raw(postgres, autocommit=False) as other:
            other.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (ctx.run_id,))
            (claimed,) = facts_of(postgres, ctx.run_id, "attempt_claimed")
            until(lambda: postgres.now() > claimed.lease_until, "the lease's end")

    squid = Squid(postgres, one(step))
    run_id = squid.start("one").run_id
    with pytest.raises(ExpiredClaim):
        squid.execute_next(lease=timedelta(seconds=1))
    assert rows(postgres) == []
    assert not facts_of(postgres, run_id, "attempt_completed")


def test_a_claim_that_another_has_taken_over_takes_the_rows_with_it(postgres: PostgresStorage, table: str) -> None:
    calls: list[int] = []

    def step(connection: sqlalchemy.Connection, ctx: StepContext) -> int:
        calls.append(ctx.fencing_token)
        book(connection, table, ctx)
        if ctx.fencing_token == 1:
            with raw(postgres, autocommit=False) as other:
                other.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (ctx.run_id,))
                # a heartbeat may have come before the lock
                ((lease_until,),) = postgres.rows("SELECT lease_until FROM {schema}.attempts")
                until(lambda: postgres.now() > lease_until, "the lease's end")
            # at once, unless a heartbeat that waited for the lock is just being refused
            until(lambda: Squid(postgres, workflow).execute_next(), "another worker, who does it all")
        return ctx.fencing_token

    workflow = one(step)
    squid = Squid(postgres, workflow)
    run_id = squid.start("one").run_id
    with pytest.raises((StaleClaim, TerminalRun)):
        squid.execute_next(lease=timedelta(seconds=1))
    assert calls == [1, 2]
    assert rows(postgres) == [(run_id, 2, "debit")]
    assert facts_of(postgres, run_id, "attempt_completed")[0].result == 2


def test_a_run_that_was_cancelled_meanwhile_takes_the_rows_with_it(postgres: PostgresStorage, table: str) -> None:
    def step(connection: sqlalchemy.Connection, ctx: StepContext) -> None:
        book(connection, table, ctx)
        Squid(postgres, workflow).cancel(ctx.run_id)  # no lock of ours is held while a step runs

    workflow = one(step)
    squid = Squid(postgres, workflow)
    run_id = squid.start("one").run_id
    report = squid.worker(until_idle=True)
    assert (report.completed, report.refused) == (0, 1)
    assert rows(postgres) == []
    assert status_of(postgres, run_id) == "cancelled"


def test_a_step_that_swallows_an_error_of_the_database_fails_and_has_written_nothing(
    postgres: PostgresStorage, table: str
) -> None:
    def step(connection: sqlalchemy.Connection, ctx: StepContext) -> str:
        book(connection, table, ctx)
        try:
            connection.execute(text("SELECT 1 / 0"))
        except sqlalchemy.exc.DBAPIError:
            return "all is well"
        return "unreachable"

    squid = Squid(postgres, one(step, retry=AGAIN))
    run_id = squid.start("one").run_id
    report = squid.worker(until_idle=True)
    assert (report.retried, report.failed, report.completed) == (2, 1, 0)
    assert rows(postgres) == []
    error = squid.inspect_run(run_id).error
    assert error is not None
    assert "aborted" in error["message"]


def test_a_constraint_that_is_checked_at_the_commit_fails_the_step_and_its_rows(postgres: PostgresStorage) -> None:
    with raw(postgres) as connection:
        connection.execute("CREATE TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        connection.execute("INSERT INTO once VALUES (1)")

    def step(connection: sqlalchemy.Connection) -> None:
        connection.execute(text(f"INSERT INTO {postgres.schema}.once VALUES (1)"))

    squid = Squid(postgres, one(step))
    run_id = squid.start("one").run_id
    assert squid.worker(until_idle=True).failed == 1
    error = squid.inspect_run(run_id).error
    assert error is not None
    assert error["type"] == "UniqueViolation"
    with raw(postgres) as connection:
        assert connection.execute("SELECT count(*) FROM once").fetchone() == (1,)


def _commits(connection: sqlalchemy.Connection, ctx: StepContext) -> None:
    connection.commit()


def _commits_and_goes_on(connection: sqlalchemy.Connection, ctx: StepContext) -> None:
    connection.commit()
    connection.execute(text("SELECT 1"))


def _closes(connection: sqlalchemy.Connection, ctx: StepContext) -> None:
    connection.close()


def _closes_psycopg(connection: psycopg.Connection[Any], ctx: StepContext) -> None:
    with connection:  # psycopg's own block commits and closes
        connection.execute("SELECT 1")


def _rolls_back(connection: psycopg.Connection[Any], ctx: StepContext) -> None:
    connection.rollback()


@pytest.mark.parametrize("step", [_commits, _commits_and_goes_on, _closes, _closes_psycopg, _rolls_back])
def test_a_step_that_ends_the_transaction_itself_is_told_so_and_not_called_for_ever(
    postgres: PostgresStorage, step: Any
) -> None:
    squid = Squid(postgres, one(step, retry=AGAIN))
    run_id = squid.start("one").run_id
    report = squid.worker(until_idle=True)
    assert (report.claimed, report.failed) == (1, 1)
    error = squid.inspect_run(run_id).error
    assert error is not None
    assert error["code"] == "transaction_ended"
    assert "'step'" in error["message"]
    # and the connections of all other steps are in order
    assert Squid(postgres, one(lambda: "fine")).start("one").run_id
    assert Squid(postgres, one(lambda: "fine")).worker(until_idle=True).completed == 1


def test_a_connection_that_breaks_during_the_step_gives_the_attempt_back(postgres: PostgresStorage, table: str) -> None:
    calls: list[int] = []

    def step(connection: sqlalchemy.Connection, ctx: StepContext) -> int:
        calls.append(ctx.fencing_token)
        book(connection, table, ctx)
        if len(calls) == 1:
            with raw(postgres) as other:
                pid = connection.execute(text("SELECT pg_backend_pid()")).scalar()
                other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
            connection.execute(text("SELECT 1"))
        return ctx.fencing_token

    squid = Squid(postgres, one(step))
    run_id = squid.start("one").run_id
    report = squid.worker(until_idle=True)
    assert (report.completed, report.released, report.failed) == (1, 1, 0)
    assert calls == [1, 2]
    assert rows(postgres) == [(run_id, 2, "debit")]
