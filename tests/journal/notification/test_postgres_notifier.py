"""Wakeups by Postgres: debounced and never lost, from any process, over broken connections; no thread is left."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest
from psycopg import sql

from squid_dagster.journal import PostgresNotifier, PostgresStorage
from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.journal.postgres.notification.listener import ListenerTimes
from squid_dagster.journal.postgres.notification.notifier import Sender, Wakeup
from squid_dagster.protocol.errors import InvalidArgument
from tests.journal.access import LONG, Opener, eventually, plain_url, raw
from tests.processes import Child, children

A, B = Wakeup("c", "a"), Wakeup("c", "b")


def sessions(storage: PostgresStorage) -> list[int]:
    """Return the server's processes that listeners are connected to."""
    with raw(storage) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'squid_dagster listener'"
        ).fetchall()
    return [pid for (pid,) in rows]


def no_threads() -> bool:
    """Return whether neither listeners nor senders are left."""
    return not [thread for thread in threading.enumerate() if thread.name.startswith("squid-")]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """No test leaves a thread behind."""
    yield
    eventually(no_threads)


@pytest.fixture
def notifier(postgres: PostgresStorage) -> Iterator[PostgresNotifier]:
    """A notifier that has sent everything before its storage is closed."""
    with closing(PostgresNotifier(postgres)) as made:
        yield made


# --- sending --------------------------------------------------------------------------------------------------------


class RecordingSend:
    """Records wakeups instead of sending them; waits for `go_on`."""

    def __init__(self) -> None:
        self.sent: list[list[Wakeup]] = []
        self.works = True
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __call__(self, hints: list[Wakeup]) -> bool:
        self.sent.append(hints)
        self.begun.set()
        assert self.go_on.wait(LONG)
        return self.works


@pytest.fixture
def send() -> RecordingSend:
    """A send that does not wait."""
    made = RecordingSend()
    made.go_on.set()
    return made


def test_what_comes_while_one_is_sent_becomes_one_more(send: RecordingSend) -> None:
    send.go_on.clear()
    sender = Sender(send, 0.001)
    first = threading.Thread(target=sender.add, args=([A],))
    first.start()
    assert send.begun.wait(LONG)
    # it may have been sent before this was written: it must be sent again, and once is enough
    for _ in range(1000):
        sender.add([A])
    send.go_on.set()
    first.join(LONG)
    sender.flush(LONG)
    assert send.sent == [[A], [A]]


def test_what_comes_within_the_window_is_sent_after_it(send: RecordingSend) -> None:
    sender = Sender(send, 0.3)
    sender.add([A])
    assert send.begun.wait(LONG)
    sender.add([A])
    sender.add([A, B])
    sender.flush(LONG)
    # the other one did not have to wait for it
    assert send.sent == [[A], [B], [A]]


def test_all_that_is_there_is_sent_together(send: RecordingSend) -> None:
    sender = Sender(send, 0.001)
    sender.add([A, B, A])
    sender.flush(LONG)
    assert send.sent == [[A, B]]
    assert no_threads()


def test_whoever_asks_is_told_that_it_was_sent_unless_it_was_not(send: RecordingSend) -> None:
    calls: list[str] = []
    sender = Sender(send, 0.001)
    sender.add([A], lambda: calls.append("first"))
    sender.flush(LONG)
    send.works = False
    sender.add([A], lambda: calls.append("second"))
    sender.flush(LONG)
    assert calls == ["first"]


def test_nothing_to_send_starts_nothing(send: RecordingSend) -> None:
    Sender(send, 0.001).add([])
    assert no_threads()
    assert send.sent == []


def test_a_notifier_that_cannot_reach_the_database_warns_once_and_says_no_secret(
    open_storage: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    storage = open_storage("postgresql://me:s3cret@127.0.0.1:1/db?connect_timeout=1")
    notifier = PostgresNotifier(storage)
    for queue in ("default", "slow"):
        notifier.notify([queue])
        notifier.close()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "s3cret" not in caplog.text


def test_a_hint_is_sent_outside_of_any_transaction_of_the_caller(
    postgres: PostgresStorage, notifier: PostgresNotifier
) -> None:
    with closing(notifier.listen(["default"])) as listener, raw(postgres, autocommit=False) as connection:
        assert listener.wait(LONG)
        connection.execute("SELECT pg_current_xact_id()")
        notifier.notify(["default"])
        assert listener.wait(LONG)


# --- between processes ----------------------------------------------------------------------------------------------


def test_a_thousand_hints_from_four_processes_wake_seldom_and_the_last_is_never_lost(
    postgres: PostgresStorage, notifier: PostgresNotifier, postgres_url: str
) -> None:
    with raw(postgres) as connection:
        connection.execute("CREATE TABLE counter AS SELECT 0 AS n")
    seen = woken = 0
    with closing(notifier.listen(["default"])) as listener, children() as writers:
        assert listener.wait(LONG)
        writers += [
            Child("tests.journal.notification.notifier_processes", "write", postgres_url, postgres.schema, "250")
            for _ in range(4)
        ]
        # a reader that reads only after a wakeup reads everything in the end
        while seen < 1000:
            assert listener.wait(LONG), f"nobody told about what came after {seen}"
            woken += 1
            ((seen,),) = postgres.rows("SELECT n FROM {schema}.counter")
        assert [writer.end() for writer in writers] == [0] * 4
    assert woken <= 1000


def test_what_is_said_while_the_interpreter_ends_is_said(
    postgres: PostgresStorage, notifier: PostgresNotifier, postgres_url: str
) -> None:
    with closing(notifier.listen(["default"])) as listener, children() as processes:
        assert listener.wait(LONG)
        processes.append(
            Child("tests.journal.notification.notifier_processes", "last_words", postgres_url, postgres.schema, "0")
        )
        assert listener.wait(LONG)
        assert (processes[0].end(), processes[0].errors()) == (0, "")


def test_a_process_that_is_killed_leaves_nothing(
    postgres: PostgresStorage, notifier: PostgresNotifier, postgres_url: str
) -> None:
    with children() as processes:
        listening = Child("tests.journal.notification.notifier_processes", "listen", postgres_url, postgres.schema, "0")
        processes.append(listening)
        listening.wait_for_lines(1)
        notifier.notify(["default"])
        listening.wait_for_lines(2)
        assert listening.lines == ["heard", "heard"]
        assert len(sessions(postgres)) == 1
        listening.kill()
        eventually(lambda: sessions(postgres) == [])
        notifier.notify(["default"])


# --- listening ------------------------------------------------------------------------------------------------------


def test_schemas_do_not_hear_each_other(
    postgres: PostgresStorage, notifier: PostgresNotifier, open_storage: Opener
) -> None:
    other = open_storage(name=f"{postgres.schema}_b")
    with closing(notifier.listen(["default"])) as listener:
        assert listener.wait(LONG)
        beside = PostgresNotifier(other)
        beside.notify(["default"])
        beside.close()
        assert not listener.wait(0.2)


def test_a_closed_listener_leaves_no_thread_and_no_session(
    postgres: PostgresStorage, notifier: PostgresNotifier
) -> None:
    listeners = [notifier.listen(["default"]) for _ in range(3)]
    assert all(listener.wait(LONG) for listener in listeners)
    eventually(lambda: len(sessions(postgres)) == 3)
    # also one that has not had the time to connect
    listeners.append(notifier.listen(["default"]))
    for listener in listeners:
        listener.close()
    notifier.close()
    assert no_threads()
    eventually(lambda: sessions(postgres) == [])


def test_a_listener_takes_no_connection_from_the_pool(postgres: PostgresStorage, notifier: PostgresNotifier) -> None:
    # more than the pool has
    listeners = [notifier.listen(["default"]) for _ in range(12)]
    assert all(listener.wait(LONG) for listener in listeners)
    notifier.notify(["default"])
    assert all(listener.wait(LONG) for listener in listeners)
    for listener in listeners:
        listener.close()
    notifier.close()
    assert postgres.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_a_session_that_the_server_ends_is_replaced_and_whoever_waits_is_woken(
    postgres: PostgresStorage, notifier: PostgresNotifier
) -> None:
    with closing(notifier.listen(["default"])) as listener:
        assert listener.wait(LONG)
        for _ in range(3):
            eventually(lambda: len(sessions(postgres)) == 1)
            (before,) = sessions(postgres)
            with raw(postgres) as connection:
                connection.execute("SELECT pg_terminate_backend(%s, 5000)", (before,))
            # it may have missed something
            assert listener.wait(LONG)
            assert before not in sessions(postgres)
            # and hears again
            notifier.notify(["default"])
            assert listener.wait(LONG)


def test_a_server_that_does_not_answer_is_left_for_a_new_connection(postgres: PostgresStorage) -> None:
    # given a listener that asks often, and is answered
    impatient = PostgresNotifier(postgres, patience=ListenerTimes(quiet=0.05, answer=0.5))
    with closing(impatient) as notifier, closing(notifier.listen(["default"])) as listener:
        assert listener.wait(LONG)
        eventually(lambda: len(sessions(postgres)) == 1)
        assert not listener.wait(0.5)
        # when its session hangs, without a word and without an end
        (hanging,) = sessions(postgres)
        os.kill(hanging, signal.SIGSTOP)
        try:
            # then it finds another
            assert listener.wait(LONG)
            notifier.notify(["default"])
            assert listener.wait(LONG)
        finally:
            os.kill(hanging, signal.SIGCONT)


def test_a_server_that_restarts_is_found_again(
    own_server: EmbeddedPostgres, open_storage: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    storage = open_storage(own_server.url)
    with closing(PostgresNotifier(storage)) as notifier, closing(notifier.listen(["default"])) as listener:
        assert listener.wait(LONG)
        own_server.stop()
        assert not listener.wait(0.5)
        own_server.ensure_running()
        assert listener.wait(LONG)
        notifier.notify(["default"])
        assert listener.wait(LONG)
    # one log line, however often it was tried
    listening = [record for record in caplog.records if record.name.endswith("listener")]
    assert [record.levelno for record in listening] == [logging.WARNING]


def test_one_that_cannot_connect_waits_and_warns_once_and_says_no_secret(
    open_storage: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    storage = open_storage("postgresql://me:s3cret@127.0.0.1:1/db?connect_timeout=1")
    with closing(PostgresNotifier(storage)) as notifier, closing(notifier.listen(["default"])) as listener:
        assert not listener.wait(1)
        listener.wake()
        assert listener.wait(0)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "s3cret" not in caplog.text


@pytest.fixture
def other_database_url(postgres_url: str, schema: str) -> Iterator[str]:
    """The URL of another database: a listener there receives nothing from here, as behind a transaction pooler."""
    url = plain_url(postgres_url)
    name = sql.Identifier(f"elsewhere_{schema}")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        yield url.replace("/postgres?", f"/elsewhere_{schema}?")
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def test_one_that_is_deaf_notices_warns_once_and_goes_by_timeouts(
    postgres: PostgresStorage, other_database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    patience = ListenerTimes(quiet=0.05, answer=5, echo=0.2, rest=0.2)
    misled = PostgresNotifier(postgres, listen_url=other_database_url, patience=patience)
    with closing(misled) as notifier, closing(notifier.listen(["default"])) as listener:
        # it wakes up more than once, and checks whether a wakeup was missed
        assert [listener.wait(LONG) for _ in range(3)] == [True] * 3
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "listen_url" in record.message


def test_one_with_a_url_of_its_own_hears(postgres: PostgresStorage, postgres_url: str) -> None:
    direct = PostgresNotifier(
        postgres, listen_url=plain_url(postgres_url), patience=ListenerTimes(quiet=0.05, echo=0.5)
    )
    with closing(direct) as notifier, closing(notifier.listen(["default"])) as listener:
        assert listener.wait(LONG)
        # longer than it takes to find out that it receives nothing
        assert not listener.wait(1)
        notifier.notify(["default"])
        assert listener.wait(LONG)


def test_a_url_that_is_none_is_refused(postgres: PostgresStorage) -> None:
    with pytest.raises(InvalidArgument):
        PostgresNotifier(postgres, listen_url="mysql://somewhere")
