"""The table that `payment_recovery` books into, beside the journal.

`make dev` does this by itself. Elsewhere, once, after `squid db upgrade`: `python -m examples.prepare`.
"""

import sys

from squid_dagster.journal import PostgresStorage, open_journal

TABLE = "CREATE TABLE IF NOT EXISTS public.demo_bookings (key text, amount integer)"


def prepare(journal: PostgresStorage) -> None:
    """Create the table if it does not exist. Raises `StorageUnavailable`."""
    with journal.connection() as connection:
        connection.execute(TABLE)


def main() -> int:
    """Create the table in the database that the environment names."""
    journal = open_journal()
    try:
        prepare(journal)
    finally:
        journal.close()
    sys.stdout.write("the tables of the example workflows are there\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
