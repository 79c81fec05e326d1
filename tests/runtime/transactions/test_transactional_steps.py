"""Transactional steps: what a step writes to the journal's database happens with its completion, or not at all."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy
from pydantic import BaseModel
from sqlalchemy import text

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage, verify
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol.errors import ExpiredClaim, StaleClaim, TerminalRun
from squid_dagster.workflow import Defer, Fail, Retry, StepContext, Workflow
from tests.journal.access import Wire, raw
from tests.runtime.workers import (
    PATIENCE,
    all_done,
    at_work,
    facts_of,
    queue_facts,
    status_of,
    until,
)

AGAIN = Retry(max_attempts=3, initial=timedelta(0))


class Item(BaseModel):
    """A number."""

    n: int = 0


@pytest.fixture
def table(postgres: PostgresStorage) -> str:
    """A table of the user's, in the journal's database; nothing in it keeps a row from being written twice."""
    with raw(postgres) as connection:
        connection.execute("CREATE TABLE bookings (run_id text, token int, side text)")
    return f"{postgres.schema}.bookings"


def rows(storage: PostgresStorage) -> list[tuple[str, int, str]]:
    with raw(storage) as connection:
        return connection.execute("SELECT run_id, token, side FROM bookings ORDER BY 1, 2, 3").fetchall()


def book(connection: sqlalchemy.Connection, table: str, ctx: StepContext, side: str = "debit") -> None:
    values = {"run": ctx.run_id, "token": ctx.fencing_token, "side": side}
    connection.execute(text(f"INSERT INTO {table} VALUES (:run, :token, :side)"), values)


def one(step: Any, **options: Any) -> Workflow:
    workflow = Workflow("one", payload=Item)
    workflow.step(name="step", transactional=True, **options)(step)
    return workflow


def steps(table: str) -> dict[str, Any]:
    """The same step in every form that a connection can be asked for."""

    def by_sqlalchemy(connection: sqlalchemy.Connection, ctx: StepContext) -> int:
        book(connection, table, ctx)
        return ctx.fencing_token

    def by_psycopg(connection: psycopg.Connection[Any], ctx: StepContext) -> int:
        values = (ctx.run_id, ctx.fencing_token, "debit")
        with connection.cursor() as cursor, connection.transaction():
            cursor.execute(f"INSERT INTO {table} VALUES (%s, %s, %s)", values)
        return ctx.fencing_token

    async def asynchronous(connection: sqlalchemy.Connection, ctx: StepContext) -> int:
        with connection.begin_nested():
            book(connection, table, ctx)
        return ctx.fencing_token

    return {"sqlalchemy": by_sqlalchemy, "psycopg": by_psycopg, "async": asynchronous}


@pytest.mark.parametrize("form", ["sqlalchemy", "psycopg", "async"])
def test_rows_and_completion_are_one_commit(postgres: PostgresStorage, table: str, form: str) -> None:
    squid = Squid(postgres, one(steps(table)[form]))
    run_id = squid.start("one").run_id
    found = squid.execute_next()
    assert found is not None
    assert (found.status, found.outputs) == ("completed", {"step": 1})
    assert rows(postgres) == [(run_id, 1, "debit")]
    if form == "sqlalchemy":  # the others write in a savepoint, which has a number of its own
        with raw(postgres) as connection:
            in_table = connection.execute("SELECT xmin FROM bookings").fetchall()
            in_journal = connection.execute("SELECT xmin FROM journal_entries WHERE type = 'attempt_completed'")
            assert in_table == in_journal.fetchall(), "one transaction wrote both"


def test_a_transactional_step_need_not_ask_for_the_connection(postgres: PostgresStorage) -> None:
    squid = Squid(postgres, one(lambda: "done"))
    squid.start("one")
    assert squid.worker(until_idle=True).completed == 1


def test_what_follows_a_transactional_step_is_planned_with_it(postgres: PostgresStorage, table: str) -> None:
    workflow = one(steps(table)["sqlalchemy"])

    @workflow.step(after="step")
    def then(step: int) -> int:
        return step + 1

    squid = Squid(postgres, workflow)
    runs = [each.run_id for each in squid.start_many("one", [{"n": n} for n in range(40)])]
    report = squid.worker(until_idle=True, concurrency=8)
    assert report.completed == 80
    assert all_done(postgres, runs)()
    assert rows(postgres) == sorted((run, 1, "debit") for run in runs)
    assert verify(postgres) == []


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


def test_a_step_that_succeeds_at_the_second_attempt_has_written_once(postgres: PostgresStorage, table: str) -> None:
    def step(connection: sqlalchemy.Connection, ctx: StepContext) -> None:
        book(connection, table, ctx)
        if ctx.attempt == 1:
            connection.execute(text("SELECT 1 / 0"))

    squid = Squid(postgres, one(step, retry=AGAIN))
    run_id = squid.start("one").run_id
    report = squid.worker(until_idle=True)
    assert (report.retried, report.completed) == (1, 1)
    assert rows(postgres) == [(run_id, 2, "debit")]
    assert "division by zero" in facts_of(postgres, run_id, "attempt_failed")[0].error["message"]


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


def test_heartbeats_go_on_while_a_transactional_step_runs(postgres: PostgresStorage, table: str) -> None:
    def step(connection: sqlalchemy.Connection, ctx: StepContext) -> None:
        book(connection, table, ctx)
        until(lambda: len(facts_of(postgres, ctx.run_id, "attempt_heartbeat")) >= 4, "heartbeats")

    squid = Squid(postgres, one(step))
    run_id = squid.start("one").run_id
    assert squid.worker(until_idle=True, lease=timedelta(seconds=0.6)).completed == 1
    assert len(facts_of(postgres, run_id, "attempt_claimed")) == 1


def test_many_transactional_steps_at_once_leave_connections_for_heartbeats_and_commits(
    postgres: PostgresStorage, table: str
) -> None:
    # given more steps that hold a connection than a storage keeps for itself
    begun: list[str] = []
    gate = threading.Event()

    def step(connection: sqlalchemy.Connection, ctx: StepContext) -> None:
        book(connection, table, ctx)
        begun.append(ctx.run_id)
        gate.wait(PATIENCE)

    squid = Squid(postgres, one(step))
    runs = [each.run_id for each in squid.start_many("one", [{"n": n} for n in range(24)])]
    lease = timedelta(seconds=2)
    with at_work(squid, concurrency=24, lease=lease, until_idle=True) as working:
        until(lambda: len(begun) == 24, "all steps, each with a connection")
        # when they take longer than their lease
        first = max(fact.lease_until for fact in queue_facts(postgres, "attempt_claimed"))
        until(lambda: postgres.now() > first, "the first lease's end")
        gate.set()
        report = working.end()
    # then heartbeats have kept them all
    assert (report.completed, report.refused, report.claimed) == (24, 0, 24)
    assert rows(postgres) == sorted((run, 1, "debit") for run in runs)


def test_a_memory_storage_fails_the_step_with_the_reason() -> None:
    called: list[int] = []

    def step(connection: sqlalchemy.Connection) -> None:
        called.append(1)

    squid = Squid(MemoryStorage(), one(step, retry=AGAIN))
    run_id = squid.start("one").run_id
    assert squid.worker(until_idle=True).failed == 1
    error = squid.inspect_run(run_id).error
    assert error is not None
    assert error["code"] == "transactional_storage"
    assert "'step' is transactional" in error["message"]
    assert "Postgres" in error["message"]
    assert called == []


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
    # and the connections of everybody else are in order
    assert Squid(postgres, one(lambda: "fine")).start("one").run_id
    assert Squid(postgres, one(lambda: "fine")).worker(until_idle=True).completed == 1


@pytest.fixture
def wire(postgres_url: str) -> Iterator[Wire]:
    """A wire to the server that can lose an answer."""
    made = Wire(postgres_url)
    yield made
    made.close()


def test_a_commit_whose_answer_was_lost_is_found_and_the_step_not_called_again(
    postgres: PostgresStorage, table: str, wire: Wire
) -> None:
    calls: list[int] = []

    def step(connection: sqlalchemy.Connection, ctx: StepContext) -> int:
        calls.append(ctx.fencing_token)
        book(connection, table, ctx)
        wire.lose_answer_to("; COMMIT")
        return ctx.fencing_token

    behind = PostgresStorage(wire.url, postgres.schema)
    squid = Squid(behind, one(step))
    run_id = squid.start("one").run_id
    report = squid.worker(until_idle=True)
    behind.close()
    assert wire.lost == 1
    assert (report.completed, calls) == (1, [1])
    assert rows(postgres) == [(run_id, 1, "debit")]
    assert status_of(postgres, run_id) == "completed"


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
