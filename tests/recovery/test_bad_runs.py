"""One bad run never stops a recovery: it is named, and everything else is repaired. Healthy runs are left alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, LiteralString

import pytest

from squid_dagster import RecoveryReport
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Completed
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.postgres import transaction
from squid_dagster.journal.postgres.connection import failures
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.transaction import Transaction
from squid_dagster.limits import MAX_CLAIMS
from squid_dagster.protocol import EntryQuarantined, RunUnit, run_thread
from squid_dagster.protocol.errors import PlanningFailed
from squid_dagster.runtime.recovery import recovery
from squid_dagster.runtime.recovery.run_repair import repair_run
from squid_dagster.runtime.runtime import Runtime
from squid_dagster.workflow import Workflow
from tests.journal.access import raw
from tests.recovery import workflows as w
from tests.recovery.conftest import ALL, MakeClient
from tests.recovery.damage import (
    child_link_without_a_child,
    completed_but_unapplied,
    completed_but_unreadable,
    planned_but_unscheduled,
    settle_half,
)
from tests.recovery.scenario import Client, counts, everything, work

SECRET = "postgresql://bob:hunter2@db/x"
BAD = "m-bad"  # between its neighbours, by the order in which runs are repaired


def plant_neighbours(client: Client) -> None:
    """Write damage that comes before and after the bad run."""
    for name in ("a-first", "z-last"):
        planned_but_unscheduled(client.squid, client.clock, client.name(name))


def neighbours_are_done(client: Client) -> bool:
    """Return whether the neighbours of the bad run have ended."""
    work(client)
    return all(client.squid.inspect_run(client.name(name)).status == "completed" for name in ("a-first", "z-last"))


def line(version: str, first: str = "first") -> Workflow:
    """Build the workflow of the bad run, in one of two versions."""
    workflow = Workflow("versioned", version=version)
    workflow.step(name=first)(w.done)
    workflow.step(name="second")(w.done)
    workflow.route(first, to="second")
    workflow.route("second", to="complete")
    return workflow


def test_a_run_with_an_unreadable_entry_is_quarantined_and_named(client: Client) -> None:
    plant_neighbours(client)
    completed_but_unreadable(client.squid, client.clock, client.name(BAD))

    report = client.squid.recover()

    assert report.quarantined == [client.name(BAD)]
    assert (counts(report), report.failed, report.held) == ({"scheduled": 2}, {}, [])
    assert client.squid.inspect_run(client.name(BAD)).status == "quarantined"
    assert neighbours_are_done(client)
    assert client.squid.recover() == RecoveryReport()


def test_a_run_that_is_quarantined_already_is_left_alone(client: Client) -> None:
    plant_neighbours(client)
    completed_but_unapplied(client.squid, client.clock, client.name(BAD))
    fact = EntryQuarantined(
        run_id=client.name(BAD),
        entry_thread=run_thread(client.name(BAD)),
        entry_seq=2,
        reason="unreadable",
        occurred_at=client.squid.runtime.now(),
    )
    client.squid.journal.append(run_thread(client.name(BAD)), [fact])
    before = client.facts(BAD)

    report = client.squid.recover()

    assert counts(report) == {"scheduled": 2}
    assert [fact for fact in client.facts(BAD) if fact.type not in ("run_indexed", "run_cataloged")] == before
    assert neighbours_are_done(client)


def test_a_child_that_cannot_be_started_is_named_with_the_reason(storage: Storage, make_client: MakeClient) -> None:
    child_link_without_a_child(make_client(storage).squid, make_client(storage).clock, f"case.{BAD}")
    without_line = make_client(storage, (w.waiting(), w.mended()))
    settle = make_client(storage)
    plant_neighbours(settle)

    report = without_line.squid.recover()

    assert list(report.failed) == [f"case.{BAD}"]
    assert "'line' is not registered" in report.failed[f"case.{BAD}"]
    assert counts(report) == {"scheduled": 2}  # what was planned can be scheduled without its definition
    assert counts(settle.squid.recover()) == {"children": 1}
    assert neighbours_are_done(settle)


def test_a_held_run_is_named_and_goes_on_once_its_definition_is_registered(
    storage: Storage, make_client: MakeClient
) -> None:
    old, new = line("1"), line("2", first="other")
    first = make_client(storage, (*ALL, old))
    plant_neighbours(first)
    first.start(old, BAD)
    settle_half(first.squid, "versioned", Completed({"did": "first"}))
    before = first.facts(BAD)

    changed = make_client(storage, (*ALL, new))
    report = changed.squid.recover()

    assert (report.held, report.failed) == ([changed.name(BAD)], {})
    assert counts(report) == {"scheduled": 2}
    assert [fact for fact in changed.facts(BAD) if fact.type not in ("run_indexed", "run_cataloged")] == before
    assert neighbours_are_done(changed)
    assert changed.squid.recover().held == [changed.name(BAD)]

    both = make_client(storage, (*ALL, old, new))
    again = both.squid.recover()

    assert (again.held, counts(again)) == ([], {"applied": 1})
    work(both)
    assert both.squid.inspect_run(both.name(BAD)).status == "completed"


class Unspeakable(Exception):
    """An error that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("hostile")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError(f"cannot connect to {SECRET}"), "ValueError: cannot connect to postgresql://"),
        (PlanningFailed(f"cannot connect to {SECRET}"), "cannot connect to postgresql://"),
        (Unspeakable(), "Unspeakable: (its message cannot be shown)"),
    ],
    ids=["foreign", "ours", "unspeakable"],
)
def test_a_run_that_fails_by_any_error_is_named_without_its_secrets(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, said: str
) -> None:
    plant_neighbours(client)
    planned_but_unscheduled(client.squid, client.clock, client.name(BAD))

    def repair_others(runtime: Runtime, run_id: str, entries: Any) -> Any:
        if run_id == client.name(BAD):
            raise error
        return repair_run(runtime, run_id, entries)

    monkeypatch.setattr(recovery, "repair_run", repair_others)
    report = client.squid.recover()

    assert list(report.failed) == [client.name(BAD)]
    assert report.failed[client.name(BAD)].startswith(said)
    assert "hunter2" not in f"{report} {caplog.text}"
    assert counts(report) == {"scheduled": 2}
    assert neighbours_are_done(client)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends that wait for a lock for a moment, and not for half a minute, and are not repeated for long."""
    monkeypatch.setattr(failures, "_PATIENCE_SECONDS", 0.3)
    text = transaction._BEGIN_AND_LOCK.replace("30s", "200ms")
    assert text != transaction._BEGIN_AND_LOCK
    monkeypatch.setattr(transaction, "_BEGIN_AND_LOCK", text)


@pytest.mark.usefixtures("hurried")
def test_a_locked_run_is_named_and_all_others_are_repaired(
    postgres_virtual: PostgresStorage, make_client: MakeClient
) -> None:
    client = make_client(postgres_virtual)
    plant_neighbours(client)
    planned_but_unscheduled(client.squid, client.clock, client.name(BAD))
    with raw(postgres_virtual, autocommit=False) as connection:
        connection.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (client.name(BAD),))
        report = client.squid.recover()
    assert list(report.failed) == [client.name(BAD)]
    assert "55P03" in report.failed[client.name(BAD)]
    assert counts(report) == {"scheduled": 2}
    assert neighbours_are_done(client)
    assert counts(client.squid.recover()) == {"scheduled": 1}


@pytest.mark.usefixtures("hurried")
def test_a_locked_run_is_listed_later_and_all_others_now(
    postgres_virtual: PostgresStorage, make_client: MakeClient
) -> None:
    client = make_client(postgres_virtual)
    runs = [receipt.run_id for receipt in client.squid.start_many("line", [{}] * 5)]
    with raw(postgres_virtual, autocommit=False) as connection:
        connection.execute("SELECT FROM runs WHERE run_id = %s FOR UPDATE", (runs[2],))
        report = client.squid.recover()
    assert (report.listed, report.failed) == (4, {})
    assert client.squid.recover().listed == 1
    assert client.squid.recover() == RecoveryReport()


class CountingStorage(PostgresStorage):
    """Postgres, which counts what is asked of it."""

    reads = 0
    transactions = 0

    def rows(self, text: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        """Read, and count that."""
        self.reads += 1
        return super().rows(text, *values)

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Lock and write, and count that."""
        self.transactions += 1
        with super().transaction() as transaction:
            yield transaction


def test_recovery_of_two_thousand_healthy_runs_touches_none_of_them(
    postgres_url: str, schema: str, clock: VirtualClock, make_client: MakeClient
) -> None:
    storage = CountingStorage(postgres_url, schema, clock=clock)
    storage.upgrade()
    client = make_client(storage, (w.line(), w.waiting(), w.decided_first(), w.retried(), w.parent()))
    for workflow, count in (("line", 900), ("waiting", 400), ("decided_first", 400), ("retried", 300)):
        client.squid.start_many(workflow, [{}] * count)
    client.squid.runtime.dispatch.claim(client.case, "somebody", limit=100, lease=timedelta(days=1))
    for _ in range(20):
        assert client.squid.execute_next(client.case) is not None
    client.squid.recover()  # lists them
    written = len(everything(storage))
    storage.reads = storage.transactions = 0

    report = client.squid.recover()

    assert report == RecoveryReport()
    assert len(everything(storage)) == written
    assert storage.transactions == 0
    assert storage.reads < 10
    storage.close()


@pytest.mark.timeout(300)
def test_more_dead_letters_than_are_parked_at_once_are_all_parked(
    postgres_virtual: PostgresStorage, make_client: MakeClient
) -> None:
    client = make_client(postgres_virtual)
    lease = timedelta(minutes=1)
    client.squid.start_many("deadly", [{}] * (MAX_CLAIMS + 1))
    dispatch = client.squid.runtime.dispatch
    for _ in range(2):
        taken = [
            *dispatch.claim(client.case, "x", limit=MAX_CLAIMS, lease=lease),
            *dispatch.claim(client.case, "x", lease=lease),
        ]
        assert len(taken) == MAX_CLAIMS + 1
        client.clock.advance(2 * lease)

    report = client.squid.recover()

    assert counts(report) == {"dead_lettered": MAX_CLAIMS + 1}
    run = RunUnit.fold(postgres_virtual.read_run(taken[-1].ref.run_id))
    assert [attempt.status for attempt in run.dispatch.attempts.values()] == ["dead_lettered"]
