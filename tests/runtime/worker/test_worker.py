"""What a worker does with its queues: how much at once, in which order, until when, and in how many commits."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from psycopg import sql
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.contract.worker_liveness import WorkerRow
from squid_dagster.protocol.errors import InvalidArgument, InvalidThread, TerminalRun
from squid_dagster.workflow import Fail, Retry, StepContext, Workflow
from tests.journal.access import raw, wait_for_a_lock
from tests.processes import children
from tests.runtime.workers import (
    NEVER,
    PATIENCE,
    all_done,
    counts_of,
    facts_of,
    queue_facts,
    running_worker,
    status_of,
    tally,
    until,
    wait_for_lines,
    worker_process,
)

LONG = timedelta(minutes=5)


class Item(BaseModel):
    """A number."""

    n: int = 0


def one_step(function: Callable[..., Any], name: str = "one", **options: Any) -> Workflow:
    workflow = Workflow(name, payload=Item)
    workflow.step(name="step", **options)(function)
    return workflow


class ConcurrencyMeter:
    """Counts how many are inside at once, and lets them out when told to."""

    def __init__(self) -> None:
        self.inside, self.most = 0, 0
        self.open = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, ctx: StepContext) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.open.wait(PATIENCE)
        with self._lock:
            self.inside -= 1


def metered(meter: ConcurrencyMeter) -> Workflow:
    def step(ctx: StepContext) -> None:
        meter(ctx)

    return one_step(step)


def test_as_many_steps_run_at_once_as_concurrency_allows_and_no_more(postgres: PostgresStorage) -> None:
    meter = ConcurrencyMeter()
    squid = Squid(postgres, metered(meter))
    runs = [receipt.run_id for receipt in squid.start_many("one", [{"n": n} for n in range(20)])]
    with running_worker(squid, concurrency=8, until_idle=True) as working:
        until(lambda: meter.inside == 8, "eight steps at once")
        meter.open.set()
        report = working.end()
    assert meter.most == 8
    assert (report.claimed, report.completed) == (20, 20)
    assert all_done(postgres, runs)()


def test_with_a_concurrency_of_one_steps_run_one_after_another(postgres: PostgresStorage) -> None:
    meter = ConcurrencyMeter()
    meter.open.set()
    squid = Squid(postgres, metered(meter))
    squid.start_many("one", [{"n": n} for n in range(10)])
    assert squid.worker(concurrency=1, until_idle=True).completed == 10
    assert meter.most == 1


def test_until_idle_does_what_is_due_and_what_comes_of_it_and_leaves_what_is_due_later(
    postgres: PostgresStorage,
) -> None:
    workflow = Workflow("three", payload=Item)

    @workflow.step
    def first(n: int) -> int:
        return n + 1

    @workflow.step(after=first)
    def second(first: int) -> int:
        if first == 3:
            raise ValueError("later")
        return first * 2

    @workflow.step(after=second)
    def third(second: int) -> int:
        return second + 1

    workflow.wait("rest", timedelta(days=1), after="third")
    squid = Squid(postgres, workflow)
    runs = [receipt.run_id for receipt in squid.start_many(workflow, [{"n": n} for n in range(6)])]
    report = squid.worker(until_idle=True)
    assert report.steps == Counter({"three.first": 6, "three.second": 5, "three.third": 5})
    assert (report.completed, report.failed, report.claimed) == (16, 1, 17)
    assert [status_of(postgres, run) for run in runs] == [
        "running",
        "running",
        "failed",
        "running",
        "running",
        "running",
    ]
    outputs = [squid.inspect_run(run).outputs.get("third") for run in runs]
    assert outputs == [3, 5, None, 9, 11, 13]


def test_until_idle_on_an_empty_queue_ends_with_nothing_done(postgres: PostgresStorage) -> None:
    report = Squid(postgres, metered(ConcurrencyMeter())).worker(until_idle=True, poll=NEVER)
    assert (report.claimed, report.completed, report.commits) == (0, 0, 0)
    assert str(report).startswith(f"worker {report.worker_id}: claimed 0, in ")


def test_sync_steps_run_in_threads_of_their_own_and_async_ones_share_a_loop(postgres: PostgresStorage) -> None:
    seen: dict[str, set[Any]] = {"sync": set(), "async": set(), "loops": set()}
    both = threading.Barrier(4)

    def sync(n: int) -> int:
        both.wait(PATIENCE)  # four threads at once, or none passes
        seen["sync"].add(threading.get_ident())
        return n

    met: list[asyncio.Event] = []
    waiting = Counter[str]()

    async def asynchronous(n: int) -> int:
        met.append(asyncio.Event())
        waiting["async"] += 1
        if waiting["async"] == 4:
            for event in met:
                event.set()
        await asyncio.wait_for(met[-1].wait() if len(met) == 4 else met[n % len(met)].wait(), PATIENCE)
        seen["async"].add(threading.get_ident())
        seen["loops"].add(id(asyncio.get_running_loop()))
        return n

    squid = Squid(postgres, [one_step(sync, "sync"), one_step(asynchronous, "async")])
    for name in ("sync", "async"):
        squid.start_many(name, [{"n": n} for n in range(4)])
    report = squid.worker(concurrency=8, until_idle=True)
    assert report.completed == 8
    assert len(seen["sync"]) == 4
    assert len(seen["async"]) == len(seen["loops"]) == 1
    assert threading.get_ident() not in seen["sync"] | seen["async"], "the caller's thread claims"


def test_results_that_come_in_during_a_commit_are_one_commit(postgres: PostgresStorage) -> None:
    # given many steps that are under way
    meter = ConcurrencyMeter()
    squid = Squid(postgres, metered(meter))
    runs = [receipt.run_id for receipt in squid.start_many("one", [{"n": n} for n in range(30)])]
    with running_worker(squid, concurrency=30, until_idle=True) as working:
        until(lambda: meter.inside == 30, "all steps under way")
        # when the first commit has to wait
        with raw(postgres, autocommit=False) as other:
            other.execute("SELECT FROM journal_threads WHERE id = 'squid:dispatch:default' FOR UPDATE")
            meter.open.set()
            wait_for_a_lock(postgres)
            until(lambda: meter.inside == 0, "all steps ended")
            other.rollback()
        report = working.end()
    # then what came in meanwhile is the second one; the last steps may still have been on their way to it
    assert report.completed == 30
    assert report.commits <= 5
    with raw(postgres) as connection:
        text = "SELECT count(*) FROM journal_commits WHERE receipt::text LIKE %s AND receipt::text LIKE %s"
        commit_counts = [connection.execute(text, ("%squid:dispatch:default%", f"%{run}%")).fetchone() for run in runs]
    assert commit_counts == [(2,)] * 30, "one commit that started the run, one that ended it"


def test_one_member_that_is_refused_does_not_fail_its_group(postgres: PostgresStorage) -> None:
    meter = ConcurrencyMeter()
    squid = Squid(postgres, metered(meter))
    runs = [receipt.run_id for receipt in squid.start_many("one", [{"n": n} for n in range(5)])]
    with running_worker(squid, concurrency=5, until_idle=True) as working:
        until(lambda: meter.inside == 5, "all steps under way")
        squid.cancel(runs[2])
        meter.open.set()
        report = working.end()
    assert (report.completed, report.refused) == (4, 1)
    assert [status_of(postgres, run) for run in runs] == ["completed"] * 2 + ["cancelled"] + ["completed"] * 2
    assert not facts_of(postgres, runs[2], "attempt_completed")


def test_a_full_queue_does_not_starve_the_others(postgres: PostgresStorage) -> None:
    order: list[str] = []

    def step(ctx: StepContext) -> None:
        order.append(ctx.run_id)

    squid = Squid(postgres, one_step(step))
    squid.start_many("one", [{"n": n} for n in range(40)], queue="full")
    few = {squid.start("one", queue="small").run_id, squid.start("one", queue="tiny").run_id}
    squid.worker(["full", "small", "tiny"], concurrency=1, until_idle=True)
    assert len(order) == 42
    assert few <= set(order[:4]), "each queue has its turn"


def test_higher_priorities_are_claimed_first_and_older_work_before_newer(postgres: PostgresStorage) -> None:
    order: list[int] = []

    def step(n: int) -> None:
        order.append(n)

    squid = Squid(postgres, one_step(step))
    for n, priority in enumerate([0, -10, 5, 0, 10, 5]):
        squid.start("one", {"n": n}, priority=priority)
    squid.worker(concurrency=1, until_idle=True)
    assert order == [4, 2, 5, 0, 3, 1]


def test_nothing_is_claimed_from_a_paused_queue_and_resuming_it_wakes_the_worker(postgres: PostgresStorage) -> None:
    meter = ConcurrencyMeter()
    meter.open.set()
    squid = Squid(postgres, metered(meter))
    squid.pause_queue("default", actor="ada")
    run_id = squid.start("one").run_id
    other = squid.start("one", queue="other").run_id
    with running_worker(squid, ["default", "other"], poll=NEVER):
        until(all_done(postgres, [other]), "the other queue's run")
        assert not facts_of(postgres, run_id, "attempt_claimed")
        squid.resume_queue("default", actor="ada")
        until(all_done(postgres, [run_id]), "the run of the queue that was paused")


def test_a_worker_claims_only_what_it_has_registered(postgres: PostgresStorage) -> None:
    meter = ConcurrencyMeter()
    meter.open.set()
    other = one_step(lambda: None, "other")
    with_both = Squid(postgres, [metered(meter), other])
    known, unknown = with_both.start("one").run_id, with_both.start("other").run_id
    assert Squid(postgres, metered(meter)).worker(until_idle=True).completed == 1
    assert (status_of(postgres, known), status_of(postgres, unknown)) == ("completed", "running")
    assert not facts_of(postgres, unknown, "attempt_claimed")


def test_a_worker_is_seen_while_it_is_there_and_gone_afterwards(postgres: PostgresStorage) -> None:
    meter = ConcurrencyMeter()
    squid = Squid(postgres, metered(meter))

    def seen() -> list[WorkerRow]:
        return squid.runtime.liveness.workers(timedelta(minutes=1))

    with running_worker(squid, ["default", "other"], concurrency=7, poll=NEVER, worker_id="w-1") as working:
        (row,) = until(seen, "the worker's row")
        assert (row.worker_id, row.kind, row.capacity, set(row.queues)) == ("w-1", "worker", 7, {"default", "other"})
        assert row.definitions == tuple(squid.runtime.registry.keys)
        meter.open.set()
        working.stop()
    assert seen() == []


def test_a_worker_that_is_too_old_finishes_what_it_has_and_ends(postgres: PostgresStorage) -> None:
    meter = ConcurrencyMeter()
    meter.open.set()
    squid = Squid(postgres, metered(meter))
    with running_worker(squid, max_age=timedelta(milliseconds=50), poll=timedelta(milliseconds=20)) as working:
        working.end()
    run_id = squid.start("one").run_id
    assert squid.worker(max_age=timedelta(microseconds=1)).claimed == 0
    assert status_of(postgres, run_id) == "running"


def test_the_report_counts_every_outcome(postgres: PostgresStorage) -> None:
    def step(ctx: StepContext, n: int) -> None:
        if n == 1:
            raise Fail("for good")
        if n == 2 and ctx.attempt == 1:
            raise ValueError("again")

    squid = Squid(postgres, one_step(step, retry=Retry(max_attempts=2, initial=timedelta(0))))
    squid.start_many("one", [{"n": n} for n in range(3)])
    report = squid.worker(until_idle=True, worker_id="w-1")
    assert (report.claimed, report.completed, report.failed, report.retried) == (4, 2, 1, 1)
    assert str(report).startswith("worker w-1: claimed 4, completed 2, failed 1, retried 1, in ")
    assert report.steps == {"one.step": 2}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 1001}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": "4"}, "concurrency"),
        ({"queue": []}, "queue"),
        ({"lease": timedelta(0)}, "lease"),
        ({"lease": 30}, "lease"),
        ({"poll": timedelta(0)}, "poll"),
        ({"poll": timedelta(seconds=-1)}, "poll"),
        ({"grace": timedelta(seconds=-1)}, "grace"),
        ({"max_age": timedelta(0)}, "max_age"),
        ({"housekeeping": timedelta(0)}, "housekeeping"),
    ],
)
def test_a_worker_with_bad_options_is_refused_before_it_begins(
    postgres: PostgresStorage, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidArgument, match=named):
        Squid(postgres, metered(ConcurrencyMeter())).new_worker(**options)


def test_a_worker_of_a_bad_queue_is_refused(postgres: PostgresStorage) -> None:
    with pytest.raises(InvalidThread):
        Squid(postgres, metered(ConcurrencyMeter())).new_worker(["good", "no:good"])


def test_three_processes_share_a_queue_and_do_everything_once(postgres: PostgresStorage) -> None:
    # given three workers in processes of their own
    with raw(postgres) as connection, children() as started:
        connection.execute("CREATE TABLE effects (run_id text, token int, pid int)")
        started += [worker_process(postgres, concurrency=4) for _ in range(3)]
        for child in started:
            wait_for_lines(child, "ready")
        # when many runs are started
        squid = Squid(postgres, tally)
        runs = [receipt.run_id for receipt in squid.start_many("tally", [{} for _ in range(150)])]
        until(all_done(postgres, runs), "all runs")
        for child in started:
            child.process.terminate()
        assert [child.end() for child in started] == [0, 0, 0]
        # then each has left its effect once, whichever process did it
        effects = connection.execute("SELECT run_id, token FROM effects").fetchall()
        anomalies = connection.execute(sql.SQL("SELECT count(*) FROM anomalies")).fetchone()
        assert sorted(effects) == sorted((run, 1) for run in runs)
        assert anomalies == (0,)
        counts = [counts_of(child) for child in started]
    assert sum(report["completed"] for report in counts) == len(runs) == len(queue_facts(postgres, "attempt_completed"))


def test_the_result_of_a_step_whose_run_has_ended_is_refused_and_changes_nothing(postgres: PostgresStorage) -> None:
    squids: list[Squid] = []

    def step(ctx: StepContext) -> str:
        squids[0].cancel(ctx.run_id)
        return "too late"

    squids.append(Squid(postgres, one_step(step)))
    run_id = squids[0].start("one").run_id
    with pytest.raises(TerminalRun):
        squids[0].execute_next()
    assert status_of(postgres, run_id) == "cancelled"
    assert facts_of(postgres, run_id)[-1].type in ("run_terminal", "run_fenced")
