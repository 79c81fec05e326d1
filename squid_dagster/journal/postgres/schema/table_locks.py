"""Exclusive locks on tables, for an upgrade and for the swap of a rebuild, without deadlocks.

Every writer locks the gate (an advisory lock) before all other locks; an upgrade closes it first. Then it needs tables
that another transaction may hold which will wait for the gate itself: one that has read them and writes next. So with
the gate closed, no lock is waited for. All tables are tried at once with NOWAIT, repeatedly for about a second; then
the gate is opened, and the caller starts again.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.schema.names import lock_number

_GATE_SECONDS = 2  # for which we may wait for writers, while later writers wait for us
_TABLES_SECONDS = 1.0  # for which others may wait for us
_PAUSE_SECONDS = 0.01
_VACUUM_SECONDS = 1.0  # longer than deadlock_timeout, after which autovacuum gives way

_RELATIONS: LiteralString = """SELECT c.relname, c.relkind::text, pg_get_userbyid(c.relowner), c.oid::bigint
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = ANY (%s) ORDER BY c.relname COLLATE "C" """
_IS_HELD: LiteralString = """SELECT EXISTS (SELECT FROM pg_catalog.pg_locks l WHERE l.relation = %s
    AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
    AND l.pid <> pg_backend_pid())"""
_HOLDERS: LiteralString = """SELECT DISTINCT a.pid, coalesce(nullif(a.application_name, ''), a.backend_type),
        coalesce(a.state, 'at work'), coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::int AS seconds
    FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
    WHERE l.granted AND a.pid <> pg_backend_pid()
      AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
      AND (l.relation = ANY (SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n
                                 ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = ANY (%s))
           OR l.locktype = 'advisory' AND l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = %s)
    ORDER BY seconds DESC LIMIT 3"""


def close_gate(connection: PgConnection, schema: str, gate: str = "gate") -> None:
    """Wait for running writers, and block all others until the open transaction ends. No other lock may be held before.

    Raises:
        psycopg.errors.LockNotAvailable: a writer takes too long; try again.
    """
    connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(f"{_GATE_SECONDS}s")))
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number(schema, gate),))


def lock_tables(connection: PgConnection, schema: str, names: Sequence[str]) -> None:
    """Lock relations exclusively until the open transaction ends, all of them or none; missing ones are no error.

    Raises:
        psycopg.errors.LockNotAvailable: other sessions hold one for longer than writers may wait for us.
    """
    deadline = time.monotonic() + _TABLES_SECONDS
    while True:
        try:
            with connection.transaction():
                for statement in _statements(connection, schema, names):
                    connection.execute(statement)
            return
        except psycopg.errors.LockNotAvailable:
            if time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_SECONDS)


def _statements(connection: PgConnection, schema: str, names: Sequence[str]) -> Iterable[sql.Composed]:
    for name, kind, owner, oid in connection.execute(_RELATIONS, (schema, list(names))).fetchall():
        relation = sql.Identifier(schema, name)
        if kind in ("r", "p"):
            yield sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT").format(relation)
            continue
        # LOCK is for tables only. ALTER ... OWNER TO the same owner changes nothing, and takes the same lock. It is
        # sent when no other session holds one: a session that takes one now is not yet in its deadlock check.
        if connection.execute(_IS_HELD, (oid,)).fetchone() == (True,):
            raise psycopg.errors.LockNotAvailable(f"{name} is in use")
        yield sql.SQL("SET LOCAL lock_timeout = 1; ALTER TABLE {} OWNER TO {}").format(relation, sql.Identifier(owner))


def end_vacuums(connection: PgConnection, schema: str, names: Sequence[str]) -> None:
    """Wait, without any other lock and outside a transaction, until autovacuum has given way to us.

    One that prevents transaction id wraparound does not give way: the caller's next try waits for it.
    """
    for name, kind, *_ in connection.execute(_RELATIONS, (schema, list(names))).fetchall():
        if kind not in ("r", "p"):
            continue
        try:
            with connection.transaction():
                connection.execute(
                    """SELECT set_config('lock_timeout', ceil(1000 * (%s + extract(epoch FROM
                        current_setting('deadlock_timeout')::interval)))::text, true)""",
                    (_VACUUM_SECONDS,),
                )
                table = sql.Identifier(schema, name)
                connection.execute(sql.SQL("LOCK TABLE {} IN SHARE UPDATE EXCLUSIVE MODE").format(table))
        except (psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
            continue


def describe_holders(connection: PgConnection, schema: str, names: Sequence[str], gate: str = "gate") -> str:
    """Return which sessions hold locks on these relations or the gate, and since when."""
    rows: list[tuple[Any, ...]] = connection.execute(
        _HOLDERS, (schema, list(names), lock_number(schema, gate))
    ).fetchall()
    return ", ".join(f"process {pid} ({what}, {state}, for {seconds} s)" for pid, what, state, seconds in rows)
