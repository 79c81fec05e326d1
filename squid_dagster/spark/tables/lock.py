"""Who may write to a warehouse: one at a time, by an advisory lock in the journal's own database."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg

from squid_dagster.journal.postgres.schema.long_lock import release_long_lock, take_long_lock
from squid_dagster.journal.postgres.schema.names import lock_number
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.spark.errors import WarehouseBusy
from squid_dagster.spark.tables.warehouse import Warehouse

Check = Callable[[], None]
_ASK_AGAIN = timedelta(seconds=1)


@contextmanager
def alone(storage: PostgresStorage, warehouse: Warehouse, wait: timedelta = timedelta(0)) -> Iterator[Check]:
    """Hold the lock of a warehouse; gives a call that raises when the lock has been lost meanwhile.

    It is asked for again and again instead of waited for, since who waits in the database keeps it from cleaning up.

    Raises:
        WarehouseBusy: somebody else has it, and still has it after `wait`; or it was lost.
        StorageUnavailable: the database cannot be reached.
    """
    number = lock_number(storage.schema, f"warehouse:{warehouse.files.identity}")
    with storage.connection() as connection:
        deadline = time.monotonic() + wait.total_seconds()
        while not take_long_lock(connection, number):
            if time.monotonic() >= deadline:
                raise WarehouseBusy(
                    f"another refresh of the warehouse {warehouse.path!r} is under way: wait for it, then try again"
                )
            time.sleep(_ASK_AGAIN.total_seconds())

        def check() -> None:
            try:
                connection.execute("SELECT 1")
            except psycopg.Error:
                raise WarehouseBusy(
                    f"the lock of the warehouse {warehouse.path!r} was lost with the connection to Postgres, and "
                    "somebody else may be writing there: the tables are as they were, refresh again"
                ) from None

        try:
            yield check
        finally:
            release_long_lock(connection)
