"""An advisory lock for work of many transactions, which cannot be left behind: a transaction of its own holds it.

A lock of a session stays with the server's connection, which a transaction pooler gives to others meanwhile. A
transaction keeps its connection under every pooler, and its lock ends with it: by commit, by a lost connection, by the
death of the process. It holds no snapshot while it is idle, and so keeps no vacuum from cleaning up.
"""

from contextlib import suppress

import psycopg
from psycopg.pq import TransactionStatus

from squid_dagster.journal.postgres.connection.pool import PgConnection

# Whoever holds it is idle in a transaction for as long as the work takes.
_FOR_LONG = """SELECT set_config(name, '0', true) FROM pg_catalog.pg_settings
    WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')"""


def take_long_lock(connection: PgConnection, number: int) -> bool:
    """Open a transaction that holds a lock, and return True; False, and no transaction, if another session holds it.

    Nothing else may be done on the connection until `release_long_lock`, but to find out whether it is still there.
    """
    connection.execute("BEGIN")
    row = connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (number,)).fetchone()
    if row is not None and row[0]:
        connection.execute(_FOR_LONG)
        return True
    connection.execute("ROLLBACK")
    return False


def release_long_lock(connection: PgConnection) -> None:
    """End the transaction that holds a lock, if it is still there."""
    if connection.closed or connection.info.transaction_status == TransactionStatus.IDLE:
        return
    with suppress(psycopg.Error):  # what ended the connection has ended the lock
        connection.execute("ROLLBACK")
