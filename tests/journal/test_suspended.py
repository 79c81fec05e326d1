"""A process that stops in the middle of an append, with its locks held, does not hold the others up for ever."""

from datetime import timedelta

import psycopg
import pytest

from squid_dagster.journal import PostgresStorage, verify
from squid_dagster.journal.postgres.units import Touched
from squid_dagster.journal.storage import Append, check_appends
from squid_dagster.protocol.errors import StorageUnavailable
from tests.facts import RUN, signal, started

THREAD = f"squid:run:{RUN}"


def test_others_go_on_once_a_quiet_writer_has_lost_its_locks(postgres_url: str, postgres: PostgresStorage) -> None:
    # given a writer that took its locks and went quiet
    postgres.append(THREAD, [started()])
    quiet = PostgresStorage(postgres_url, postgres.schema, hold=timedelta(milliseconds=200))
    verified = check_appends([Append(THREAD, [signal(payload={"from": "quiet"})])], 1000)
    transaction = quiet.transaction()
    opened = transaction.__enter__()
    units = opened.lock(Touched({RUN}))
    units.fold(verified)

    # when somebody else writes to the same run, it gets through
    assert postgres.append(THREAD, [signal(payload={"from": "other"})]) == 2

    # then the quiet one, awake again, has lost its turn and writes nothing
    with pytest.raises(psycopg.OperationalError) as lost:
        opened.write(verified, units, None)
    with pytest.raises(StorageUnavailable):
        transaction.__exit__(type(lost.value), lost.value, None)
    # and its next append is as good as any
    assert quiet.append(THREAD, [signal(payload={"from": "quiet"})]) == 3
    assert verify(postgres) == []
    quiet.close()
