"""Connections of a worker are swallowed without a word: every loop notices, goes on, and nothing is done twice."""

import threading
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage, verify
from squid_dagster.journal.network import NetworkBounds
from squid_dagster.workflow import StepContext, Workflow
from tests.journal.access import LONG, raw
from tests.runtime.workers import NEVER, all_done, facts_of, running_worker, until
from tests.servers.proxy import Proxy

SHORT = NetworkBounds(silence=0.3, confirmation=0.1, longest_pause=0.3, probe=5, connect=2)


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    """A proxy in front of the server."""
    with Proxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def far(postgres: PostgresStorage, proxy: Proxy, postgres_url: str) -> Iterator[PostgresStorage]:
    """The same journal, behind the proxy."""
    storage = PostgresStorage(proxy.url(postgres_url), postgres.schema, bounds=SHORT)
    yield storage
    storage.close()


class BlockedSteps:
    """Counts calls of steps, and lets them through once it is open."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.released = threading.Event()

    def chain(self) -> Workflow:
        """Build two steps, of which the first waits."""
        workflow = Workflow("two")

        @workflow.step
        def first(ctx: StepContext) -> int:
            self.calls[f"{ctx.run_id}:{ctx.step}"] += 1
            self.released.wait(LONG)
            return 1

        @workflow.step(after=first)
        def second(ctx: StepContext, first: int) -> int:
            self.calls[f"{ctx.run_id}:{ctx.step}"] += 1
            return first + 1

        return workflow


def each_once(blocked: BlockedSteps, storage: PostgresStorage, run_ids: list[str]) -> None:
    """Check that every step was called once and is on record once."""
    assert blocked.calls == {f"{run_id}:{step}": 1 for run_id in run_ids for step in ("first", "second")}
    for run_id in run_ids:
        assert len(facts_of(storage, run_id, "attempt_claimed")) == 2
        assert len(facts_of(storage, run_id, "attempt_completed")) == 2
        assert len(facts_of(storage, run_id, "run_terminal")) == 1
    assert verify(storage) == []


def test_a_worker_whose_connections_are_all_swallowed_goes_on_and_keeps_its_leases(
    postgres: PostgresStorage, far: PostgresStorage, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    # given steps that run longer than a lease
    blocked = BlockedSteps()
    squid = Squid(far, blocked.chain(), lease=timedelta(seconds=5))
    runs = [receipt.run_id for receipt in squid.start_many("two", [{}] * 3)]
    with running_worker(squid, concurrency=3, heartbeat=timedelta(seconds=0.3)) as working:
        until(lambda: len(blocked.calls) == 3, "the steps")
        # when every connection is dead without a word: of claims, heartbeats, committers, housekeeping and LISTEN
        proxy.swallow()
        proxy.resume()
        before = len(facts_of(postgres, runs[0], "attempt_heartbeat"))
        until(lambda: len(facts_of(postgres, runs[0], "attempt_heartbeat")) >= before + 2, "heartbeats")
        blocked.released.set()
        until(all_done(postgres, runs), "the runs")
        report = working.stop()
    # then it has noticed and said so, and everything was done once
    assert "a connection is given up: no answer from Postgres" in caplog.text
    assert (report.claimed, report.completed, report.refused) == (6, 6, 0)
    each_once(blocked, postgres, runs)


# Where in the conversation, and whether the server still gets to know.
PLACES = [
    (b"claim_attempts", True),
    (b"claim_attempts", False),
    (b"settle_runs", True),
    (b"settle_runs", False),
]


@pytest.mark.parametrize(("place", "delivered"), PLACES)
def test_an_answer_that_is_swallowed_is_applied_once(
    postgres: PostgresStorage, far: PostgresStorage, proxy: Proxy, place: bytes, delivered: bool
) -> None:
    blocked = BlockedSteps()
    blocked.released.set()
    squid = Squid(far, blocked.chain())
    run_id = Squid(postgres, blocked.chain()).start("two").run_id
    happened = proxy.swallow_after(place, delivered=delivered)
    with running_worker(squid, housekeeping=None):
        until(all_done(postgres, [run_id]), "the run")
    assert happened.is_set()
    each_once(blocked, postgres, [run_id])


@pytest.mark.parametrize("delivered", [True, False])
def test_a_start_whose_answer_is_swallowed_starts_one_run(
    postgres: PostgresStorage, far: PostgresStorage, proxy: Proxy, delivered: bool
) -> None:
    squid = Squid(far, BlockedSteps().chain())
    squid.start("two")
    happened = proxy.swallow_after(b"start_runs", delivered=delivered)
    run_id = squid.start("two").run_id
    assert happened.is_set()
    assert len(facts_of(postgres, run_id, "run_started")) == 1
    assert postgres.rows("SELECT count(*) FROM {schema}.runs") == [(2,)]
    assert verify(postgres) == []


@pytest.mark.parametrize("delivered", [True, False])
def test_a_transactional_step_whose_commit_is_swallowed_leaves_its_rows_once(
    postgres: PostgresStorage, far: PostgresStorage, proxy: Proxy, delivered: bool
) -> None:
    paid = Workflow("paid")
    table = f"{postgres.schema}.payments"

    @paid.step(transactional=True)
    def pay(connection: sqlalchemy.Connection, ctx: StepContext) -> Any:
        connection.execute(sqlalchemy.text(f"INSERT INTO {table} VALUES (:run)"), {"run": ctx.run_id})

    with raw(postgres) as connection:
        connection.execute("CREATE TABLE payments (run_id text)")
    run_id = Squid(postgres, paid).start("paid").run_id
    happened = proxy.swallow_after(b"append_entries", delivered=delivered)
    with running_worker(Squid(far, paid), housekeeping=None):
        until(all_done(postgres, [run_id]), "the run")
    assert happened.is_set()
    with raw(postgres) as connection:
        assert connection.execute("SELECT run_id FROM payments").fetchall() == [(run_id,)]
    assert facts_of(postgres, run_id, "attempt_failed") == []
    assert verify(postgres) == []


def test_an_idle_worker_whose_connections_were_swallowed_finds_the_next_run(
    postgres: PostgresStorage, far: PostgresStorage, proxy: Proxy
) -> None:
    blocked = BlockedSteps()
    blocked.released.set()
    with running_worker(Squid(far, blocked.chain()), poll=timedelta(seconds=0.2), housekeeping=NEVER):
        near = Squid(postgres, blocked.chain())
        first = near.start("two").run_id
        until(all_done(postgres, [first]), "a run")
        proxy.swallow()
        proxy.resume()
        second = near.start("two").run_id
        until(all_done(postgres, [second]), "the next run")
    each_once(blocked, postgres, [first, second])


@pytest.mark.parametrize("marker", [b"pg_catalog.version", b"hstore", b"squid_dagster.claim"])
def test_a_transactional_step_whose_first_connection_is_swallowed_is_called_once(
    postgres: PostgresStorage, far: PostgresStorage, proxy: Proxy, marker: bytes
) -> None:
    workflow, calls = Workflow("written"), list[str]()

    @workflow.step(transactional=True)
    def write(ctx: StepContext) -> None:
        calls.append(ctx.step)

    squid = Squid(far, workflow)
    run_id = squid.start("written").run_id
    far.check()
    happened = proxy.swallow_after(marker)
    squid.worker(until_idle=True)
    assert happened.is_set()
    assert calls == ["write"]
    assert len(facts_of(postgres, run_id, "attempt_completed")) == 1
