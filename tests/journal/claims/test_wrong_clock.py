"""The database's clock decides. A worker whose own clock is hours off can neither steal nor keep a claim."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from squid_dagster.journal import PostgresDispatchStore, PostgresStorage
from squid_dagster.protocol import AttemptFailed
from tests.facts import scheduled
from tests.journal.writers import start
from tests.processes import REPOSITORY

Worker = Callable[..., Any]


@pytest.fixture(scope="module", params=[-3, 3])
def hours(request: pytest.FixtureRequest) -> int:
    """By how much the worker's clock is wrong."""
    return int(request.param)


@pytest.fixture(scope="module")
def process(postgres_url: str, hours: int) -> Iterator[subprocess.Popen[str]]:
    """A process whose clock is wrong, for all tests."""
    command = [sys.executable, "-m", "tests.journal.claims.wrong_clock_process", postgres_url, str(hours)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        yield started
        started.communicate()


@pytest.fixture
def worker(process: subprocess.Popen[str], postgres: PostgresStorage) -> Worker:
    """A function that executes a command in that process, on the journal under test."""

    def execute(*command: str) -> Any:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        print(json.dumps([postgres.schema, *command]), file=process.stdin, flush=True)
        answer = process.stdout.readline()
        assert answer, process.stderr.read()
        return json.loads(answer)

    return execute


def test_the_worker_really_has_a_wrong_clock(worker: Worker, hours: int) -> None:
    worker_time = datetime.fromisoformat(worker("clock"))
    assert abs(worker_time - datetime.now(UTC) - timedelta(hours=hours)) < timedelta(minutes=5)


def test_it_takes_what_is_due_and_nothing_else(postgres: PostgresStorage, worker: Worker) -> None:
    start(postgres, ["due", "held"])
    (held,) = [
        claim
        for claim in PostgresDispatchStore(postgres).claim("default", "right-clock", limit=2)
        if claim.ref.run_id == "held" or not PostgresDispatchStore(postgres).release([claim.ref])
    ]
    later = postgres.now() + timedelta(hours=1)
    postgres.append("squid:dispatch:default", [scheduled("later", visible_at=later, occurred_at=postgres.now())])

    before = postgres.now()
    claimed = worker("claim")

    # The other worker's lease has not run out, and what is visible in an hour is not visible now.
    assert [run_id for run_id, *_ in claimed] == ["due"]
    lease_until = datetime.fromisoformat(claimed[0][4])
    assert before + timedelta(seconds=60) <= lease_until <= postgres.now() + timedelta(seconds=60)
    assert PostgresDispatchStore(postgres).heartbeat([held.ref])[0].error is None


def test_its_outcome_counts_while_its_lease_lasts(postgres: PostgresStorage, worker: Worker) -> None:
    start(postgres, ["run-1", "run-2"])
    first, second = worker("claim")

    assert worker("heartbeat", *first[:4]) == ["ok"]
    assert worker("complete", *first[:4]) == ["ok"]
    before = postgres.now()
    assert worker("fail", *second[:4], f"{second[0]}:step:1:2") == ["ok"]

    failure = postgres.read("squid:dispatch:default")[-1].fact
    assert isinstance(failure, AttemptFailed)
    assert before <= failure.occurred_at <= postgres.now()
    assert failure.retry_visible_at == failure.occurred_at + timedelta(seconds=30)


def test_its_outcome_is_refused_once_its_lease_has_run_out(postgres: PostgresStorage, worker: Worker) -> None:
    start(postgres, ["run-1"])
    store = PostgresDispatchStore(postgres)
    (claim,) = store.claim("default", "slow", lease=timedelta(milliseconds=1))
    while not store.expired("default"):
        pass  # the database's clock gets there
    reference = (claim.ref.run_id, claim.ref.runnable_key, claim.ref.claim_id, claim.ref.token)

    assert worker("heartbeat", *reference) == ["ExpiredClaim"]
    assert worker("complete", *reference) == ["ExpiredClaim"]
