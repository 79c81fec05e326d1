"""Errors of the database that are no lost connection: a worker outlives them, keeps its results, and says so once."""

import logging
import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import Claim, PostgresDispatchStore, PostgresStorage, verify
from squid_dagster.protocol.errors import StorageUnavailable
from squid_dagster.runtime.worker.outage import Outage
from squid_dagster.workflow import Cron, Workflow
from tests.faults import Faults
from tests.journal.access import raw
from tests.runtime.outages.two_steps import OFTEN, Steps, warnings
from tests.runtime.workers import NEVER, all_done, queue_facts, running_worker, until

SURVIVED = ("25006", "40001", "53100", "57014", "XX000")
"""One for each thing that is done about them; `tests/journal/connection/test_failures.py` has all of them."""


def test_a_worker_outlives_every_error_that_is_worth_waiting_for_and_keeps_its_results(
    postgres: PostgresStorage, steps: Steps, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    # given a worker with a step under way for each of the errors
    squid = Squid(postgres, steps.workflow)
    runs = [receipt.run_id for receipt in squid.start_many("two", [{"n": n} for n in range(len(SURVIVED))])]
    with running_worker(squid, concurrency=len(SURVIVED), lease=NEVER, housekeeping=OFTEN) as working:
        until(lambda: len(steps.calls) == len(SURVIVED), "all steps under way")
        for n, code in enumerate(SURVIVED):
            # when the database raises it from every write, and a step comes to its end
            caplog.clear()
            with faults.raising(code):
                steps.releases[n].set()
                until(lambda: working.worker.waiting, f"the worker to wait for {code}")
                until(lambda: faults.raised() > 10, "several tries")
            # then its result is written as soon as the database lets it
            until(all_done(postgres, [runs[n]]), f"the run after {code}")
            until(lambda: not working.worker.waiting, "the worker to go on")
            # and what was waited for was said once, and that it is over
            assert len(warnings(caplog, "must wait")) == 1, (code, caplog.messages)
            assert len(warnings(caplog, "goes on after")) == 1
        assert not working.ended
        report = working.stop()
    assert steps.calls == {f"{run}:{step}": 1 for run in runs for step in ("first", "second")}
    assert (report.completed, report.refused) == (2 * len(runs), 0)
    assert len(queue_facts(postgres, "attempt_completed")) == 2 * len(runs)
    assert verify(postgres) == []


def test_cancelled_statements_end_no_worker_and_double_nothing(postgres: PostgresStorage, steps: Steps) -> None:
    for gate in steps.releases:
        gate.set()
    squid = Squid(postgres, steps.workflow)
    runs = [receipt.run_id for receipt in squid.start_many("two", [{"n": n} for n in range(100)])]
    cancel = """SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity
        WHERE application_name = 'squid_dagster' AND state <> 'idle'"""
    cancelled, done = 0, threading.Event()

    def wait() -> None:
        until(all_done(postgres, runs), "all runs under cancelled statements")
        done.set()

    with (
        raw(postgres) as connection,
        running_worker(squid, concurrency=10, housekeeping=OFTEN) as one,
        running_worker(squid, concurrency=10) as other,
    ):
        waiting = threading.Thread(target=wait)
        waiting.start()
        while not done.wait(0.001) and waiting.is_alive():
            row = connection.execute(cancel).fetchone()
            cancelled += row[0] if row is not None else 0
        waiting.join()
        assert done.is_set()
        assert (one.ended, other.ended) == (False, False)
    assert cancelled > 0
    assert set(steps.calls.values()) == {1}
    assert len(steps.calls) == 200
    assert len(queue_facts(postgres, "attempt_completed")) == 200
    assert verify(postgres) == []


class _Buggy(PostgresDispatchStore):
    """A dispatch store with a mistake in it."""

    mistakes = 0

    def claim(self, *args: Any, **options: Any) -> list[Claim]:
        if self.mistakes < 3:
            self.mistakes += 1
            raise ZeroDivisionError("a mistake")
        return super().claim(*args, **options)


def test_a_mistake_in_the_claim_loop_ends_no_worker_and_is_logged_once_with_its_place(
    postgres: PostgresStorage, steps: Steps, caplog: pytest.LogCaptureFixture
) -> None:
    steps.releases[0].set()
    squid = Squid(postgres, steps.workflow)
    squid.runtime = replace(squid.runtime, dispatch=_Buggy(postgres))
    run_id = squid.start("two").run_id
    with running_worker(squid):
        until(all_done(postgres, [run_id]), "the run")
    (logged,) = [record for record in caplog.records if "must wait" in record.getMessage()]
    assert logged.exc_info is not None
    assert logged.exc_info[0] is ZeroDivisionError


def test_recovery_stops_where_the_database_does_and_blames_no_run(postgres: PostgresStorage, faults: Faults) -> None:
    workflow = Workflow("one")
    workflow.step(name="step")(lambda: None)
    squid = Squid(postgres, workflow)
    squid.start_many("one", [None] * 3)
    with faults.raising("53100"), pytest.raises(StorageUnavailable, match="53100"):
        squid.recover()
    assert squid.recover().failed == {}


def test_a_cron_that_cannot_be_started_now_keeps_no_other_waiting(postgres: PostgresStorage) -> None:
    # given an internal error of the database about one of two workflows that are due
    made = [Workflow(name, triggers=[Cron("0 * * * *")]) for name in ("bad", "good")]
    for workflow in made:
        workflow.step(name="step")(lambda: None)
    squid = Squid(postgres, made)
    with raw(postgres) as connection:
        connection.execute("""CREATE FUNCTION internal() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF NEW.data->>'workflow' = 'bad' THEN RAISE EXCEPTION 'a defect' USING ERRCODE = 'XX000'; END IF;
            RETURN NEW; END $$""")
        connection.execute(
            "CREATE TRIGGER internal BEFORE INSERT ON journal_entries FOR EACH ROW EXECUTE FUNCTION internal()"
        )
        now = datetime(2026, 1, 1, 12, 1, tzinfo=UTC)
        (receipt,) = squid.start_due_crons(now)
        connection.execute("DROP TRIGGER internal ON journal_entries")
    assert squid.inspect_run(receipt.run_id).workflow == "good"
    (other,) = [receipt for receipt in squid.start_due_crons(now) if not receipt.repeated]
    assert squid.inspect_run(other.run_id).workflow == "bad"


def test_every_reason_is_said_once_per_outage_and_the_end_of_it_once(caplog: pytest.LogCaptureFixture) -> None:
    def error(state: str | None, text: str) -> StorageUnavailable:
        made = StorageUnavailable(text)
        made.sqlstate = state
        return made

    outage = Outage("worker w")
    with caplog.at_level(logging.WARNING):
        for part in ("claiming", "the heartbeat"):
            outage.begin(part, error("57P01", "shuts down"))
            outage.begin(part, error(None, "refused"))
            outage.begin(part, error("53100", "disk full"))
        outage.end("claiming")
        assert outage.under_way
        outage.end("the heartbeat")
        outage.end("the heartbeat")
    said = [text.partition(": ")[2] for text in caplog.messages]
    assert [text.rpartition(": ")[2] for text in said[:-1]] == ["shuts down", "disk full"]
    assert said[-1].startswith("goes on after")
    assert not outage.under_way
