"""Transactional steps: a step's own writes to the journal's database, and its completion, are one commit."""

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
from sqlalchemy import Connection, exc

from squid_dagster.journal import Answer, Claim, Completed, PostgresDispatchStore, PostgresStorage, Settlement
from squid_dagster.journal.contract.dispatch_store import Failed, Outcome
from squid_dagster.journal.descriptors import LoopLost
from squid_dagster.journal.postgres.connection.failures import translated
from squid_dagster.journal.postgres.connection.inherited_sockets import close_lost, is_intact
from squid_dagster.protocol.errors import InvalidFact, StorageUnavailable
from squid_dagster.protocol.folds.attempt import AttemptStatus
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.runtime.execution.interrupts import is_interrupt
from squid_dagster.runtime.execution.settlement import unwritable
from squid_dagster.runtime.execution.step_calls import StepCalls
from squid_dagster.runtime.execution.step_execution import (
    AsyncRunner,
    Call,
    call_function,
    completed,
    error_map,
    failure,
    outcome_of_error,
)
from squid_dagster.runtime.runtime import Runtime

# Settings of the transaction that a step gets; reset when the step has ended that transaction. A step may do other work
# than SQL for any time: its lease shows whether it is alive, so there is no timeout for idle sessions.
_MARK = """SELECT set_config('squid_dagster.claim', %s, true),
    set_config('idle_in_transaction_session_timeout', '0', true)"""
_MARKED = "SELECT current_setting('squid_dagster.claim', true)"

# Timeouts by which the database ends a session: a failure of the step, to which its retry policy applies.
_LIMITS = {
    "25P03": "idle_in_transaction_session_timeout",
    "25P04": "transaction_timeout",
    "57P05": "idle_session_timeout",
}

# A transaction was rolled back by chance, or the database cannot write now: the step is delivered again.
_NOT_THE_STEP = ("40", "53", "58", "25006", "57P0")
# The same SQLSTATE is that of a statement cancelled by a person, and of `statement_timeout`, which is the step's
# failure; only the message differs. In a language other than English, both are the step's failure.
_CANCELLED, _BY_REQUEST = "57014", "user request"

_TIMED_OUT = (
    "step {step!r} was longer in its transaction than {limit} of the database allows, which has ended its session: "
    "make the step shorter, or set that setting to 0 for the role that runs workers"
)
_ENDED = (
    "step {step!r} has ended the transaction that it was given, so that its completion cannot be part of it: leave "
    "commit, rollback and close to the worker"
)


def run_transactional(runtime: Runtime, calls: StepCalls, call: Call, run_async: AsyncRunner) -> Outcome | Answer:
    """Call a step with the connection that it requests, and complete it in the same transaction.

    No lock of ours is taken until the step returns; then fence, clock and commit come together. Returns the answer to
    the completion; or an outcome that is still to be settled, after everything that the step wrote was rolled back.

    Raises:
        StorageUnavailable: the connection was lost, or the database could not do it now. The step may be delivered
            again: nothing of it was committed.
    """
    storage, store, claim = runtime.storage, runtime.dispatch, calls.claim
    if not isinstance(storage, PostgresStorage) or not isinstance(store, PostgresDispatchStore):
        message = f"step {call.step.name!r} is transactional: that needs a journal in Postgres"
        return Failed(error_map("transactional_storage", message))
    connection, raw = calls.make("opens its transaction", lambda: _open_transaction(storage, claim))
    with _rolled_back(connection, raw), _notices(raw) as sqlstates:
        try:
            outcome = _call(call, connection, raw, run_async)
            if isinstance(outcome, Completed) and not _in_transaction(connection, raw, claim):
                return Failed(error_map("transaction_ended", _ENDED.format(step=call.step.name)))
        except BaseException as error:
            if is_interrupt(error) or isinstance(error, LoopLost):
                raise
            limits = [_LIMITS[state] for state in sqlstates if state in _LIMITS]
            if (limit := _exceeded(error) or (limits[-1] if limits else None)) is not None:
                timeout = error_map("transaction_timeout", _TIMED_OUT.format(step=call.step.name, limit=limit))
                return failure(timeout, False, call.step, call.attempt, runtime.random_unit)
            cause = error.orig if isinstance(error, exc.DBAPIError) else error  # its own text shows the parameters
            if raw.broken or not is_intact(raw):
                raise StorageUnavailable(f"{claim.ref.runnable_key!r} lost its connection: {cause}") from error
            if isinstance(cause, psycopg.Error) and _is_chance(cause):
                _drop_if_read_only(raw, cause)
                raise StorageUnavailable(f"{claim.ref.runnable_key!r} was rolled back: {cause}") from error
            return outcome_of_error(error, call.step, call.attempt, runtime.random_unit)
        if not isinstance(outcome, Completed):
            return outcome
        try:
            (answer,) = store.settle_within(raw, [Settlement(claim.ref, outcome)], runtime.plan)
        except psycopg.Error as error:
            reason = translated(storage.engine, error, lost=raw.closed)
            if isinstance(reason, StorageUnavailable):
                _drop_if_read_only(raw, error)
                return _look_up(storage, calls, reason)
            # What the database checks at the commit, such as a deferred constraint.
            return outcome_of_error(error, call.step, call.attempt, runtime.random_unit)
        return unwritable(answer.error) if isinstance(answer.error, InvalidFact) else answer


def _call(call: Call, connection: Connection, raw: psycopg.Connection[Any], run_async: AsyncRunner) -> Outcome:
    assert call.task is not None  # noqa: S101  built-ins are never transactional
    arguments, parameter = dict(call.arguments), call.task.connection
    if parameter is not None:
        arguments[parameter.name] = connection if parameter.resource == "sqlalchemy" else raw
    return completed(call_function(call.task.function, arguments, call.step.name, run_async, call.task.is_async))


def _in_transaction(connection: Connection, raw: psycopg.Connection[Any], claim: Claim) -> bool:
    """Return whether the transaction that the step got is still open. Raises if it was aborted."""
    if connection.closed or (raw.closed and not raw.broken):
        return False
    try:
        row = raw.execute(_MARKED).fetchone()
    except psycopg.errors.QueryCanceled as error:  # this is no statement of the step
        raise StorageUnavailable(f"{claim.ref.runnable_key!r} was rolled back: {error}") from error
    return row is not None and row[0] == claim.ref.claim_id


def _is_chance(error: psycopg.Error) -> bool:
    """Return whether an error of the database is not the step's failure, so that the step is delivered again."""
    if error.sqlstate == _CANCELLED:
        return _BY_REQUEST in (error.diag.message_primary or "")
    return (error.sqlstate or "").startswith(_NOT_THE_STEP)


def _exceeded(error: BaseException) -> str | None:
    """Return the setting by which the database ended the step's session, if its error comes from that."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        original = cause.orig if isinstance(cause, exc.DBAPIError) else cause
        if isinstance(original, psycopg.Error) and original.sqlstate in _LIMITS:
            return _LIMITS[original.sqlstate]
        cause = cause.__cause__ or cause.__context__
    return None


@contextlib.contextmanager
def _notices(raw: psycopg.Connection[Any]) -> Iterator[list[str]]:
    """Yield a list to which the SQLSTATEs of notices are appended.

    Among them is that with which the database ends a session between two statements.
    """
    sqlstates: list[str] = []

    def append(diagnostic: psycopg.errors.Diagnostic) -> None:
        sqlstates.append(diagnostic.sqlstate or "")

    raw.add_notice_handler(append)
    try:
        yield sqlstates
    finally:
        with contextlib.suppress(ValueError):  # the step has removed it
            raw.remove_notice_handler(append)


def _open_transaction(storage: PostgresStorage, claim: Claim) -> tuple[Connection, psycopg.Connection[Any]]:
    """Open a transaction on a connection of its own. Raises `StorageUnavailable`: the step was not called."""
    try:
        connection = storage.step_engine.connect()
    except exc.SQLAlchemyError as error:
        raise _not_called(storage, error) from None
    raw: Any = connection.connection.driver_connection
    try:
        connection.begin()
        raw.execute(_MARK, (claim.ref.claim_id,))
    except BaseException as error:
        with _rolled_back(connection, raw):
            """Closed."""
        if isinstance(error, psycopg.Error):
            raise _not_called(storage, error) from None
        raise
    return connection, raw


@contextlib.contextmanager
def _rolled_back(connection: Connection, raw: psycopg.Connection[Any]) -> Iterator[None]:
    """Roll back the transaction after the block, unless it was committed, and close the connection."""
    try:
        yield
    finally:
        if is_intact(raw) or close_lost(raw, connection):
            with contextlib.suppress(exc.SQLAlchemyError, psycopg.Error):
                if not connection.closed:
                    raw.rollback()
            with contextlib.suppress(exc.SQLAlchemyError, psycopg.Error):
                if raw.closed and not connection.closed:
                    connection.invalidate()
                connection.close()
        else:
            connection.detach()


def _drop_if_read_only(raw: psycopg.Connection[Any], error: psycopg.Error) -> None:
    """Close a session with a server that is not the primary any more: a new one may reach the primary."""
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        raw.close()


def _not_called(storage: PostgresStorage, error: Exception) -> StorageUnavailable:
    """Return the error for a transaction that could not begin, of which the step is not the cause."""
    return StorageUnavailable(f"the step was not called: {translated(storage.engine, error)}")


def _look_up(storage: PostgresStorage, calls: StepCalls, error: StorageUnavailable) -> Answer:
    """Return the answer if a commit whose acknowledgement was lost has happened; raise otherwise."""
    claim = calls.claim
    entries = calls.make("looks up its commit", lambda: storage.read_run(claim.ref.run_id))
    attempt = RunUnit.fold(entries).dispatch.attempts.get(claim.ref.runnable_key)
    done = attempt is not None and attempt.status is AttemptStatus.COMPLETED
    if attempt is not None and done and attempt.held_by(claim.ref.claim_id, claim.ref.token_hash):
        return Answer(claim.ref, attempt)
    raise StorageUnavailable(f"{claim.ref.runnable_key!r} could not be committed: {error}") from error
