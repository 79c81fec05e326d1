"""Rows of runs, dead letters and anomalies: the fold on every storage, and the live views of Postgres."""

from typing import Any

from squid_dagster.journal import PostgresQueries, RunFilter, rebuild_views
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.facts import (
    applied,
    cataloged,
    indexed,
    planned,
    queued,
    runnable,
    scheduled,
    started,
    step_paused,
    step_resolved,
    t,
    terminal,
)
from tests.journal.queries.facts import lost, window
from tests.journal.queries.fixture import QueriesFixture, pages

# --- one run --------------------------------------------------------------------------------------------------------


def test_a_run_s_row_says_what_its_facts_say(fixture: QueriesFixture) -> None:
    # given a run that is a child, replays another and waits for a person
    context = {"parent": {"run_id": "run-0"}}
    about: dict[str, Any] = {"trigger": "api", "definition_version": "v1", "definition_fingerprint": "f1"}
    fixture.put(started(at=1, context=context, replayed_from_run_id="run-9", **about), queued(), step_paused(at=5))
    fixture.put(indexed())
    # when its row is read
    row = fixture.queries.get_run("run-1")
    # then every column is there
    assert row is not None
    assert row._asdict() == {
        "run_id": "run-1",
        "position": fixture.storage.read_run("run-1")[0].position,
        "status": "paused",
        "workflow": "billing",
        "trigger": "api",
        "queue": "default",
        "definition_version": "v1",
        "definition_fingerprint": "f1",
        "parent_run_id": "run-0",
        "replayed_from_run_id": "run-9",
        "started_at": t(1),
        "ended_at": None,
        "terminal_status": None,
        "manual_step": "review",
        "manual_kind": "approval",
        "paused_at": t(5),
        "quarantined": False,
        "indexed": True,
        "cataloged": False,
        "anomalies": 0,
    }
    # and it is the row that a listing shows
    assert fixture.queries.list_runs(RunFilter(), None, 10) == [row]


def test_a_run_s_row_follows_it_to_its_end(fixture: QueriesFixture) -> None:
    fixture.put(started(), queued(), step_paused())
    fixture.put(step_resolved(), terminal(status="failed", error={"message": "no"}), cataloged())
    fixture.put(applied())
    row = fixture.queries.get_run("run-1")
    assert row is not None
    assert (row.status, row.terminal_status, row.ended_at) == ("failed", "failed", t(50))
    assert (row.manual_step, row.manual_kind, row.paused_at) == (None, None, None)
    assert (row.cataloged, row.anomalies) == (True, 1)


def test_a_run_that_only_its_queue_knows_has_a_row_too(fixture: QueriesFixture) -> None:
    fixture.put(scheduled())
    row = fixture.queries.get_run("run-1")
    assert row is not None
    assert (row.status, row.workflow, row.queue, row.started_at) == ("new", None, "default", None)
    assert fixture.listed() == ["run-1"]


def test_a_run_s_row_counts_its_own_anomalies(fixture: QueriesFixture) -> None:
    fixture.start("good", "bad")
    fixture.put(applied("bad", step="nothing"))
    rows = fixture.queries.list_runs(RunFilter(), None, 10)
    assert {row.run_id: row.anomalies for row in rows} == {"good": 0, "bad": 1}


def test_a_run_that_no_fact_names_is_none(fixture: QueriesFixture) -> None:
    fixture.start("run-1")
    assert fixture.queries.get_run("run-2") is None


def test_dead_letters_of_open_runs_are_shown_by_position(fixture: QueriesFixture) -> None:
    for run, queue in (("c3", "default"), ("c2", "slow"), ("c1", "default")):
        fixture.put(*lost(run, queue=queue))
    parked = fixture.queries.dead_letters(None, 10)
    assert [(a.run_id, a.queue, a.status, a.deliveries) for a in parked] == [
        ("c3", "default", "dead_lettered", 1),
        ("c2", "slow", "dead_lettered", 1),
        ("c1", "default", "dead_lettered", 1),
    ]
    assert [a.run_id for a in fixture.queries.dead_letters("default", 10)] == ["c3", "c1"]
    assert fixture.queries.dead_letters("nothing", 10) == []
    assert (
        pages(lambda after, limit: fixture.queries.dead_letters(None, limit, after), lambda a: a.position, 0, 1)
        == parked
    )


def test_a_dead_letter_that_nobody_waits_for_is_not_shown(fixture: QueriesFixture) -> None:
    # given one that was retried, one that an error route took, one of a run that has ended
    fixture.put(*lost("d1"), planned(runnable("d1", attempt=2), run="d1", at=110), scheduled("d1", attempt=2, at=110))
    fixture.put(*lost("d2"), applied("d2", at=110, result=None))
    fixture.put(*lost("d3"))
    fixture.put(terminal("d3", at=110))
    # and one that still waits, although its retry was planned: it is not on the queue yet
    fixture.put(*lost("d4"), planned(runnable("d4", attempt=2), run="d4", at=110))
    assert [a.run_id for a in fixture.queries.dead_letters(None, 10)] == ["d4"]


# --- anomalies ------------------------------------------------------------------------------------------------------


def test_anomalies_are_shown_by_position_and_one_entry_s_are_never_split(fixture: QueriesFixture) -> None:
    # given a plan that conflicts twice, a result of nothing, and a conflict of another run
    fixture.put(planned(runnable(step="charge"), runnable(step="ship")))
    other = {"amount": 6}
    fixture.put(planned(runnable(step="charge", input=other), runnable(step="ship", input=other), at=1))
    fixture.put(applied(step="nothing", at=2))
    fixture.put(applied("run-2", at=3))
    anomalies = fixture.queries.anomalies(None, 10)
    assert [(a.reason, a.run_id, a.subject) for a in anomalies] == [
        ("conflicting_runnable_intent", "run-1", "run-1:charge:1:1"),
        ("conflicting_runnable_intent", "run-1", "run-1:ship:1:1"),
        ("unknown_runnable_intent", "run-1", "run-1:nothing:1:1"),
        ("unknown_runnable_intent", "run-2", "run-2:charge:1:1"),
    ]
    # when they are read one by one, the two of one entry come together
    assert fixture.queries.anomalies(None, 1) == anomalies[:2]
    assert fixture.queries.anomalies(None, 1, anomalies[0].position) == anomalies[2:3]
    assert fixture.queries.anomalies("run-1", 1) == anomalies[:2]
    assert fixture.queries.anomalies("run-1", 10, anomalies[1].position) == anomalies[2:3]
    assert fixture.queries.anomalies("run-2", 10) == anomalies[3:]
    assert fixture.queries.anomalies("run-3", 10) == []
    assert fixture.queries.anomalies(None, 10, anomalies[-1].position) == []


# --- only Postgres --------------------------------------------------------------------------------------------------


def test_answers_survive_a_rebuild_of_the_views(postgres_virtual: PostgresStorage, clock: VirtualClock) -> None:
    fixture = QueriesFixture(postgres_virtual, PostgresQueries(postgres_virtual), clock)
    fixture.start("h1", trigger="nightly", context=window("2026-01-02T03:00:00+00:00"))
    fixture.put(*lost("h2"), applied("h2", step="nothing"))
    before = (
        fixture.queries.list_runs(RunFilter(), None, 10),
        fixture.queries.dead_letters(None, 10),
        fixture.to_repair(),
    )
    rebuild_views(postgres_virtual)
    assert (
        fixture.queries.list_runs(RunFilter(), None, 10),
        fixture.queries.dead_letters(None, 10),
        fixture.to_repair(),
    ) == before
    assert fixture.queries.schedule_cursor("billing", "nightly").ahead
