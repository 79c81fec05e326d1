"""Plans that were made while tables were empty: what an operation reads must not depend on what statistics say."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import psycopg
import pytest
from pydantic import BaseModel
from sqlalchemy import make_url

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.contract.dispatch_store import (
    DEFAULT_LEASE,
    Claim,
    Completed,
    Deferred,
    Failed,
    NextAttempt,
    Outcome,
    Settlement,
)
from squid_dagster.runtime.leases.claim_by_key import claim_item
from squid_dagster.workflow import StepContext, Workflow
from tests.journal.access import plain_url, raw

WIDTH, TIMES, MOST = 400, 10, 120
"""Siblings, children and runs that are there; operations that are measured; rows that one of them may read."""

# The journal's entries are left out: a process reads the thread of a run that it does not know, once.
_READ = """SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0), coalesce(sum(i.read), 0)
    FROM pg_stat_user_tables t LEFT JOIN LATERAL (
        SELECT sum(idx_tup_read) AS read FROM pg_stat_user_indexes i WHERE i.relid = t.relid) i ON true
   WHERE schemaname = current_schema AND relname <> 'journal_entries'"""


class Keys(BaseModel):
    """The children of a run."""

    keys: list[str]


def fan(width: int) -> Workflow:
    """Return a step, so many that follow it side by side, and one that joins them."""
    workflow = Workflow("fan")
    workflow.step(name="root")(_nothing)
    for i in range(width):
        workflow.step(name=f"side_{i}", after=["root"])(_nothing)
    workflow.step(name="join", after=[f"side_{i}" for i in range(width)])(_nothing)
    return workflow


def family() -> Workflow:
    """Return a step that starts children of its own."""
    workflow = Workflow("family", payload=Keys)

    @workflow.step
    def start_all(ctx: StepContext, keys: list[str]) -> None:
        for child_key in keys:
            ctx.start_child_run("one", child_key=child_key)

    return workflow


def _nothing() -> None:
    """Return nothing: only its rows matter."""


def one() -> Workflow:
    """Return a workflow of one step."""
    workflow = Workflow("one")
    workflow.step(name="only")(_nothing)
    return workflow


WORKFLOWS = [fan(WIDTH), family(), one()]


@pytest.fixture(scope="module")
def stale_journal(postgres_url: str) -> Iterator[PostgresStorage]:
    """A journal that was filled after its last ANALYZE, which saw an empty queue; its statistics stay so."""
    name = "stale_statistics"  # a database of its own, whose sessions are counted
    with psycopg.connect(plain_url(postgres_url), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
        connection.execute(f"CREATE DATABASE {name}".encode())
    url = make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    storage = PostgresStorage(url, "stale")
    storage.upgrade()
    squid = Squid(storage, WORKFLOWS)
    squid.start("one")
    squid.worker(until_idle=True)
    with raw(storage) as connection:
        tables = connection.execute("SELECT relname FROM pg_stat_user_tables WHERE schemaname = current_schema")
        for (name,) in tables.fetchall():
            connection.execute(f"ALTER TABLE {name} SET (autovacuum_enabled = false)".encode())
            connection.execute(f"VACUUM ANALYZE {name}".encode())
    squid.start_many("one", [None] * WIDTH, queue="other")
    squid.start("fan")
    assert squid.execute_next() is not None
    yield storage
    storage.close()


def reads(storage: PostgresStorage, work: Callable[[], object]) -> float:
    """Return how many rows and index entries this work reads; its sessions are ended, so that all is counted."""
    storage.close()  # what came before is counted, too, and statements are planned again
    before = _counted(storage)
    work()
    storage.close()
    return _counted(storage) - before


def _counted(storage: PostgresStorage) -> float:
    deadline = time.monotonic() + 30
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    with raw(storage) as connection:
        while connection.execute(f"{others} AND backend_type = 'client backend'".encode()).fetchone() != (0,):
            assert time.monotonic() < deadline, "sessions stay"
        row = connection.execute(_READ.encode()).fetchone()
        assert row is not None
        return float(row[0] + row[1])


def settled(outcome: Outcome) -> Callable[[Squid, list[Claim]], object]:
    """Return an operation that settles one claim after another."""

    def settle(squid: Squid, claims: list[Claim]) -> None:
        for claim in claims:
            _settle(squid, claim, outcome)

    return settle


def _settle(squid: Squid, claim: Claim, outcome: Outcome) -> None:
    (answer,) = squid.runtime.dispatch.settle([Settlement(claim.ref, outcome)], squid.runtime.plan)
    assert answer.error is None


def _failed(squid: Squid, claims: list[Claim]) -> None:
    for claim in claims:
        key = f"{claim.attempt.idempotency_key}:2"
        _settle(squid, claim, Failed({"message": "no"}, NextAttempt(key, timedelta(hours=1))))


def _claimed(squid: Squid, _: list[Claim]) -> None:
    for _each in range(TIMES):
        assert squid.runtime.dispatch.claim("default", "worker")


def _kept_alive(squid: Squid, claims: list[Claim]) -> None:
    for claim in claims:
        assert squid.runtime.dispatch.heartbeat([claim.ref])[0].error is None


def _given_back(squid: Squid, claims: list[Claim]) -> None:
    for claim in claims:
        assert squid.runtime.dispatch.release([claim.ref])[0].error is None


def _started(squid: Squid, _: list[Claim]) -> None:
    for _each in range(TIMES):
        squid.start("one", queue="other")


def _ended(squid: Squid, _: list[Claim]) -> None:
    for _each in range(TIMES):
        (claim,) = squid.runtime.dispatch.claim("other", "worker")
        _settle(squid, claim, Completed(None))


def _claimed_by_key(squid: Squid, claims: list[Claim]) -> None:
    for claim in claims:
        squid.runtime.dispatch.release([claim.ref])[0].unwrap()
        about = claim.ref.run_id, claim.attempt.idempotency_key
        assert isinstance(claim_item(squid.runtime, *about, "worker", DEFAULT_LEASE), Claim)


OPERATIONS: dict[str, Callable[[Squid, list[Claim]], object]] = {
    "claim": _claimed,
    "claim by key": _claimed_by_key,
    "complete": settled(Completed({"ok": True})),
    "fail": _failed,
    "defer": settled(Deferred(reason="later", after=timedelta(hours=1))),
    "heartbeat": _kept_alive,
    "release": _given_back,
    "start": _started,
    "end": _ended,
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_an_operation_reads_does_not_depend_on_what_statistics_say(
    stale_journal: PostgresStorage, name: str
) -> None:
    # given siblings of one run, some of them claimed, and statistics of an empty queue
    squid = Squid(stale_journal, WORKFLOWS)
    claims = squid.runtime.dispatch.claim("default", "worker", limit=TIMES)
    # when as many operations come, each by itself
    count = reads(stale_journal, lambda: OPERATIONS[name](squid, claims))
    # then none of them reads what is beside it
    assert count / TIMES < MOST, f"{count / TIMES:.0f} rows and entries for each"


def test_what_a_child_start_reads_does_not_depend_on_what_statistics_say(stale_journal: PostgresStorage) -> None:
    squid = Squid(stale_journal, WORKFLOWS)
    squid.start("family", {"keys": [f"c-{n}" for n in range(WIDTH)]}, queue="families")
    count = reads(stale_journal, lambda: squid.worker("families", until_idle=True))
    assert count / WIDTH < MOST, f"{count / WIDTH:.0f} rows and entries for each"
