"""Announced starts: a claim waits for the run that it was told of; and whatever goes wrong is nobody's error."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.postgres import announcing, dispatch
from squid_dagster.journal.postgres.announcing import PostgresAnnouncement, heard
from squid_dagster.journal.postgres.connection import make_engine
from squid_dagster.journal.postgres.schema import lock_number
from squid_dagster.protocol.errors import InvalidPayload, InvalidThread
from squid_dagster.runtime.starting import prepare_start, start_run
from squid_dagster.workflow import Workflow
from tests.journal.contract import eventually, raw

_WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory' AND classid::bigint = %s"
_IS_THERE = "SELECT pid FROM pg_stat_activity WHERE pid = %s"
_IN_TRANSACTION = """SELECT pid FROM pg_stat_activity
    WHERE application_name = 'squid_dagster' AND datname = current_database() AND state LIKE 'idle in transaction%%'"""


class Order(BaseModel):
    n: int


def orders() -> Workflow:
    workflow = Workflow("orders", payload=Order)

    @workflow.step
    def only(n: int) -> int:
        return n

    return workflow


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start is announced, however many came before it; and a claim waits for as long as a test may take."""
    monkeypatch.setattr(announcing, "_LATE", 3600.0)
    monkeypatch.setattr(dispatch, "_QUIET", 0.0)
    monkeypatch.setattr(dispatch, "WAIT_MILLISECONDS", 60_000)


@pytest.fixture
def squid(postgres: PostgresStorage) -> Squid:
    """One that has started a run before: a connection is at hand, and the database's time is known."""
    made = Squid(postgres, orders())
    run_id = made.start("orders", {"n": 0}).run_id
    assert [claim.ref.run_id for claim in made.runtime.dispatch.claim("default", "w")] == [run_id]
    return made


@pytest.fixture
def hints(postgres: PostgresStorage) -> Iterator["Hints"]:
    with raw(postgres) as connection:
        connection.execute(f'LISTEN "{postgres.channel}"'.encode())
        yield Hints(connection)


class Hints:
    """What is said on the channel of hints."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def next(self) -> str:
        return next(self._connection.notifies(timeout=60, stop_after=1)).payload

    def number(self) -> int:
        queue, number = heard(self.next())
        assert queue == "default"
        assert number is not None
        return number

    def rest(self) -> list[str]:
        return [notice.payload for notice in self._connection.notifies(timeout=0)]


def claim_in_thread(squid: Squid, number: int, pool: ThreadPoolExecutor) -> Future[Any]:
    """Let a thread claim; return when its claim waits in the database."""
    storage = squid.runtime.storage
    assert isinstance(storage, PostgresStorage)
    claims = pool.submit(squid.runtime.dispatch.claim, "default", "w", limit=5, after=number)
    kind = lock_number(storage.schema, "arrivals") & 0xFFFFFFFF
    eventually(lambda: claims.done() or storage.rows(_WAITING, kind)[0][0] == 1)
    assert not claims.done()
    return claims


def sessions_in_transaction(storage: PostgresStorage) -> list[int]:
    with raw(storage) as connection:
        return [pid for (pid,) in connection.execute(_IN_TRANSACTION)]


def test_a_claim_waits_for_the_start_that_was_announced_and_gets_it(squid: Squid, hints: Hints) -> None:
    with ThreadPoolExecutor() as pool, squid.runtime.dispatch.announce("default") as announced:
        claims = claim_in_thread(squid, hints.number(), pool)
        receipt = start_run(squid.runtime, prepare_start(squid.runtime, "orders", {"n": 1}), announced)
        assert [claim.ref.run_id for claim in claims.result(60)] == [receipt.run_id]
    assert hints.rest() == [], "one word is enough"


def test_a_start_announces_itself(squid: Squid, hints: Hints) -> None:
    squid.start("orders", {"n": 1})
    assert hints.number() >= 0
    assert hints.rest() == []


def test_starts_in_a_row_are_not_announced_one_by_one(
    squid: Squid, hints: Hints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_QUIET", 3600.0)
    squid.start("orders", {"n": 1})
    assert hints.next() == "default"


def test_a_claim_gives_up_waiting_and_claims_what_is_there(
    squid: Squid, hints: Hints, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = squid.start("orders", {"n": 1}).run_id
    hints.number()
    monkeypatch.setattr(dispatch, "WAIT_MILLISECONDS", 1)
    with squid.runtime.dispatch.announce("default"):
        number = hints.number()
        claims = squid.runtime.dispatch.claim("default", "w", limit=5, after=number)
        assert [claim.ref.run_id for claim in claims] == [run_id]
        assert squid.runtime.dispatch.claim("default", "w", after=number) == []


def test_a_start_that_is_refused_leaves_nobody_waiting_and_no_transaction_open(squid: Squid, hints: Hints) -> None:
    storage = squid.runtime.storage
    assert isinstance(storage, PostgresStorage)
    before = len(squid.list_runs().runs)
    for _ in range(20):
        with pytest.raises(InvalidPayload):
            squid.start("orders", {"n": "many"})
        assert squid.runtime.dispatch.claim("default", "w", after=hints.number()) == []
    assert len(squid.list_runs().runs) == before
    assert sessions_in_transaction(storage) == []
    assert storage.engine.pool.checkedout() <= 2  # type: ignore[attr-defined]  # a pool with a queue
    squid.start("orders", {"n": 1})
    assert len(squid.runtime.dispatch.claim("default", "w", after=hints.number())) == 1


def test_a_start_that_takes_the_longer_way_lets_nobody_wait_for_the_announcement(squid: Squid, hints: Hints) -> None:
    with ThreadPoolExecutor() as pool, squid.runtime.dispatch.announce("default") as announced:
        claims = claim_in_thread(squid, hints.number(), pool)
        start = prepare_start(squid.runtime, "orders", {"n": 1}, options={"comment": "by hand"})
        receipt = start_run(squid.runtime, start, announced)
        found = claims.result(60)  # before the start is written, or after
    assert hints.next() == "default"
    found += squid.runtime.dispatch.claim("default", "w")
    assert [claim.ref.run_id for claim in found] == [receipt.run_id]


def test_a_session_that_is_cut_off_after_the_announcement_costs_nothing(squid: Squid, hints: Hints) -> None:
    storage = squid.runtime.storage
    assert isinstance(storage, PostgresStorage)
    with ThreadPoolExecutor() as pool, squid.runtime.dispatch.announce("default") as announced:
        claims = claim_in_thread(squid, hints.number(), pool)
        (pid,) = sessions_in_transaction(storage)
        with raw(storage) as connection:
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))
        assert claims.result(60) == [], "the lock went with its session"
        receipt = start_run(squid.runtime, prepare_start(squid.runtime, "orders", {"n": 1}), announced)
    assert hints.next() == "default"
    assert [claim.ref.run_id for claim in squid.runtime.dispatch.claim("default", "w", limit=5)] == [receipt.run_id]


def test_a_process_that_goes_quiet_after_the_announcement_loses_its_session_and_no_start(
    postgres: PostgresStorage,
) -> None:
    url = postgres.engine.url.render_as_string(hide_password=False)
    storage = PostgresStorage(url, postgres.schema, hold=timedelta(milliseconds=50))
    squid = Squid(storage, orders())
    squid.start("orders", {"n": 0})
    session = storage.rows("SELECT pg_backend_pid()")[0][0]  # of the connection at hand
    assert postgres.rows(_IS_THERE, session) != []
    with squid.runtime.dispatch.announce("default") as announced:
        eventually(lambda: postgres.rows(_IS_THERE, session) == [])
        receipt = start_run(squid.runtime, prepare_start(squid.runtime, "orders", {"n": 1}), announced)
    assert squid.inspect_run(receipt.run_id).status == "running"
    assert len(squid.list_runs().runs) == 2
    storage.close()


def test_an_announcement_that_is_refused_does_not_refuse_the_start(
    squid: Squid, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given hints that Postgres refuses: a channel's name has at most 63 bytes
    monkeypatch.setattr(squid.runtime.storage, "channel", "x" * 100)
    run_id = squid.start("orders", {"n": 1}).run_id
    assert [claim.ref.run_id for claim in squid.runtime.dispatch.claim("default", "w", limit=5)] == [run_id]
    assert "cannot notify workers" in caplog.text


def test_workers_are_told_again_of_a_start_that_came_late(
    squid: Squid, hints: Hints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "_LATE", 0.025)
    storage = squid.runtime.storage
    assert isinstance(storage, PostgresStorage)
    with ThreadPoolExecutor() as pool, squid.runtime.dispatch.announce("default") as announced:
        hints.number()
        with raw(storage, autocommit=False) as connection:  # as a rebuild of the views keeps writers waiting
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number(storage.schema, "gate"),))
            start = prepare_start(squid.runtime, "orders", {"n": 1})
            receipt = pool.submit(start_run, squid.runtime, start, announced)
            eventually(lambda: announced is not None and announced.is_late())
            assert not receipt.done()
        assert receipt.result(60).run_id == start.run_id
    assert hints.next() == "default"


def test_a_bad_queue_is_refused_by_the_start_and_not_announced(squid: Squid, hints: Hints) -> None:
    for queue in ("a:b", "x'y", "", 7):
        with pytest.raises(InvalidThread, match="queue"):
            squid.start("orders", {"n": 1}, queue=queue)  # type: ignore[arg-type]  # 7 is no text
    assert hints.rest() == []


def test_where_no_connection_is_kept_starts_are_told_of_as_ever(squid: Squid, hints: Hints) -> None:
    storage = squid.runtime.storage
    assert isinstance(storage, PostgresStorage)
    theirs = PostgresStorage(make_engine(storage.engine.url.render_as_string(hide_password=False)), storage.schema)
    other = Squid(theirs, orders())
    for n in range(2):
        other.start("orders", {"n": n})
        assert hints.next() == "default"
    theirs.close()


def test_an_announcement_is_used_once(squid: Squid, hints: Hints) -> None:
    with squid.runtime.dispatch.announce("default") as announced:
        assert isinstance(announced, PostgresAnnouncement)
        loan = announced.take()
        assert loan is not None
        assert announced.take() is None
        announced.withdraw()
        with loan as connection:
            # then it is an ordinary transaction: what is committed in it is on the disk
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    assert hints.number() >= 0


@given(st.text())
def test_any_payload_can_be_taken_apart(payload: str) -> None:
    queue, number = heard(payload)
    assert payload.startswith(queue)
    assert number is None or 0 <= number < 2**31


@given(st.from_regex(r"[a-z][a-z0-9_.-]{0,20}", fullmatch=True), st.integers(0, 2**31 - 1))
def test_what_is_announced_is_heard(queue: str, number: int) -> None:
    assert heard(queue) == (queue, None)
    assert heard(f"{queue}:{number}") == (queue, number)
