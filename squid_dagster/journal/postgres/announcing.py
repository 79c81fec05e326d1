"""Announced starts: workers hear of a run before it is written, and wait for it in the database.

Where nobody is busy, a start pays for every wakeup on the way to its first step. So the first word goes out while the
start is still being prepared: a hint with a number, and behind it a transaction that holds a lock of that number. The
claim of a worker that heard it waits for the lock, and sees the run as soon as it is there. A hint it stays: when an
announcement fails, or nothing follows from it, that costs time and no work.
"""

import time
from contextlib import suppress
from datetime import timedelta
from random import getrandbits
from types import TracebackType
from typing import TYPE_CHECKING

import psycopg

from squid_dagster.journal.postgres.connection import Loan
from squid_dagster.journal.postgres.message import receive, send
from squid_dagster.journal.postgres.session import BEGIN, SETTINGS
from squid_dagster.protocol.errors import StorageUnavailable

if TYPE_CHECKING:
    from squid_dagster.journal.postgres.storage import PostgresStorage

WAIT_MILLISECONDS = 50  # how long a claim waits for a start
_LATE = 0.025  # seconds after which whoever waited may have given up

# A queue's name needs no more than quotes.
_ANNOUNCE = f"""{BEGIN}SELECT set_config('synchronous_commit', 'off', true),
    pg_notify('{{0.channel}}', '{{1}}:{{2}}'); COMMIT AND CHAIN; {SETTINGS}
    SELECT pg_advisory_xact_lock({{0.arrivals}}, {{2}}),
    set_config('idle_in_transaction_session_timeout', '{{3:.0f}}', true)"""


def heard(payload: str) -> tuple[str, int | None]:
    """Take a hint apart: the queue that it is about, and the number of a start if it announces one."""
    queue, _, number = payload.partition(":")
    return queue, int(number) if number.isascii() and number.isdecimal() and int(number) < 2**31 else None


class PostgresAnnouncement:
    """An `Announcement` on a connection that was at hand; what goes wrong with it is nobody's error."""

    def __init__(self, storage: "PostgresStorage", queue: str) -> None:
        """Announce a start, without waiting for the answer. Does nothing where no connection is at hand."""
        self._at = time.monotonic()
        self._loan = storage.connection_at_hand()
        if self._loan is not None:
            hold = storage.hold / timedelta(milliseconds=1)
            text = _ANNOUNCE.format(storage, queue, getrandbits(31), hold)
            try:
                send(self._loan.connection, text.encode())
            except psycopg.Error:
                self.withdraw()

    def __enter__(self) -> "PostgresAnnouncement":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.withdraw()

    def is_late(self) -> bool:
        """Tell whether workers may have given up waiting."""
        return time.monotonic() - self._at > _LATE

    def take(self) -> Loan | None:
        """Give the connection with the open transaction that workers wait for, once; None where there is none."""
        loan, self._loan = self._loan, None
        if loan is None:
            return None
        try:
            receive(loan.connection)
        except psycopg.Error:  # refused, or the server has gone: whoever starts finds out by a connection of its own
            _give_back(loan)
            return None
        except BaseException:  # a signal
            _give_back(loan)
            raise
        return loan

    def withdraw(self) -> None:
        """Give the connection back, unless somebody took it: nobody waits any longer."""
        loan = self.take()
        if loan is not None:
            _give_back(loan)


def _give_back(loan: Loan) -> None:
    with suppress(psycopg.Error, StorageUnavailable), loan:
        """Whatever is open there is rolled back."""
