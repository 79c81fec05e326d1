"""Processes that notify and listen, to be counted and killed.

Usage: `python -m tests.journal.notification.notifier_processes <kind> <url> <schema> <count>`.
"""

import atexit
import sys

from squid_dagster.journal import PostgresNotifier, PostgresStorage
from tests.journal.access import raw


def write(storage: PostgresStorage, count: int) -> None:
    """Count up and notify, so many times; then exit at once."""
    notifier = PostgresNotifier(storage)
    with raw(storage) as connection:
        for _ in range(count):
            connection.execute("UPDATE counter SET n = n + 1")
            notifier.notify(["default"])


def last_words(storage: PostgresStorage, _: int) -> None:
    """Send a wakeup while the interpreter exits."""
    atexit.register(PostgresNotifier(storage).notify, ["default"])


def listen(storage: PostgresStorage, _: int) -> None:
    """Print `listening` and then each wakeup, until killed."""
    listener = PostgresNotifier(storage).listen(["default"])
    while True:
        if listener.wait(600):
            sys.stdout.write("heard\n")
            sys.stdout.flush()


KINDS = {"write": write, "last_words": last_words, "listen": listen}

if __name__ == "__main__":
    kind, url, schema, count = sys.argv[1:5]
    KINDS[kind](PostgresStorage(url, schema), int(count))
