"""Listings of runs: the fold on every storage, and the live views of Postgres."""

from datetime import datetime
from typing import Any

import pytest

from squid_dagster.journal import RunFilter
from squid_dagster.journal.contract.queries import RUN_STATUSES
from squid_dagster.protocol.errors import InvalidArgument
from tests.facts import (
    cataloged,
    indexed,
    planned,
    quarantined,
    queued,
    scheduled,
    signal,
    started,
    step_paused,
    t,
    terminal,
)
from tests.journal.queries.fixture import QueriesFixture, pages

# --- listing --------------------------------------------------------------------------------------------------------


@pytest.fixture
def six_runs(fixture: QueriesFixture) -> QueriesFixture:
    """Runs a1 to a6 in the order of their starts, in several states, and workflows, and queues."""
    fixture.put(started("a1", workflow="billing", at=10), queued("a1"))
    fixture.put(terminal("a1", at=20))
    fixture.put(
        started("a2", workflow="billing", trigger="nightly", at=20), queued("a2", queue="slow"), step_paused("a2")
    )
    fixture.put(started("a3", workflow="refund", definition_version="v2", at=30), queued("a3"))
    fixture.put(started("a4", workflow="billing", at=40, context={"parent": {"run_id": "a1"}}), queued("a4"))
    fixture.put(started("a5", workflow="refund", at=50, context={"parent": {"run_id": "a1"}}), planned(run="a5"))
    fixture.put(started("a6", workflow="billing", at=60), queued("a6", queue="slow"), quarantined("a6"))
    # a1 changes last, which does not move it
    fixture.put(signal("a1", at=70))
    return fixture


def test_runs_are_listed_newest_first(six_runs: QueriesFixture) -> None:
    assert six_runs.listed() == ["a6", "a5", "a4", "a3", "a2", "a1"]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"workflow": "billing"}, ["a6", "a4", "a2", "a1"]),
        ({"workflow": "nothing"}, []),
        ({"status": "paused"}, ["a2"]),
        ({"status": ["paused", "completed", "running"]}, ["a5", "a2", "a1"]),
        ({"status": {"cancelled"}}, []),
        ({"status": ()}, []),
        ({"open_only": True}, ["a6", "a5", "a4", "a3", "a2"]),
        ({"open_only": True, "status": "completed"}, []),
        ({"open_only": True, "status": ("completed", "quarantined")}, ["a6"]),
        ({"workflow": "billing", "status": "started"}, ["a4"]),
        ({"workflow": "billing", "open_only": True}, ["a6", "a4", "a2"]),
        ({"queue": "slow"}, ["a6", "a2"]),
        ({"queue": "default"}, ["a4", "a3", "a1"]),
        ({"queue": "slow", "status": "paused"}, ["a2"]),
        ({"queue": "slow", "workflow": "refund"}, []),
        ({"trigger": "nightly"}, ["a2"]),
        ({"trigger": "nightly", "workflow": "billing", "status": ["paused", "failed"]}, ["a2"]),
        ({"definition_version": "v2"}, ["a3"]),
        ({"parent_run_id": "a1"}, ["a5", "a4"]),
        ({"parent_run_id": "a1", "workflow": "refund"}, ["a5"]),
        ({"parent_run_id": "a1", "status": "started"}, ["a4"]),
        ({"parent_run_id": "a1", "queue": "default", "open_only": True}, ["a4"]),
        ({"started_after": t(30)}, ["a6", "a5", "a4"]),
        ({"started_before": t(30)}, ["a2", "a1"]),
        ({"started_after": t(10), "started_before": t(50), "workflow": "billing"}, ["a4", "a2"]),
        ({"started_after": t(10), "status": "running"}, ["a5"]),
    ],
    ids=str,
)
def test_a_listing_shows_what_it_was_asked_for(
    six_runs: QueriesFixture, filters: dict[str, Any], expected: list[str]
) -> None:
    assert six_runs.listed(**filters) == expected
    # also in pages, and from a row on
    rows = pages(
        lambda before, limit: six_runs.queries.list_runs(RunFilter(**filters), before, limit),
        lambda r: r.position,
        None,
        2,
    )
    assert [row.run_id for row in rows] == expected
    if len(expected) > 1:
        assert six_runs.listed(before=rows[0].position, limit=1, **filters) == expected[1:2]


def test_a_page_begins_with_the_newest_of_many_runs_of_one_status(fixture: QueriesFixture) -> None:
    fixture.start(*(f"b{n}" for n in range(5)))
    assert fixture.listed(limit=2) == fixture.listed(limit=2, workflow="billing") == ["b4", "b3"]


def test_only_the_children_of_one_parent_are_listed(fixture: QueriesFixture) -> None:
    for parent in ("one", "two"):
        fixture.start(f"child-of-{parent}", context={"parent": {"run_id": parent}})
    assert fixture.listed(parent_run_id="one") == ["child-of-one"]
    assert fixture.listed(parent_run_id="three") == []


def test_every_status_can_be_asked_for(six_runs: QueriesFixture) -> None:
    by_status = [six_runs.listed(status=status) for status in RUN_STATUSES]
    assert sorted(run for runs in by_status for run in runs) == ["a1", "a2", "a3", "a4", "a5", "a6"]
    assert six_runs.listed(status=RUN_STATUSES) == six_runs.listed()


@pytest.mark.parametrize(
    "filters",
    [
        {"status": "held"},
        {"status": ["running", "held"]},
        {"status": 7},
        {"workflow": ""},
        {"workflow": "a\0b"},
        {"queue": 5},
        {"trigger": "x" * 1001},
        {"started_after": datetime(2026, 1, 1)},  # noqa: DTZ001
        {"started_before": "yesterday"},
    ],
    ids=str,
)
def test_a_filter_that_makes_no_sense_is_refused(filters: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        RunFilter(**filters)


@pytest.mark.parametrize("limit", [0, -1, 10_001, True, "5", None, 1.0])
def test_a_bad_limit_is_refused(fixture: QueriesFixture, limit: Any) -> None:
    calls: list[Any] = [
        lambda: fixture.queries.list_runs(RunFilter(), None, limit),
        lambda: fixture.queries.runs_to_repair("", limit),
        lambda: fixture.queries.runs_to_list(limit),
        lambda: fixture.queries.dead_letters(None, limit),
        lambda: fixture.queries.anomalies(None, limit),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match="limit"):
            call()


def test_other_bad_arguments_are_refused(fixture: QueriesFixture) -> None:
    calls: list[Any] = [
        lambda: fixture.queries.list_runs({"status": "running"}, None, 5),  # type: ignore[arg-type]
        lambda: fixture.queries.list_runs(RunFilter(), -1, 5),
        lambda: fixture.queries.get_run(""),
        lambda: fixture.queries.get_run("a\0b"),
        lambda: fixture.queries.runs_to_repair("a\0b", 5),
        lambda: fixture.queries.runs_to_repair("", 5, ""),
        lambda: fixture.queries.dead_letters("", 5),
        lambda: fixture.queries.dead_letters(None, 5, -1),
        lambda: fixture.queries.anomalies("a\0b", 5),
        lambda: fixture.queries.anomalies(None, 5, -1),
        lambda: fixture.queries.schedule_cursor("", "x"),
        lambda: fixture.queries.schedule_cursor("x", "\ud800"),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument):
            call()


# --- index and catalog ----------------------------------------------------------------------------------------------


def test_started_runs_without_index_or_catalog_fact_are_found_oldest_first(fixture: QueriesFixture) -> None:
    fixture.put(started("b1"), indexed("b1"))
    fixture.put(started("b2"))
    fixture.put(started("b3"), cataloged("b3"), terminal("b3"))
    fixture.put(started("b4"), indexed("b4"), cataloged("b4"))
    fixture.put(scheduled("b5"))
    rows = fixture.queries.runs_to_list(10)
    assert [(row.run_id, row.indexed, row.cataloged) for row in rows] == [
        ("b1", True, False),
        ("b2", False, False),
        ("b3", False, True),
    ]
    assert fixture.queries.runs_to_list(2) == rows[:2]
    # once they are listed, nothing is left
    fixture.put(*(indexed(run) for run in ("b2", "b3")), *(cataloged(run) for run in ("b1", "b2")))
    assert fixture.queries.runs_to_list(10) == []
