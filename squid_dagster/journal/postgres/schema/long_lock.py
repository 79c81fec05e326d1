"""An advisory lock for work of many transactions, held by a transaction of its own, so that it cannot be left behind.

A session-level lock stays with the server's session, which a transaction pooler gives to other clients meanwhile. A
transaction keeps its session under every pooler, and its lock ends with it: by commit, by a lost connection, by the
end of the process. While idle it holds no snapshot, so vacuum can clean up.
"""

from contextlib import suppress

import psycopg
from psycopg.pq import TransactionStatus

from squid_dagster.journal.postgres.connection.pool import PgConnection

# The session that holds it is idle in a transaction for as long as the work takes.
_FOR_LONG = """SELECT set_config(name, '0', true) FROM pg_catalog.pg_settings
    WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')"""


def take_long_lock(connection: PgConnection, number: int) -> bool:
    """Open a transaction that holds a lock and return True; if another session holds it, return False without one.

    Until `release_long_lock`, the connection may only be used to check that it is still open.
    """
    connection.execute("BEGIN")
    row = connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (number,)).fetchone()
    if row is not None and row[0]:
        connection.execute(_FOR_LONG)
        return True
    connection.execute("ROLLBACK")
    return False


def release_long_lock(connection: PgConnection) -> None:
    """End the transaction that holds a lock, if it is still open."""
    if connection.closed or connection.info.transaction_status == TransactionStatus.IDLE:
        return
    with suppress(psycopg.Error):  # what ended the connection has ended the lock
        connection.execute("ROLLBACK")
