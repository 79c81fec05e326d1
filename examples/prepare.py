"""What the example workflows need beside the journal: the table that `payment_recovery` books into.

`make dev` does this by itself. Elsewhere, once, after `squid db upgrade`: `python -m examples.prepare`.
"""

import sys

from squid_dagster.journal import PostgresStorage, open_journal

TABLE = "CREATE TABLE IF NOT EXISTS public.demo_bookings (key text, amount integer)"


def prepare(journal: PostgresStorage) -> None:
    """Make the table, unless it is there. Raises `StorageUnavailable`."""
    with journal.connection() as connection:
        connection.execute(TABLE)


def main() -> int:
    """Make the table in the database that the environment names."""
    journal = open_journal()
    try:
        prepare(journal)
    finally:
        journal.close()
    sys.stdout.write("the tables of the example workflows are there\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
