"""Postgres: answers, connections and servers are lost; entries are neither lost nor doubled."""

import signal as os_signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID, uuid4

import pytest

from squid_dagster.journal.contract.storage import Append, Checkpoint
from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.transaction import Transaction
from squid_dagster.protocol.errors import Conflict, StorageUnavailable
from tests.facts import RUN, planned, queued, scheduled, signal, started, terminal
from tests.journal.access import (
    OTHER,
    OTHER_THREAD,
    QUEUE_THREAD,
    THREAD,
    LossyProxy,
    Opener,
    all_entries,
    assert_views_agree_with_the_journal,
    at_once,
    facts_of,
    raw,
    terminate_backends,
    wait_for_a_lock,
)


def test_a_commit_whose_answer_was_lost_is_found_again_and_not_written_twice(
    lossy_proxy: LossyProxy, behind_lossy_proxy: PostgresStorage, postgres_virtual: PostgresStorage
) -> None:
    # given a connection that breaks after the database has committed, before it says so
    behind_lossy_proxy.append(THREAD, [signal()])
    lossy_proxy.lose_answer_to("COMMIT")
    commit_id = uuid4()
    # when something is committed
    receipt = behind_lossy_proxy.commit([Append(THREAD, [started()], 1), Append(QUEUE_THREAD, [queued()])], commit_id)
    # then the answer is the right one, and everything is there once
    assert lossy_proxy.lost == 1
    assert receipt == {THREAD: 2, QUEUE_THREAD: 1} == postgres_virtual.find_commit(commit_id)
    assert facts_of(all_entries(postgres_virtual)) == [signal(), started(), queued()]
    assert_views_agree_with_the_journal(postgres_virtual)


def test_an_append_whose_answer_was_lost_is_not_written_twice_even_without_a_commit_id(
    lossy_proxy: LossyProxy, behind_lossy_proxy: PostgresStorage, postgres_virtual: PostgresStorage
) -> None:
    behind_lossy_proxy.append(THREAD, [signal()])
    lossy_proxy.lose_answer_to("COMMIT")
    assert behind_lossy_proxy.append(THREAD, [started()]) == 2
    assert lossy_proxy.lost == 1
    assert facts_of(all_entries(postgres_virtual)) == [signal(), started()]


class _Forgetful(PostgresStorage):
    """A storage whose database answers no commit: the connection is cut behind each of them."""

    def _commit(self, verified: Any, touched: Any, commit_id: UUID) -> dict[str, int]:
        super()._commit(verified, touched, commit_id)
        raise StorageUnavailable("the answer was lost")


def test_a_client_that_never_hears_back_repeats_its_commit_id_later(
    postgres_virtual: PostgresStorage, postgres_url: str
) -> None:
    # given a database that loses both answers
    forgetful = _Forgetful(postgres_url, postgres_virtual.schema)
    commit_id, appends = uuid4(), [Append(THREAD, [signal()], 0)]
    with pytest.raises(StorageUnavailable):
        forgetful.commit(appends, commit_id)
    forgetful.close()
    # when the client asks again, elsewhere and later
    assert postgres_virtual.find_commit(commit_id) == {THREAD: 1}
    assert postgres_virtual.commit(appends, commit_id) == {THREAD: 1}
    # then there is one fact
    assert facts_of(all_entries(postgres_virtual)) == [signal()]


def test_an_append_whose_connection_breaks_in_the_middle_leaves_nothing_and_is_done_again(
    postgres: PostgresStorage,
) -> None:
    # given an append that waits for another one's lock
    postgres.append(THREAD, [signal()])
    with raw(postgres, autocommit=False) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SELECT FROM journal_threads WHERE id = %s FOR UPDATE", (THREAD,))
        waiting = pool.submit(postgres.append, THREAD, [started()])
        wait_for_a_lock(postgres)
        # when the server ends its session
        terminate_backends(postgres)
        wait_for_a_lock(postgres)
        other.rollback()
        # then it is done again, once
        assert waiting.result(30) == 2
    assert facts_of(all_entries(postgres)) == [signal(), started()]
    assert_views_agree_with_the_journal(postgres)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, TimeoutError])
def test_an_append_that_is_interrupted_tells_so_writes_nothing_and_leaves_the_storage_usable(
    postgres: PostgresStorage, interrupt: type[BaseException]
) -> None:
    # given an append that waits for another one's lock
    postgres.append(THREAD, [signal()])

    def stop(*_: object) -> None:
        raise interrupt

    raised: set[str] = set()
    usual = os_signal.signal(os_signal.SIGUSR1, stop)
    try:
        for _ in range(11):  # more often than the pool has connections
            with raw(postgres, autocommit=False) as other, ThreadPoolExecutor(1) as pool:
                other.execute("SELECT FROM journal_threads WHERE id = %s FOR UPDATE", (THREAD,))
                pool.submit(_interrupt_once_it_waits, postgres)
                # when its thread is interrupted, as Ctrl-C, an order to end or a timeout by signal does
                try:
                    postgres.append(THREAD, [started()])
                except BaseException as error:  # noqa: BLE001  whatever it is, it is the finding
                    raised.add(type(error).__name__)
    finally:
        os_signal.signal(os_signal.SIGUSR1, usual)
    # then that is what its caller hears, nothing was written, and the storage has all of its connections
    assert raised == {interrupt.__name__}
    assert facts_of(all_entries(postgres)) == [signal()]
    assert postgres.append(THREAD, [started()], expected_rev=1) == 2


def _interrupt_once_it_waits(storage: PostgresStorage) -> None:
    wait_for_a_lock(storage)
    os_signal.pthread_kill(threading.main_thread().ident or 0, os_signal.SIGUSR1)


_FIRST_CALLS: dict[str, Callable[[PostgresStorage], object]] = {
    "now": lambda s: s.now(),
    "commit": lambda s: s.commit([Append(OTHER_THREAD, [signal(OTHER)])]),
    "find_commit": lambda s: s.find_commit(uuid4()),
    "read": lambda s: s.read(THREAD),
    "revision": lambda s: s.revision(THREAD),
    "cut": lambda s: s.cut(),
    "read_between": lambda s: s.read_between(0, 9),
    "read_run": lambda s: s.read_run(RUN),
    "put_checkpoint": lambda s: s.put_checkpoint(THREAD, 1, "[1]"),
    "get_checkpoint": lambda s: s.get_checkpoint(THREAD),
    "delete_checkpoint": lambda s: s.delete_checkpoint(THREAD),
    "delete_thread": lambda s: s.delete_thread(OTHER_THREAD),
    "check": lambda s: s.check(),
    "upgrade": lambda s: s.upgrade(),
}


def test_whatever_is_called_first_after_the_server_cut_all_connections_works(postgres: PostgresStorage) -> None:
    postgres.append(THREAD, [signal()])
    failed: dict[str, str] = {}
    for name, call in _FIRST_CALLS.items():
        # given several pooled connections that the server has cut
        postgres.close()  # those of the last round: work on the schema has found none of them
        at_once([lambda: postgres.rows("SELECT pg_sleep(0.02)")] * 3)
        assert terminate_backends(postgres) >= 2
        # when anything is asked
        try:
            call(postgres)
        except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
            failed[name] = f"{type(error).__name__}: {error}"
    # then it works as if nothing had been
    assert failed == {}


def test_a_new_storage_on_the_same_schema_sees_everything(postgres: PostgresStorage, open_storage: Opener) -> None:
    # given a journal with something of everything
    commit_id = uuid4()
    postgres.commit([Append(THREAD, [signal(), started(), planned()]), Append(QUEUE_THREAD, [scheduled()])], commit_id)
    postgres.put_checkpoint(THREAD, 2, "[2]")
    before, cut = all_entries(postgres), postgres.cut()
    postgres.close()
    # when another process opens it
    other = open_storage()
    # then all of it is there
    assert all_entries(other) == before
    assert other.cut() == cut
    assert other.find_commit(commit_id) == {THREAD: 3, QUEUE_THREAD: 1}
    assert other.get_checkpoint(THREAD) == Checkpoint(THREAD, 2, "[2]")
    assert other.append(THREAD, [terminal()], expected_rev=3) == 4
    assert postgres.revision(THREAD) == 4


def test_a_journal_survives_its_server_and_so_does_the_storage_that_was_open_on_it(
    own_server: EmbeddedPostgres, open_storage: Opener
) -> None:
    # given a storage that has written to a server
    storage = open_storage(own_server.ensure_running())
    storage.upgrade()
    storage.append(THREAD, [signal(), started()])
    before, cut = all_entries(storage), storage.cut()
    # when the server stops
    own_server.stop()
    with pytest.raises(StorageUnavailable):
        storage.append(THREAD, [planned()])
    with pytest.raises(StorageUnavailable):
        storage.read(THREAD)
    with pytest.raises(StorageUnavailable):
        storage.check()
    # and starts again
    own_server.ensure_running()
    # then the same storage goes on by itself, and nothing is lost or doubled
    assert all_entries(storage) == before
    assert storage.cut() == cut
    assert storage.append(THREAD, [planned()], expected_rev=2) == 3
    assert all_entries(storage)[-1].position > cut
    assert_views_agree_with_the_journal(storage)


def test_a_failed_transaction_gives_its_connection_back_clean(postgres: PostgresStorage) -> None:
    for _ in range(20):
        with pytest.raises(Conflict):
            postgres.append(THREAD, [signal()], expected_rev=9)
    with raw(postgres) as connection:
        held = connection.execute(
            "SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) "
            "WHERE application_name = 'squid_dagster' AND l.locktype = 'advisory'"
        ).fetchone()
        open_ = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'squid_dagster' AND state <> 'idle'"
        ).fetchone()
    assert held == open_ == (0,)
    assert postgres.append(THREAD, [signal()]) == 1


def test_a_transaction_that_is_left_without_writing_leaves_nothing(postgres: PostgresStorage) -> None:
    from squid_dagster.journal.postgres.views.row_changes import LockTargets

    with postgres.transaction() as transaction:
        assert isinstance(transaction, Transaction)
        transaction.lock(LockTargets({RUN}))
    assert all_entries(postgres) == []
    assert postgres.append(THREAD, [signal()], expected_rev=0) == 1
