"""What is asked about queues: the fold on every storage, and the live views of Postgres."""

from typing import Any

import pytest

from squid_dagster.journal import QueueRow
from squid_dagster.journal.contract.queries import BacklogRow
from squid_dagster.journal.fold_store import queries as fold_queries
from squid_dagster.journal.postgres import queries as postgres_queries
from squid_dagster.protocol import definition_key
from squid_dagster.protocol.errors import InvalidArgument, InvalidThread
from tests.facts import (
    T0,
    claimed,
    completed,
    failed_with_retry,
    planned,
    quarantined,
    queue_paused,
    queue_resumed,
    queued,
    scheduled,
    started,
    t,
    terminal,
)
from tests.journal.queries.fixture import QueriesFixture

# --- queues ---------------------------------------------------------------------------------------------------------


def test_a_queue_s_row_counts_what_can_be_claimed(fixture: QueriesFixture) -> None:
    fixture.put(queue_paused("empty"), queue_paused("slow"), queue_resumed("slow"))
    for run, visible in (("e1", 0), ("e2", 5), ("e3", 500)):
        fixture.put(started(run), planned(run=run), scheduled(run, visible_at=t(visible)))
    fixture.put(scheduled("e4"), claimed("e4", at=10, lease=20))
    fixture.put(scheduled("e5"), claimed("e5", at=10, lease=200))
    fixture.put(scheduled("e6"), claimed("e6"), completed("e6"))
    fixture.put(scheduled("e7"), terminal("e7"))
    fixture.put(scheduled("e8"), quarantined("e8"))
    fixture.put(scheduled("e9", queue="slow"), claimed("e9", queue="slow", lease=20))
    fixture.put(failed_with_retry("e9", queue="slow", at=25, delay=300))
    fixture.wait(60)
    assert fixture.queries.queues() == [
        QueueRow("default", False, visible=2, scheduled=1, claimed=1, expired=1, oldest_due_at=T0),
        QueueRow("empty", True, 0, 0, 0, 0, None),
        QueueRow("slow", False, visible=0, scheduled=1, claimed=0, expired=0, oldest_due_at=None),
    ]


def test_work_is_counted_up_to_a_limit(fixture: QueriesFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (postgres_queries, fold_queries):
        monkeypatch.setattr(module, "MOST_COUNTED", 3)
    for n in range(5):
        fixture.put(scheduled(f"due-{n}", workflow="abc"[n % 3], priority=n % 2))
        fixture.put(scheduled(f"later-{n}", visible_at=t(500 + n)))
        fixture.put(scheduled(f"held-{n}"), claimed(f"held-{n}", at=10, lease=200))
        fixture.put(scheduled(f"lost-{n}"), claimed(f"lost-{n}", at=10, lease=20))
    fixture.put(scheduled("one", queue="small"))
    fixture.wait(60)
    assert fixture.queries.queues() == [
        QueueRow("default", False, visible=3, scheduled=3, claimed=3, expired=3, oldest_due_at=T0),
        QueueRow("small", False, visible=1, scheduled=0, claimed=0, expired=0, oldest_due_at=T0),
    ]


def test_a_queue_s_row_follows_a_claim_to_the_very_end_of_its_lease(fixture: QueriesFixture) -> None:
    fixture.put(scheduled(), claimed(at=0, lease=20))
    fixture.wait(19)
    assert fixture.queries.queues() == [QueueRow("default", False, 0, 0, claimed=1, expired=0, oldest_due_at=None)]
    fixture.wait(1)
    assert fixture.queries.queues() == [QueueRow("default", False, 0, 0, claimed=0, expired=1, oldest_due_at=t(20))]


def test_a_journal_without_work_has_no_queues(fixture: QueriesFixture) -> None:
    assert fixture.queries.queues() == []
    fixture.put(started(), queued())
    assert fixture.queries.queues() == []


# --- backlog --------------------------------------------------------------------------------------------------------


@pytest.fixture
def due_attempts(fixture: QueriesFixture) -> QueriesFixture:
    """Two attempts that are due and one beyond its lease, among others that cannot be claimed, and a paused queue."""
    for run, visible in (("f1", 0), ("f2", 5), ("f3", 500)):
        fixture.put(started(run), planned(run=run), scheduled(run, visible_at=t(visible)))
    fixture.put(scheduled("f4"), claimed("f4", at=10, lease=20))
    fixture.put(scheduled("f5"), claimed("f5", at=10, lease=200))
    fixture.put(scheduled("f6"), claimed("f6"), completed("f6"))
    fixture.put(scheduled("f7"), terminal("f7"))
    fixture.put(scheduled("f8"), quarantined("f8"))
    fixture.put(scheduled("f9", queue="slow"), scheduled("f10", queue="paused"), queue_paused("paused"))
    fixture.wait(60)
    return fixture


def test_a_backlog_counts_what_could_be_claimed_up_to_a_limit(due_attempts: QueriesFixture) -> None:
    backlog = due_attempts.queries.backlog
    assert backlog(["slow", "default", "paused", "empty"], None, 100) == [
        BacklogRow("default", 3, T0),
        BacklogRow("slow", 1, T0),
    ]
    assert backlog(["default"], None, 2) == [BacklogRow("default", 2, T0)]
    assert backlog([], None, 100) == []


def test_a_backlog_counts_work_of_every_priority(fixture: QueriesFixture) -> None:
    fixture.put(*(scheduled(f"f{n}", priority=n, visible_at=t(9 - n)) for n in range(3)))
    fixture.wait(60)
    assert fixture.queries.backlog(["default"], None, 100) == [BacklogRow("default", 3, t(7))]
    assert fixture.queries.backlog(["default"], None, 2) == [BacklogRow("default", 2, t(7))]  # of all together


def test_a_backlog_counts_only_what_one_has_the_definitions_for(due_attempts: QueriesFixture) -> None:
    backlog = due_attempts.queries.backlog
    known = scheduled("f1")
    mine = definition_key(known.workflow, known.definition_fingerprint)
    assert backlog(["default"], [mine], 100) == [BacklogRow("default", 3, T0)]
    assert backlog(["default"], ["another"], 100) == []
    assert backlog(["default"], [], 100) == []


@pytest.mark.parametrize(
    "arguments",
    [("default", None, 1), (["default"], "flow", 1), ([""], None, 1), (["default"], [""], 1), ([], None, 0)],
)
def test_a_backlog_that_makes_no_sense_is_refused(fixture: QueriesFixture, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((InvalidArgument, InvalidThread)):
        fixture.queries.backlog(*arguments)
