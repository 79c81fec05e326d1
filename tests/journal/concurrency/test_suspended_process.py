"""A process that stops in the middle of an append, with its locks held, does not hold the others up for ever."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from squid_dagster.journal import PostgresStorage, verify
from squid_dagster.journal.contract.storage import Append, check_appends
from squid_dagster.journal.postgres.transaction import Transaction
from squid_dagster.journal.postgres.views.row_changes import LockTargets
from squid_dagster.protocol import RunSignalReceived
from squid_dagster.protocol.errors import StorageUnavailable
from tests.facts import RUN, signal, started
from tests.journal.access import facts_of

THREAD = f"squid:run:{RUN}"


def test_others_go_on_once_a_quiet_writer_has_lost_its_locks(postgres_url: str, postgres: PostgresStorage) -> None:
    # given a writer that took its locks and went quiet
    postgres.append(THREAD, [started()])
    quiet = PostgresStorage(postgres_url, postgres.schema, hold=timedelta(milliseconds=200))
    verified = check_appends([Append(THREAD, [signal(payload={"from": "quiet"})])], 1000)
    transaction = quiet.transaction()
    opened = transaction.__enter__()
    units = opened.lock(LockTargets({RUN}))
    units.fold(verified)

    # when another session writes to the same run, it gets through
    assert postgres.append(THREAD, [signal(payload={"from": "other"})]) == 2

    # then the quiet one, awake again, has lost its turn and writes nothing
    with pytest.raises(psycopg.Error) as lost:
        opened.write(verified, units.changes(), None)
    with pytest.raises(StorageUnavailable):
        transaction.__exit__(type(lost.value), lost.value, None)
    # and its next append is as good as any
    assert quiet.append(THREAD, [signal(payload={"from": "quiet"})]) == 3
    assert verify(postgres) == []
    quiet.close()


class _Sleeper(PostgresStorage):
    """A storage whose process is suspended between lock and write, the first time."""

    other: PostgresStorage

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        with super().transaction() as transaction:
            usual = transaction.write

            def write(*arguments: Any, **options: Any) -> dict[str, int]:
                if self.other.revision(THREAD) == 1:
                    assert self.other.append(THREAD, [signal(payload={"from": "other"})]) == 2
                return usual(*arguments, **options)

            transaction.write = write  # type: ignore[method-assign]
            yield transaction


def test_a_writer_that_lost_its_turn_takes_the_next_one_and_writes_once(
    postgres_url: str, postgres: PostgresStorage
) -> None:
    postgres.append(THREAD, [started()])
    sleeper = _Sleeper(postgres_url, postgres.schema, hold=timedelta(milliseconds=200))
    sleeper.other = postgres

    assert sleeper.append(THREAD, [signal(payload={"from": "sleeper"})]) == 3

    facts = facts_of(postgres.read(THREAD, after=1))
    payloads = [fact.payload for fact in facts if isinstance(fact, RunSignalReceived)]
    assert payloads == [{"from": "other"}, {"from": "sleeper"}]
    assert verify(postgres) == []
    sleeper.close()
