"""Transactional steps: what a step writes to the journal's database, and its completion, are one commit."""

import contextlib
from typing import Any

import psycopg
from sqlalchemy import exc

from squid_dagster.journal import Answer, Claim, Completed, PostgresDispatchStore, PostgresStorage, Settlement
from squid_dagster.journal.dispatch import Failed, Outcome
from squid_dagster.protocol.attempts import AttemptStatus
from squid_dagster.protocol.errors import StorageUnavailable
from squid_dagster.protocol.unit import RunUnit
from squid_dagster.runtime.core import Runtime
from squid_dagster.runtime.execution import AsyncRunner, Call, completed, error_map, outcome_of_error


def run_transactional(runtime: Runtime, claim: Claim, call: Call, run_async: AsyncRunner) -> Outcome | Answer:
    """Call a step with the connection that it asks for, and complete it in the same transaction.

    No lock of ours is taken until the step returns; then fence, clock and commit come together. Gives the answer of the
    completion; or an outcome that is still to be settled, after everything that the step wrote was rolled back.

    Raises:
        StorageUnavailable: the connection was lost. The step may be delivered again: nothing of it was committed.
    """
    storage, store = runtime.storage, runtime.dispatch
    if not isinstance(storage, PostgresStorage) or not isinstance(store, PostgresDispatchStore):
        message = f"step {call.step.name!r} is transactional: that needs a journal in Postgres"
        return Failed(error_map("transactional_storage", message))
    assert call.task is not None  # noqa: S101  built-ins are never transactional
    parameter = call.task.connection
    with _connected(storage) as connection:
        raw: psycopg.Connection[Any] = connection.connection.driver_connection
        arguments = dict(call.arguments)
        if parameter is not None:
            arguments[parameter.name] = connection if parameter.resource == "sqlalchemy" else raw
        try:
            returned = call.task.function(**arguments)
            outcome = completed(run_async(returned) if call.task.is_async else returned)
        except Exception as error:  # noqa: BLE001  a step may raise anything
            raw.rollback()
            return outcome_of_error(error, call.step, call.attempt, runtime.random_unit)
        if not isinstance(outcome, Completed):
            raw.rollback()
            return outcome
        try:
            (answer,) = store.settle_within(raw, [Settlement(claim.ref, outcome)], runtime.plan)
        except psycopg.OperationalError as error:
            return _look_up(storage, claim, error)
        if answer.error is not None:
            raw.rollback()
        return answer


@contextlib.contextmanager
def _connected(storage: PostgresStorage) -> Any:
    try:
        connection = storage.engine.connect()
    except exc.OperationalError:
        storage.engine.dispose()
        raise StorageUnavailable("the database cannot be reached: the step was not called") from None
    try:
        connection.begin()
        yield connection
    finally:
        with contextlib.suppress(exc.SQLAlchemyError, psycopg.Error):
            connection.connection.driver_connection.rollback()  # type: ignore[union-attr]  # ours is psycopg
        with contextlib.suppress(exc.SQLAlchemyError, psycopg.Error):
            connection.close()


def _look_up(storage: PostgresStorage, claim: Claim, error: psycopg.OperationalError) -> Answer:
    """Find out whether a commit whose answer was lost has happened."""
    attempt = RunUnit.fold(storage.read_run(claim.ref.run_id)).dispatch.attempts.get(claim.ref.runnable_key)
    done = attempt is not None and attempt.status is AttemptStatus.COMPLETED
    if attempt is not None and done and attempt.held_by(claim.ref.claim_id, claim.ref.token_hash):
        return Answer(claim.ref, attempt)
    raise StorageUnavailable(f"the connection was lost, and {claim.ref.runnable_key!r} rolled back") from error
