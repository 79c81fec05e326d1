"""Transactional steps that write a booking, and the rows that they wrote."""

from datetime import timedelta
from typing import Any

import sqlalchemy
from pydantic import BaseModel
from sqlalchemy import text

from squid_dagster.journal import PostgresStorage
from squid_dagster.workflow import Retry, StepContext, Workflow
from tests.journal.access import raw

AGAIN = Retry(max_attempts=3, initial=timedelta(0))


class Item(BaseModel):
    """A number."""

    n: int = 0


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
