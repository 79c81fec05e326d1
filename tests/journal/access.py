"""What the suites of the journal share: readers of a journal from outside, and a proxy that loses answers."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, LiteralString
from uuid import uuid4

import psycopg
from hypothesis import Phase
from psycopg import sql
from sqlalchemy import make_url

from squid_dagster.journal.contract.storage import Append, Storage, check_appends
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views import rows
from squid_dagster.journal.postgres.views.row_changes import LockTargets
from squid_dagster.protocol import BACKLOG_THREAD, Entry, Fact, MalformedFact, RunUnit, to_json
from squid_dagster.testing.example_facts import *  # noqa: F403  what the storage contract needs, too

# A failing example on a shared journal is not shrunk: another try would meet what the first one left.
WITHOUT_SHRINKING = (Phase.explicit, Phase.generate)

LONG = 30.0
"""Seconds: a wait takes so long only if something is broken."""


Opener = Callable[..., PostgresStorage]
"""Opens a storage: `open_storage(url, schema_name, **options)`."""


# --- reading a journal ----------------------------------------------------------------------------------------------


def as_json(entry: Entry) -> str:
    """Return the entry's fact as JSON text; one that cannot be read fails the test."""
    assert not isinstance(entry.fact, MalformedFact)
    return to_json(entry.fact)


def plant(storage: PostgresStorage, facts: Sequence[Fact]) -> int:
    """Write facts about cards past the backlog, which leaves their table as it is. Return the last number."""
    with storage.transaction() as transaction:
        units = transaction.lock(LockTargets())
        verified = check_appends([Append(BACKLOG_THREAD, facts)], storage.max_fact_bytes)
        return transaction.write(verified, units.changes(), uuid4())[BACKLOG_THREAD]


def append_one(storage: Storage, fact: Fact) -> int:
    """Append one fact, whatever it is about; return its sequence number."""
    if fact.thread == BACKLOG_THREAD and isinstance(storage, PostgresStorage):
        return plant(storage, [fact])
    return storage.append(fact.thread, [fact])


@contextmanager
def raw(storage: PostgresStorage, *, autocommit: bool = True) -> Iterator[psycopg.Connection[Any]]:
    """Open a connection of the test's own to the journal's database, with its schema in the search path."""
    with psycopg.connect(plain_url(storage.engine.url.render_as_string(hide_password=False))) as connection:
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(storage.schema)))
        connection.commit()
        connection.autocommit = autocommit
        yield connection
        if not autocommit:
            connection.rollback()


def eventually(true: Callable[[], bool]) -> None:
    """Return once the condition holds."""
    deadline = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < deadline, "it never became so"
        time.sleep(0.01)


def plain_url(url: str) -> str:
    """Return the URL as psycopg itself takes it."""
    return url.replace("postgresql+psycopg://", "postgresql://", 1)


def terminate_backends(storage: PostgresStorage) -> int:
    """Terminate every connection that the storage holds open; return how many there were."""
    with raw(storage) as connection:
        terminated = connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'squid_dagster'"
        ).fetchall()
    return len(terminated)


def wait_for_a_lock(storage: PostgresStorage, least: int = 1) -> None:
    """Return once so many statements are waiting for a lock of another session."""
    deadline = time.monotonic() + 30
    with raw(storage) as connection:
        while True:
            waiting = connection.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone()
            if waiting is not None and waiting[0] >= least:
                return
            assert time.monotonic() < deadline, "nobody waits"


def assert_views_agree_with_the_journal(storage: PostgresStorage, run_ids: Sequence[str] | None = None) -> None:
    """Assert that the rows of runs, attempts, children and anomalies equal a fold of the journal, column by column."""
    wanted = None if run_ids is None else list(run_ids)
    with raw(storage) as connection:

        def look(table: LiteralString) -> list[rows.Row]:
            text = sql.SQL("SELECT to_json(x) FROM {} x WHERE run_id = ANY (coalesce(%s, ARRAY[run_id]))")
            return [row for (row,) in connection.execute(text.format(sql.Identifier(table)), (wanted,))]

        known, attempts, children, anomalies = look("runs"), look("attempts"), look("children"), look("anomalies")
        if wanted is None:
            wanted = [run for (run,) in connection.execute("SELECT DISTINCT run_id FROM journal_entries") if run]
    assert {row["run_id"] for row in known} == set(wanted)
    for run_id in wanted:
        entries = storage.read_run(run_id)
        unit = RunUnit.fold(entries)
        assert [rows.normalized("runs", row) for row in known if row["run_id"] == run_id] == [
            rows.run_row(run_id, unit, entries[0].position)
        ]
        keys = set() if unit.run.terminal else {*unit.dispatch.attempts, *unit.run.planned}
        assert {
            row["runnable_key"]: rows.normalized("attempts", row) for row in attempts if row["run_id"] == run_id
        } == {key: rows.attempt_row(run_id, key, unit) for key in keys}
        assert {row["child_run_id"]: row["digest"] for row in children if row["run_id"] == run_id} == {
            child: link.digest for child, link in unit.run.children.items()
        }
        actual = [
            (a["position"], a["thread"], a["seq"], a["reason"], a["subject"])
            for a in sorted(anomalies, key=lambda a: (a["position"], a["ordinal"]))
            if a["run_id"] == run_id
        ]
        assert actual == [(a.position, a.thread, a.seq, a.reason.value, a.subject) for a in unit.anomalies]


# --- many at once ---------------------------------------------------------------------------------------------------


# --- lost answers ---------------------------------------------------------------------------------------------------

_READY = b"Z\x00\x00\x00\x05"  # the server's ReadyForQuery; the next byte is the state of the transaction


class LossyProxy:
    """A proxy to the server that can drop its connection once: after the server has executed, before it answers."""

    def __init__(self, url: str) -> None:
        """Listen on a port of the loopback; nothing breaks before `lose_answer_to`."""
        target = make_url(url)
        self._target = f"{target.query['host']}/.s.PGSQL.{target.query['port']}"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._marker: bytes | None = None
        self._end = _READY
        self.lost = 0
        port = self._listener.getsockname()[1]
        self.url = f"postgresql+psycopg://{target.username}@127.0.0.1:{port}/{target.database}?sslmode=disable"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def lose_answer_to(self, marker: str, *, in_transaction: bool = False) -> None:
        """Drop the connection once the server has answered the next request that holds this text.

        That is when its transaction has ended, unless the request is to leave it open.
        """
        self._marker = marker.encode()
        self._end = _READY + (b"T" if in_transaction else b"I")

    def cut(self) -> None:
        """Break all existing connections: the server goes on with its statements, and new connections can be opened."""
        for one in self._sockets[1::2]:  # the clients' ends
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Break all connections and stop listening."""
        for one in list(self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(10)
        for one in self._sockets:
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                self._sockets += [client, server]
                doomed = threading.Event()
                for pump in (self._ask, self._answer):
                    thread = threading.Thread(target=pump, args=(client, server, doomed), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _ask(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self._marker is not None and self._marker in data:
                    self._marker = None
                    doomed.set()
                server.sendall(data)
            server.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        tail = b""
        with suppress(OSError):
            while data := server.recv(65536):
                tail = tail[-100:] + data
                if not doomed.is_set():
                    client.sendall(data)
                elif tail.endswith(self._end):
                    self.lost += 1
                    break
            for one in (client, server):
                one.shutdown(socket.SHUT_RDWR)
