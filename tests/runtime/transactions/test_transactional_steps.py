"""Transactional steps: what a step writes to the journal's database is committed with its completion, once."""

import threading
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import text

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage, verify
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.workflow import StepContext
from tests.journal.access import LossyProxy, raw
from tests.runtime.transactions.bookings import AGAIN, book, one, rows
from tests.runtime.workers import (
    PATIENCE,
    all_done,
    facts_of,
    queue_facts,
    running_worker,
    status_of,
    until,
)


def steps(table: str) -> dict[str, Any]:
    """Return the same step in every form in which a connection can be requested."""

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
    snapshot = squid.execute_next()
    assert snapshot is not None
    assert (snapshot.status, snapshot.outputs) == ("completed", {"step": 1})
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
    runs = [receipt.run_id for receipt in squid.start_many("one", [{"n": n} for n in range(40)])]
    report = squid.worker(until_idle=True, concurrency=8)
    assert report.completed == 80
    assert all_done(postgres, runs)()
    assert rows(postgres) == sorted((run, 1, "debit") for run in runs)
    assert verify(postgres) == []


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
    release = threading.Event()

    def step(connection: sqlalchemy.Connection, ctx: StepContext) -> None:
        book(connection, table, ctx)
        begun.append(ctx.run_id)
        release.wait(PATIENCE)

    squid = Squid(postgres, one(step))
    runs = [receipt.run_id for receipt in squid.start_many("one", [{"n": n} for n in range(24)])]
    lease = timedelta(seconds=2)
    with running_worker(squid, concurrency=24, lease=lease, until_idle=True) as working:
        until(lambda: len(begun) == 24, "all steps, each with a connection")
        # when they take longer than their lease
        first = max(fact.lease_until for fact in queue_facts(postgres, "attempt_claimed"))
        until(lambda: postgres.now() > first, "the first lease's end")
        release.set()
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


def test_a_commit_whose_answer_was_lost_is_found_and_the_step_not_called_again(
    postgres: PostgresStorage, table: str, lossy_proxy: LossyProxy
) -> None:
    calls: list[int] = []

    def step(connection: sqlalchemy.Connection, ctx: StepContext) -> int:
        calls.append(ctx.fencing_token)
        book(connection, table, ctx)
        lossy_proxy.lose_answer_to("; COMMIT")
        return ctx.fencing_token

    behind = PostgresStorage(lossy_proxy.url, postgres.schema)
    squid = Squid(behind, one(step))
    run_id = squid.start("one").run_id
    report = squid.worker(until_idle=True)
    behind.close()
    assert lossy_proxy.lost == 1
    assert (report.completed, calls) == (1, [1])
    assert rows(postgres) == [(run_id, 1, "debit")]
    assert status_of(postgres, run_id) == "completed"
