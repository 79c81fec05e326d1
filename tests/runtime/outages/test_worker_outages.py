"""The database goes away in the middle of everything and comes back: nothing is lost, and nothing is done twice."""

import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal import Answer, PostgresDispatchStore, PostgresStorage, verify
from squid_dagster.journal.contract.dispatch_store import Interrupted, Planner, Settlement
from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.protocol.errors import StorageRefused, StorageUnavailable
from squid_dagster.runtime.worker.committer import COMMITTERS, committer_of
from squid_dagster.workflow import StepContext, Workflow
from tests.journal.access import raw, terminate_backends, wait_for_a_lock
from tests.runtime.workers import NEVER, PATIENCE, all_done, facts_of, queue_facts, running_worker, until
from tests.scratch import SCRATCH


class Item(BaseModel):
    """A number."""

    n: int = 0


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """A server that these tests stop and start as they like."""
    with tempfile.TemporaryDirectory(prefix="squid-own-", dir=SCRATCH) as directory:
        Path(directory).chmod(0o755)
        server = EmbeddedPostgres(Path(directory) / "postgres")
        server.ensure_running()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture
def journal(server: EmbeddedPostgres, schema: str) -> Iterator[PostgresStorage]:
    """An empty journal on that server."""
    storage = PostgresStorage(server.ensure_running(), schema)
    storage.upgrade()
    yield storage
    server.ensure_running()
    storage.close()


class BlockedSteps:
    """Counts calls, and lets those of one step through once it is open."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.released = threading.Event()

    def wait(self, ctx: StepContext) -> None:
        self.calls[f"{ctx.run_id}:{ctx.step}"] += 1
        self.released.wait(PATIENCE)


def two_steps(blocked: BlockedSteps) -> Workflow:
    workflow = Workflow("two", payload=Item)

    @workflow.step
    def first(ctx: StepContext, n: int) -> int:
        blocked.wait(ctx)
        return n

    @workflow.step(after=first)
    def second(ctx: StepContext, first: int) -> int:
        blocked.calls[f"{ctx.run_id}:{ctx.step}"] += 1
        return first + 1

    return workflow


def test_a_restart_of_the_database_in_the_middle_of_steps_loses_and_doubles_nothing(
    server: EmbeddedPostgres, journal: PostgresStorage
) -> None:
    # given steps that are under way, and more that wait
    blocked = BlockedSteps()
    squid = Squid(journal, two_steps(blocked))
    runs = [receipt.run_id for receipt in squid.start_many("two", [{"n": n} for n in range(30)])]
    with running_worker(squid, concurrency=10) as working:
        until(lambda: len(blocked.calls) == 10, "ten steps under way")
        # when the server stops, the steps come to their end meanwhile, and the server starts again
        server.stop()
        blocked.released.set()
        server.ensure_running()
        until(all_done(journal, runs), "all runs")
        report = working.stop()
    # then all was done, once
    assert blocked.calls == {f"{run}:{step}": 1 for run in runs for step in ("first", "second")}
    assert (report.completed, report.refused, report.claimed) == (60, 0, 60)
    assert len(queue_facts(journal, "attempt_claimed")) == 60
    assert verify(journal) == []


def test_a_worker_that_begins_while_the_database_is_away_works_once_it_is_there(
    server: EmbeddedPostgres, journal: PostgresStorage
) -> None:
    blocked = BlockedSteps()
    blocked.released.set()
    squid = Squid(journal, two_steps(blocked))
    run_id = squid.start("two").run_id
    server.stop()
    with running_worker(squid, poll=NEVER):
        server.ensure_running()
        until(all_done(journal, [run_id]), "the run")


def test_a_worker_can_be_stopped_while_the_database_is_away(server: EmbeddedPostgres, journal: PostgresStorage) -> None:
    blocked = BlockedSteps()
    squid = Squid(journal, two_steps(blocked))
    squid.start("two")
    with running_worker(squid, grace=timedelta(milliseconds=100)) as working:
        until(lambda: blocked.calls, "the step")
        server.stop()
        blocked.released.set()
        working.worker.stop()
        report = working.stop()
    assert report.completed == 0


def test_results_are_kept_through_an_outage_whatever_else_was_lost_with_it(
    server: EmbeddedPostgres, journal: PostgresStorage
) -> None:
    # given plain steps beside transactional ones, which lose their connections with the server
    blocked = BlockedSteps()
    lost: Counter[str] = Counter()
    workflow = two_steps(blocked)
    paid = Workflow("paid")

    @paid.step(transactional=True)
    def pay(connection: sqlalchemy.Connection, ctx: StepContext) -> int:
        connection.execute(sqlalchemy.text(f"INSERT INTO {journal.schema}.payments VALUES (:run)"), {"run": ctx.run_id})
        lost[ctx.run_id] += 1
        blocked.wait(ctx)
        return 1

    with raw(journal) as connection:
        connection.execute("CREATE TABLE payments (run_id text)")
    squid = Squid(journal, [workflow, paid])
    plain = [receipt.run_id for receipt in squid.start_many("two", [{"n": n} for n in range(4)])]
    payments = [receipt.run_id for receipt in squid.start_many("paid", [None] * 4)]
    with running_worker(squid, concurrency=8) as working:
        until(lambda: len(blocked.calls) == 8, "all steps under way")
        server.stop()
        blocked.released.set()
        server.ensure_running()
        until(all_done(journal, plain + payments), "all runs")
        report = working.stop()
    # then plain results were written when the server was back, and what was rolled back was done again
    assert [blocked.calls[f"{run}:first"] for run in plain] == [1] * 4
    assert [len(facts_of(journal, run, "attempt_claimed")) for run in plain] == [2] * 4, "one for each step"
    assert [lost[run] for run in payments] == [2] * 4
    assert report.refused == 0
    with raw(journal) as connection:
        rows = [run for (run,) in connection.execute("SELECT run_id FROM payments")]
    assert sorted(rows) == sorted(payments)


class _CannotInterrupt(PostgresDispatchStore):
    """A dispatch store that cannot be reached when something is first given back."""

    tried = 0

    def settle(self, settlements: Sequence[Settlement], plan: Planner | None = None) -> list[Answer]:
        gives_back = any(isinstance(settlement.outcome, Interrupted) for settlement in settlements)
        self.tried += gives_back
        if gives_back and self.tried == 1:
            raise StorageUnavailable("the connection was lost")
        return super().settle(settlements, plan)


def _run_of_committer(committer: int, name: str = "run") -> str:
    """Return the id of a run whose outcomes that committer writes."""
    return next(run_id for n in count() if committer_of(run_id := f"{name}-{n}") == committer)


def test_a_release_that_fails_takes_no_result_of_its_group_with_it(postgres: PostgresStorage) -> None:
    # given a worker whose committers all wait, so that what comes in meanwhile is one group
    calls: Counter[str] = Counter()
    releases = [threading.Event() for _ in range(COMMITTERS)]
    rest = threading.Event()
    plain, lost = Workflow("plain", payload=Item), Workflow("lost")

    @plain.step
    def step(ctx: StepContext, n: int) -> None:
        calls[ctx.run_id] += 1
        (releases[n] if n < COMMITTERS else rest).wait(PATIENCE)

    @lost.step(transactional=True)
    def cut(connection: sqlalchemy.Connection, ctx: StepContext) -> None:
        calls[ctx.run_id] += 1
        rest.wait(PATIENCE)
        if calls[ctx.run_id] == 1:
            with raw(postgres) as other:
                pid = connection.execute(sqlalchemy.text("SELECT pg_backend_pid()")).scalar()
                other.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))
            connection.execute(sqlalchemy.text("SELECT 1"))

    squid = Squid(postgres, [plain, lost])
    store = _CannotInterrupt(postgres)
    squid.runtime = replace(squid.runtime, dispatch=store)
    runs = [squid.start("plain", {"n": n}, run_id=_run_of_committer(n)).run_id for n in range(COMMITTERS)]
    runs += [squid.start("plain", {"n": COMMITTERS}, run_id=_run_of_committer(0, name)).run_id for name in "ab"]
    given_back = squid.start("lost", run_id=_run_of_committer(0, "lost")).run_id
    with running_worker(squid, concurrency=COMMITTERS + 3) as working, raw(postgres, autocommit=False) as other:
        until(lambda: len(calls) == COMMITTERS + 3, "all steps under way")
        other.execute("SELECT FROM journal_threads WHERE id = 'squid:dispatch:default' FOR UPDATE")
        for busy, release in enumerate(releases, 1):
            release.set()
            wait_for_a_lock(postgres, busy)
        rest.set()
        done = working.worker._committer._done[0]
        until(lambda: done.qsize() == 3, "two results and one connection that was lost")
        # when the attempt that lost its connection cannot be given back at once
        other.rollback()
        until(all_done(postgres, [*runs, given_back]), "all runs")
    # then it is given back a little later, and the results beside it were written
    assert [calls[run] for run in [*runs, given_back]] == [1] * len(runs) + [2]
    assert store.tried == 2
    assert len(facts_of(postgres, given_back, "attempt_released")) == 1


def test_connections_that_are_cut_again_and_again_lose_and_double_nothing(postgres: PostgresStorage) -> None:
    blocked = BlockedSteps()
    blocked.released.set()
    squid = Squid(postgres, two_steps(blocked))
    runs = [receipt.run_id for receipt in squid.start_many("two", [{"n": n} for n in range(200)])]
    with running_worker(squid, concurrency=10) as working:
        while not all_done(postgres, runs)():
            terminate_backends(postgres)
        report = working.stop()
    assert set(blocked.calls.values()) == {1}
    assert len(blocked.calls) == 400
    assert report.completed == 400 == len(queue_facts(postgres, "attempt_completed"))
    assert verify(postgres) == []


def test_an_error_of_the_database_is_not_mistaken_for_what_the_caller_was_handling(postgres: PostgresStorage) -> None:
    try:
        raise KeyError("the caller's own")
    except KeyError:
        with pytest.raises(StorageRefused, match="22012: division by zero"):
            postgres.rows("SELECT 1 / 0")
