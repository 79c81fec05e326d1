"""Two committers: what both write is counted once, and neither is lost with what it writes."""

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresDispatchStore, PostgresStorage, verify
from squid_dagster.journal.contract.dispatch_store import Answer, Planner, Settlement
from squid_dagster.runtime.worker.report import SettledAttempt
from squid_dagster.workflow import Fail, Workflow
from tests.journal.access import assert_views_agree_with_the_journal, raw, wait_for_a_lock
from tests.runtime.workers import PATIENCE, facts_of, running_worker, until


def _nothing() -> None:
    """Return nothing: only the facts matter."""


def test_what_two_committers_write_is_counted_once_and_told_once(
    postgres: PostgresStorage, caplog: pytest.LogCaptureFixture
) -> None:
    # given many runs whose steps end at the same time, some of them badly, and an observer who fails now and then
    wf = Workflow("joined")
    for name, after in (("a", []), ("b", []), ("c", ["a", "b"])):
        wf.step(name=name, after=after)(_nothing)

    @wf.step(name="d", after=["c"])
    def fails() -> None:
        raise Fail("no")

    settled: list[SettledAttempt] = []

    def observe(group: Sequence[SettledAttempt]) -> None:
        settled.extend(group)
        if len(settled) % 3 == 0:
            raise RuntimeError("the observer is tired")

    squid = Squid(postgres, wf)
    runs = [receipt.run_id for receipt in squid.start_many("joined", [None] * 60)]
    # when a worker does them all
    report = squid.new_worker(concurrency=20, until_idle=True, on_settled=observe).run()
    # then it says what the journal says
    facts = Counter(fact.type for run in runs for fact in facts_of(postgres, run))
    assert (report.claimed, report.completed, report.failed, report.refused) == (240, 180, 60, 0)
    assert (facts["attempt_completed"], facts["attempt_failed"]) == (180, 60)
    assert report.steps == {"joined.a": 60, "joined.b": 60, "joined.c": 60}
    assert len({outcome.attempt.runnable_key for outcome in settled}) == len(settled) == 240
    assert "deadlock" not in caplog.text
    assert_views_agree_with_the_journal(postgres)
    assert verify(postgres) == []


def test_an_attempt_that_is_given_back_while_a_committer_writes_it_has_one_end(postgres: PostgresStorage) -> None:
    # given a step that is done, and a committer that waits for its run
    begun, go_on = threading.Event(), threading.Event()
    wf = Workflow("one")

    @wf.step
    def step() -> str:
        begun.set()
        go_on.wait(PATIENCE)
        return "done"

    squid = Squid(postgres, wf)
    run_id = squid.start("one").run_id
    with running_worker(squid) as working, raw(postgres, autocommit=False) as connection:
        assert begun.wait(PATIENCE)
        connection.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (run_id,))
        go_on.set()
        wait_for_a_lock(postgres)
        # when the worker is told to end at once, and gives back what it holds
        working.worker.stop()
        working.worker.stop()
        until(lambda: working.worker.held == 0, "that it gives back")
        connection.rollback()
        report = working.end()
    # then one of the two counts, as the journal says
    facts = Counter(fact.type for fact in facts_of(postgres, run_id))
    assert facts["attempt_completed"] + facts["attempt_released"] == 1
    assert (report.completed, report.released) == (facts["attempt_completed"], facts["attempt_released"])
    assert_views_agree_with_the_journal(postgres)


class _BreaksOnce(PostgresDispatchStore):
    """A dispatch store with a defect that shows once."""

    broken = False

    def settle(self, settlements: Sequence[Settlement], plan: Planner | None = None) -> list[Answer]:
        if not self.broken:
            self.broken = True
            raise RuntimeError("a defect")
        return super().settle(settlements, plan)


def test_a_defect_in_one_commit_ends_no_committer_and_keeps_no_slot(
    postgres: PostgresStorage, caplog: pytest.LogCaptureFixture
) -> None:
    # given a commit that fails by an unforeseen error
    wf = Workflow("one")
    wf.step(name="step")(_nothing)
    squid = Squid(postgres, wf)
    squid.runtime = replace(squid.runtime, dispatch=_BreaksOnce(postgres))
    squid.start_many("one", [None] * 12)
    # when more steps are done than there are slots
    with running_worker(squid, concurrency=1, lease=timedelta(seconds=1), poll=timedelta(milliseconds=50)) as working:
        # then all of them are written in the end: what was lost is claimed again once its lease has run out
        until(lambda: working.worker.report.completed == 12, "all steps")
    assert "could not be written: their leases will run out" in caplog.text
    assert working.worker.held == 0
    assert_views_agree_with_the_journal(postgres)
