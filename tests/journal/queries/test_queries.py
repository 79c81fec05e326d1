"""Questions about a whole journal: one suite for the fold on every storage, and for the live views of Postgres."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from squid_dagster.journal import FoldQueries, MemoryStorage, PostgresQueries, QueueRow, RunFilter, rebuild_views
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.queries import RUN_STATUSES, BacklogRow, ScheduleCursor
from squid_dagster.journal.fold_store import queries as fold_queries
from squid_dagster.journal.postgres import queries as postgres_queries
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import definition_key
from squid_dagster.protocol.errors import InvalidArgument, InvalidThread
from tests.facts import (
    T0,
    applied,
    cataloged,
    claimed,
    completed,
    dead_lettered,
    failed_with_retry,
    indexed,
    planned,
    quarantined,
    queue_paused,
    queue_resumed,
    queued,
    runnable,
    scheduled,
    signal,
    started,
    step_paused,
    step_resolved,
    t,
    terminal,
)
from tests.journal.queries.fixture import Room, pages


@pytest.fixture(params=["fold on memory", "fold on memory, thread by thread", "fold on postgres", "postgres"])
def room(request: pytest.FixtureRequest, clock: VirtualClock) -> Room:
    """An empty journal and its queries, in every combination."""
    if "memory" in request.param:
        memory = MemoryStorage(clock, atomic_across_threads="thread" not in request.param)
        return Room(memory, FoldQueries(memory), clock)
    postgres: PostgresStorage = request.getfixturevalue("postgres_virtual")
    queries = PostgresQueries(postgres) if request.param == "postgres" else FoldQueries(postgres)
    return Room(postgres, queries, clock)


# --- one run --------------------------------------------------------------------------------------------------------


def test_a_run_s_row_says_what_its_facts_say(room: Room) -> None:
    # given a run that is a child, replays another and waits for a person
    context = {"parent": {"run_id": "run-0"}}
    about: dict[str, Any] = {"trigger": "api", "definition_version": "v1", "definition_fingerprint": "f1"}
    room.put(started(at=1, context=context, replayed_from_run_id="run-9", **about), queued(), step_paused(at=5))
    room.put(indexed())
    # when its row is read
    row = room.queries.get_run("run-1")
    # then every column is there
    assert row is not None
    assert row._asdict() == {
        "run_id": "run-1",
        "position": room.storage.read_run("run-1")[0].position,
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
    assert room.queries.list_runs(RunFilter(), None, 10) == [row]


def test_a_run_s_row_follows_it_to_its_end(room: Room) -> None:
    room.put(started(), queued(), step_paused())
    room.put(step_resolved(), terminal(status="failed", error={"message": "no"}), cataloged())
    room.put(applied())
    row = room.queries.get_run("run-1")
    assert row is not None
    assert (row.status, row.terminal_status, row.ended_at) == ("failed", "failed", t(50))
    assert (row.manual_step, row.manual_kind, row.paused_at) == (None, None, None)
    assert (row.cataloged, row.anomalies) == (True, 1)


def test_a_run_that_only_its_queue_knows_has_a_row_too(room: Room) -> None:
    room.put(scheduled())
    row = room.queries.get_run("run-1")
    assert row is not None
    assert (row.status, row.workflow, row.queue, row.started_at) == ("new", None, "default", None)
    assert room.listed() == ["run-1"]


def test_a_run_s_row_counts_its_own_anomalies(room: Room) -> None:
    room.start("good", "bad")
    room.put(applied("bad", step="nothing"))
    rows = room.queries.list_runs(RunFilter(), None, 10)
    assert {row.run_id: row.anomalies for row in rows} == {"good": 0, "bad": 1}


def test_a_run_that_no_fact_names_is_none(room: Room) -> None:
    room.start("run-1")
    assert room.queries.get_run("run-2") is None


# --- listing --------------------------------------------------------------------------------------------------------


@pytest.fixture
def busy(room: Room) -> Room:
    """Runs a1 to a6 in the order of their starts, in several states, and workflows, and queues."""
    room.put(started("a1", workflow="billing", at=10), queued("a1"))
    room.put(terminal("a1", at=20))
    room.put(started("a2", workflow="billing", trigger="nightly", at=20), queued("a2", queue="slow"), step_paused("a2"))
    room.put(started("a3", workflow="refund", definition_version="v2", at=30), queued("a3"))
    room.put(started("a4", workflow="billing", at=40, context={"parent": {"run_id": "a1"}}), queued("a4"))
    room.put(started("a5", workflow="refund", at=50, context={"parent": {"run_id": "a1"}}), planned(run="a5"))
    room.put(started("a6", workflow="billing", at=60), queued("a6", queue="slow"), quarantined("a6"))
    # a1 gets news last, which does not move it
    room.put(signal("a1", at=70))
    return room


def test_runs_are_listed_newest_first(busy: Room) -> None:
    assert busy.listed() == ["a6", "a5", "a4", "a3", "a2", "a1"]


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
def test_a_listing_shows_what_it_was_asked_for(busy: Room, filters: dict[str, Any], expected: list[str]) -> None:
    assert busy.listed(**filters) == expected
    # also in pages, and from a row on
    rows = pages(
        lambda before, limit: busy.queries.list_runs(RunFilter(**filters), before, limit), lambda r: r.position, None, 2
    )
    assert [row.run_id for row in rows] == expected
    if len(expected) > 1:
        assert busy.listed(before=rows[0].position, limit=1, **filters) == expected[1:2]


def test_a_page_begins_with_the_newest_of_many_runs_of_one_status(room: Room) -> None:
    room.start(*(f"b{n}" for n in range(5)))
    assert room.listed(limit=2) == room.listed(limit=2, workflow="billing") == ["b4", "b3"]


def test_only_the_children_of_one_parent_are_listed(room: Room) -> None:
    for parent in ("one", "two"):
        room.start(f"child-of-{parent}", context={"parent": {"run_id": parent}})
    assert room.listed(parent_run_id="one") == ["child-of-one"]
    assert room.listed(parent_run_id="three") == []


def test_every_status_can_be_asked_for(busy: Room) -> None:
    by_status = [busy.listed(status=status) for status in RUN_STATUSES]
    assert sorted(run for found in by_status for run in found) == ["a1", "a2", "a3", "a4", "a5", "a6"]
    assert busy.listed(status=RUN_STATUSES) == busy.listed()


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
def test_a_bad_limit_is_refused(room: Room, limit: Any) -> None:
    calls: list[Any] = [
        lambda: room.queries.list_runs(RunFilter(), None, limit),
        lambda: room.queries.runs_to_repair("", limit),
        lambda: room.queries.runs_to_list(limit),
        lambda: room.queries.dead_letters(None, limit),
        lambda: room.queries.anomalies(None, limit),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match="limit"):
            call()


def test_other_bad_arguments_are_refused(room: Room) -> None:
    calls: list[Any] = [
        lambda: room.queries.list_runs({"status": "running"}, None, 5),  # type: ignore[arg-type]
        lambda: room.queries.list_runs(RunFilter(), -1, 5),
        lambda: room.queries.get_run(""),
        lambda: room.queries.get_run("a\0b"),
        lambda: room.queries.runs_to_repair("a\0b", 5),
        lambda: room.queries.runs_to_repair("", 5, ""),
        lambda: room.queries.dead_letters("", 5),
        lambda: room.queries.dead_letters(None, 5, -1),
        lambda: room.queries.anomalies("a\0b", 5),
        lambda: room.queries.anomalies(None, 5, -1),
        lambda: room.queries.schedule_cursor("", "x"),
        lambda: room.queries.schedule_cursor("x", "\ud800"),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument):
            call()


# --- index and catalog ----------------------------------------------------------------------------------------------


def test_started_runs_without_index_or_catalog_fact_are_found_oldest_first(room: Room) -> None:
    room.put(started("b1"), indexed("b1"))
    room.put(started("b2"))
    room.put(started("b3"), cataloged("b3"), terminal("b3"))
    room.put(started("b4"), indexed("b4"), cataloged("b4"))
    room.put(scheduled("b5"))
    found = room.queries.runs_to_list(10)
    assert [(row.run_id, row.indexed, row.cataloged) for row in found] == [
        ("b1", True, False),
        ("b2", False, False),
        ("b3", False, True),
    ]
    assert room.queries.runs_to_list(2) == found[:2]
    # once they are listed, nothing is left
    room.put(*(indexed(run) for run in ("b2", "b3")), *(cataloged(run) for run in ("b1", "b2")))
    assert room.queries.runs_to_list(10) == []


# --- dead letters ---------------------------------------------------------------------------------------------------


def lost(run: str, **fields: Any) -> list[Any]:
    """A run whose only attempt was claimed as often as it may be, and is parked."""
    queue = {key: value for key, value in fields.items() if key == "queue"}
    return [
        started(run),
        planned(run=run),
        scheduled(run, max_deliveries=1, **fields),
        claimed(run, **queue),
        dead_lettered(run, error={"message": "lost"}, **queue),
    ]


def test_dead_letters_of_open_runs_are_shown_by_position(room: Room) -> None:
    for run, queue in (("c3", "default"), ("c2", "slow"), ("c1", "default")):
        room.put(*lost(run, queue=queue))
    found = room.queries.dead_letters(None, 10)
    assert [(a.run_id, a.queue, a.status, a.deliveries) for a in found] == [
        ("c3", "default", "dead_lettered", 1),
        ("c2", "slow", "dead_lettered", 1),
        ("c1", "default", "dead_lettered", 1),
    ]
    assert [a.run_id for a in room.queries.dead_letters("default", 10)] == ["c3", "c1"]
    assert room.queries.dead_letters("nothing", 10) == []
    assert (
        pages(lambda after, limit: room.queries.dead_letters(None, limit, after), lambda a: a.position, 0, 1) == found
    )


def test_a_dead_letter_that_nobody_waits_for_is_not_shown(room: Room) -> None:
    # given one that was retried, one that an error route took, one of a run that has ended
    room.put(*lost("d1"), planned(runnable("d1", attempt=2), run="d1", at=110), scheduled("d1", attempt=2, at=110))
    room.put(*lost("d2"), applied("d2", at=110, result=None))
    room.put(*lost("d3"))
    room.put(terminal("d3", at=110))
    # and one that still waits, although its retry was planned: it is not on the queue yet
    room.put(*lost("d4"), planned(runnable("d4", attempt=2), run="d4", at=110))
    assert [a.run_id for a in room.queries.dead_letters(None, 10)] == ["d4"]


# --- queues ---------------------------------------------------------------------------------------------------------


def test_a_queue_s_row_counts_what_can_be_claimed(room: Room) -> None:
    room.put(queue_paused("empty"), queue_paused("slow"), queue_resumed("slow"))
    for run, visible in (("e1", 0), ("e2", 5), ("e3", 500)):
        room.put(started(run), planned(run=run), scheduled(run, visible_at=t(visible)))
    room.put(scheduled("e4"), claimed("e4", at=10, lease=20))
    room.put(scheduled("e5"), claimed("e5", at=10, lease=200))
    room.put(scheduled("e6"), claimed("e6"), completed("e6"))
    room.put(scheduled("e7"), terminal("e7"))
    room.put(scheduled("e8"), quarantined("e8"))
    room.put(scheduled("e9", queue="slow"), claimed("e9", queue="slow", lease=20))
    room.put(failed_with_retry("e9", queue="slow", at=25, delay=300))
    room.wait(60)
    assert room.queries.queues() == [
        QueueRow("default", False, visible=2, scheduled=1, claimed=1, expired=1, oldest_due_at=T0),
        QueueRow("empty", True, 0, 0, 0, 0, None),
        QueueRow("slow", False, visible=0, scheduled=1, claimed=0, expired=0, oldest_due_at=None),
    ]


def test_work_is_counted_up_to_a_limit(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (postgres_queries, fold_queries):
        monkeypatch.setattr(module, "MOST_COUNTED", 3)
    for n in range(5):
        room.put(scheduled(f"due-{n}", workflow="abc"[n % 3], priority=n % 2))
        room.put(scheduled(f"later-{n}", visible_at=t(500 + n)))
        room.put(scheduled(f"held-{n}"), claimed(f"held-{n}", at=10, lease=200))
        room.put(scheduled(f"lost-{n}"), claimed(f"lost-{n}", at=10, lease=20))
    room.put(scheduled("one", queue="small"))
    room.wait(60)
    assert room.queries.queues() == [
        QueueRow("default", False, visible=3, scheduled=3, claimed=3, expired=3, oldest_due_at=T0),
        QueueRow("small", False, visible=1, scheduled=0, claimed=0, expired=0, oldest_due_at=T0),
    ]


def test_a_queue_s_row_follows_a_claim_to_the_very_end_of_its_lease(room: Room) -> None:
    room.put(scheduled(), claimed(at=0, lease=20))
    room.wait(19)
    assert room.queries.queues() == [QueueRow("default", False, 0, 0, claimed=1, expired=0, oldest_due_at=None)]
    room.wait(1)
    assert room.queries.queues() == [QueueRow("default", False, 0, 0, claimed=0, expired=1, oldest_due_at=t(20))]


def test_a_journal_without_work_has_no_queues(room: Room) -> None:
    assert room.queries.queues() == []
    room.put(started(), queued())
    assert room.queries.queues() == []


# --- backlog --------------------------------------------------------------------------------------------------------


@pytest.fixture
def backlogged(room: Room) -> Room:
    """Two attempts that are due and one beyond its lease, among others that nobody can claim, and a paused queue."""
    for run, visible in (("f1", 0), ("f2", 5), ("f3", 500)):
        room.put(started(run), planned(run=run), scheduled(run, visible_at=t(visible)))
    room.put(scheduled("f4"), claimed("f4", at=10, lease=20))
    room.put(scheduled("f5"), claimed("f5", at=10, lease=200))
    room.put(scheduled("f6"), claimed("f6"), completed("f6"))
    room.put(scheduled("f7"), terminal("f7"))
    room.put(scheduled("f8"), quarantined("f8"))
    room.put(scheduled("f9", queue="slow"), scheduled("f10", queue="paused"), queue_paused("paused"))
    room.wait(60)
    return room


def test_a_backlog_counts_what_could_be_claimed_up_to_a_limit(backlogged: Room) -> None:
    backlog = backlogged.queries.backlog
    assert backlog(["slow", "default", "paused", "empty"], None, 100) == [
        BacklogRow("default", 3, T0),
        BacklogRow("slow", 1, T0),
    ]
    assert backlog(["default"], None, 2) == [BacklogRow("default", 2, T0)]
    assert backlog([], None, 100) == []


def test_a_backlog_counts_work_of_every_priority(room: Room) -> None:
    room.put(*(scheduled(f"f{n}", priority=n, visible_at=t(9 - n)) for n in range(3)))
    room.wait(60)
    assert room.queries.backlog(["default"], None, 100) == [BacklogRow("default", 3, t(7))]


def test_a_backlog_counts_only_what_one_has_the_definitions_for(backlogged: Room) -> None:
    backlog = backlogged.queries.backlog
    known = scheduled("f1")
    mine = definition_key(known.workflow, known.definition_fingerprint)
    assert backlog(["default"], [mine], 100) == [BacklogRow("default", 3, T0)]
    assert backlog(["default"], ["another"], 100) == []
    assert backlog(["default"], [], 100) == []


@pytest.mark.parametrize(
    "arguments",
    [("default", None, 1), (["default"], "flow", 1), ([""], None, 1), (["default"], [""], 1), ([], None, 0)],
)
def test_a_backlog_that_makes_no_sense_is_refused(room: Room, arguments: tuple[Any, ...]) -> None:
    with pytest.raises((InvalidArgument, InvalidThread)):
        room.queries.backlog(*arguments)


# --- anomalies ------------------------------------------------------------------------------------------------------


def test_anomalies_are_shown_by_position_and_one_entry_s_are_never_split(room: Room) -> None:
    # given a plan that conflicts twice, a result of nothing, and a conflict of another run
    room.put(planned(runnable(step="charge"), runnable(step="ship")))
    other = {"amount": 6}
    room.put(planned(runnable(step="charge", input=other), runnable(step="ship", input=other), at=1))
    room.put(applied(step="nothing", at=2))
    room.put(applied("run-2", at=3))
    found = room.queries.anomalies(None, 10)
    assert [(a.reason, a.run_id, a.subject) for a in found] == [
        ("conflicting_runnable_intent", "run-1", "run-1:charge:1:1"),
        ("conflicting_runnable_intent", "run-1", "run-1:ship:1:1"),
        ("unknown_runnable_intent", "run-1", "run-1:nothing:1:1"),
        ("unknown_runnable_intent", "run-2", "run-2:charge:1:1"),
    ]
    # when they are read one by one, the two of one entry come together
    assert room.queries.anomalies(None, 1) == found[:2]
    assert room.queries.anomalies(None, 1, found[0].position) == found[2:3]
    assert room.queries.anomalies("run-1", 1) == found[:2]
    assert room.queries.anomalies("run-1", 10, found[1].position) == found[2:3]
    assert room.queries.anomalies("run-2", 10) == found[3:]
    assert room.queries.anomalies("run-3", 10) == []
    assert room.queries.anomalies(None, 10, found[-1].position) == []


# --- cron -----------------------------------------------------------------------------------------------------------


LATE = timedelta(days=365).total_seconds()


def window(start: Any) -> dict[str, Any]:
    """What a run is started with when a schedule starts it."""
    return {"schedule": {"intended_window": {"start_at": start, "end_at": None}}}


def test_the_latest_window_of_a_schedule_is_the_latest_by_time_not_by_start(room: Room) -> None:
    long_name = "x" * 999
    for n, (trigger, start) in enumerate(
        [
            ("nightly", "2026-01-02T03:00:00+00:00"),
            ("nightly", "2026-01-04T03:00:00+02:00"),
            ("nightly", "2026-01-03T03:00:00Z"),
            ("hourly", "2026-02-01T00:00:00+00:00"),
            (f"{long_name}a", "2026-03-01T00:00:00+00:00"),
            (f"{long_name}b", "2026-03-02T00:00:00+00:00"),
        ]
    ):
        room.put(started(f"g{n}", trigger=trigger, context=window(start), at=LATE))
    room.put(started("g8", workflow="refund", trigger="nightly", context=window("2026-05-01T00:00:00+00:00"), at=LATE))
    # the run's later life does not matter
    room.put(queued("g1"), terminal("g1", status="cancelled"))

    def latest(workflow: str, trigger: str) -> datetime | None:
        cursor = room.queries.schedule_cursor(workflow, trigger)
        assert cursor.ahead == ()
        return cursor.reached

    assert latest("billing", "nightly") == datetime.fromisoformat("2026-01-04T01:00:00+00:00")
    assert latest("billing", "hourly") == datetime.fromisoformat("2026-02-01T00:00:00+00:00")
    assert latest("billing", f"{long_name}a") == datetime.fromisoformat("2026-03-01T00:00:00+00:00")
    assert latest("billing", "weekly") is None
    assert latest("nothing", "nightly") is None


def test_a_window_that_was_started_ahead_of_its_time_says_nothing_about_those_before_it(room: Room) -> None:
    def put(run: str, window_at: timedelta, started_at: timedelta) -> None:
        start = (T0 + window_at).isoformat()
        room.put(started(run, trigger="hourly", context=window(start), at=started_at.total_seconds()))

    hours = [timedelta(hours=n) for n in range(9)]
    put("a", hours[5], hours[0])
    assert room.queries.schedule_cursor("billing", "hourly") == (None, (T0 + hours[5],))
    put("b", hours[1], hours[1])
    put("c", hours[7], hours[1])
    put("d", hours[7], hours[2])  # the same window, by another identity
    assert room.queries.schedule_cursor("billing", "hourly") == (T0 + hours[1], (T0 + hours[7], T0 + hours[5]))
    # a clock may be off by a minute
    put("e", hours[2], hours[2] - timedelta(minutes=1, microseconds=1))
    assert room.queries.schedule_cursor("billing", "hourly").reached == T0 + hours[1]
    put("f", hours[2], hours[2] - timedelta(minutes=1))
    assert room.queries.schedule_cursor("billing", "hourly").reached == T0 + hours[2]
    # and what came later on time leaves it behind
    put("g", hours[6], hours[8])
    assert room.queries.schedule_cursor("billing", "hourly") == (T0 + hours[6], (T0 + hours[7],))


@pytest.mark.parametrize(
    "context",
    [
        {},
        window(None),
        window("soon"),
        window("2026-01-01T00:00:00"),  # without a zone
        window("0001-01-01T00:00:00+14:00"),  # before all time, in UTC
        window(5),
        {"schedule": "nightly"},
        {"schedule": {"intended_window": [1]}},
        {"parent": {"run_id": "x" * 100_000}},  # more than an index can hold
        {"parent": {"run_id": 7}},
        {"parent": "run-0"},
    ],
    ids=lambda context: str(context)[:60],
)
def test_a_context_that_says_nothing_readable_spoils_nothing(room: Room, context: dict[str, Any]) -> None:
    room.put(started(trigger="nightly", context=context))
    row = room.queries.get_run("run-1")
    assert row is not None
    assert row.parent_run_id is None
    assert room.queries.schedule_cursor("billing", "nightly") == ScheduleCursor()


# --- only Postgres --------------------------------------------------------------------------------------------------


def test_answers_survive_a_rebuild_of_the_views(postgres_virtual: PostgresStorage, clock: VirtualClock) -> None:
    room = Room(postgres_virtual, PostgresQueries(postgres_virtual), clock)
    room.start("h1", trigger="nightly", context=window("2026-01-02T03:00:00+00:00"))
    room.put(*lost("h2"), applied("h2", step="nothing"))
    before = room.queries.list_runs(RunFilter(), None, 10), room.queries.dead_letters(None, 10), room.to_repair()
    rebuild_views(postgres_virtual)
    assert (
        room.queries.list_runs(RunFilter(), None, 10),
        room.queries.dead_letters(None, 10),
        room.to_repair(),
    ) == before
    assert room.queries.schedule_cursor("billing", "nightly").ahead
