"""Starts by the clock: one run for each window, however often, how late and by which process the clock is read."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol.errors import InvalidArgument, InvalidThread, NotFound, SquidError
from squid_dagster.runtime.commands.derived_ids import window_identity
from squid_dagster.workflow import Cron, Workflow
from tests.facts import T0
from tests.runtime.runs import MakeSquid, facts, finish, state_of

HOUR = timedelta(hours=1)
WINDOW = {"start_at": "2026-05-26T12:00:00Z", "end_at": "2026-05-26T13:00:00Z"}


class Report(BaseModel):
    region: str = "all"


def nightly(*crons: Cron, version: str | None = None, name: str = "report", extra_step: bool = False) -> Workflow:
    wf = Workflow(name, payload=Report, version=version, triggers=crons or [hourly()])
    wf.step(name="write")(lambda: "written")
    if extra_step:
        wf.step(name="send")(lambda: "sent")
        wf.route("write", to="send")
        wf.route("send", to="complete")
    else:
        wf.route("write", to="complete")
    return wf


def hourly(catch_up: Any = "latest", name: str = "cron", **options: Any) -> Cron:
    return Cron("0 * * * *", catch_up=catch_up, name=name, **options)


def starts(squid: Squid, receipts: Any) -> list[datetime]:
    """Return the windows that receipts are about, by their starts."""
    contexts = [facts(squid, receipt.run_id, "run_started")[0].context for receipt in receipts]
    return [datetime.fromisoformat(context["schedule"]["intended_window"]["start_at"]) for context in contexts]


# --- one window, one run --------------------------------------------------------------------------------------------


def test_a_window_is_started_once_and_the_run_says_which_it_is(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(nightly(hourly(timezone="Europe/Berlin", payload={"region": "north"})))
    receipt = squid.start_cron("report", "cron", intended_window=WINDOW, actor="dagster", comment="tick")
    started = facts(squid, receipt.run_id, "run_started")[0]
    identity = window_identity("report", "cron", WINDOW["start_at"], WINDOW["end_at"])
    assert started.input == {"region": "north"}
    assert (started.trigger, receipt.idempotency_key) == ("cron", identity)
    assert started.context == {
        "schedule": {
            "workflow": "report",
            "trigger_name": "cron",
            "cron_expression": "0 * * * *",
            "timezone": "Europe/Berlin",
            "idempotency": "return_existing_run",
            "idempotency_key": identity,
            "intended_window": WINDOW,
        }
    }
    (signal,) = facts(squid, receipt.run_id, "run_signal_received")
    assert (signal.signal_type, signal.actor, signal.comment) == ("start_cron", "dagster", "tick")
    written = state_of(squid.journal)
    clock.advance(timedelta(days=30))
    again = squid.start_cron("report", "cron", intended_window=WINDOW)
    assert (again.run_id, again.received_at) == (receipt.run_id, receipt.received_at)
    assert (again.repeated, again.skipped) == (True, False)
    assert state_of(squid.journal) == written


def test_the_identity_of_a_window_is_the_one_that_other_schedulers_know() -> None:
    workflow = "Elixir.SquidMesh.Runtime.SignalTest.CheckoutWorkflow"
    identity = window_identity(workflow, "nightly", WINDOW["start_at"], WINDOW["end_at"])
    assert identity == "sha256:2rax63Kcl2-mdqSRkMMPtvu8OdyyTNUQZMiKylfxcpc"


@pytest.mark.parametrize(
    "spelled",
    [
        {"start_at": "2026-05-26T12:00:00+00:00", "end_at": "2026-05-26T13:00:00+00:00"},
        {"start_at": "2026-05-26T14:00:00+02:00", "end_at": "2026-05-26T15:00:00+02:00"},
        {"start_at": "2026-05-26 12:00:00.000000Z", "end_at": "20260526T130000Z"},
    ],
)
def test_the_same_window_spelled_otherwise_is_the_same_run(make_squid: MakeSquid, spelled: dict[str, str]) -> None:
    squid = make_squid(nightly())
    first = squid.start_cron("report", "cron", intended_window=WINDOW)
    assert squid.start_cron("report", "cron", intended_window=spelled).run_id == first.run_id


def test_another_window_trigger_or_workflow_is_another_run(make_squid: MakeSquid) -> None:
    squid = make_squid([nightly(hourly(), hourly(name="other")), nightly(name="second")])
    later = {"start_at": WINDOW["end_at"], "end_at": "2026-05-26T14:00:00Z"}
    runs = {
        squid.start_cron("report", "cron", intended_window=WINDOW).run_id,
        squid.start_cron("report", "cron", intended_window=later).run_id,
        squid.start_cron("report", "other", intended_window=WINDOW).run_id,
        squid.start_cron("second", "cron", intended_window=WINDOW).run_id,
    }
    assert len(runs) == 4


def test_a_signal_of_another_scheduler_is_an_identity_of_its_own(make_squid: MakeSquid) -> None:
    squid = make_squid(nightly())
    first = squid.start_cron("report", "cron", signal_id="tick-1", intended_window=WINDOW)
    assert facts(squid, first.run_id, "run_started")[0].context["schedule"]["signal_id"] == "tick-1"
    assert squid.start_cron("report", "cron", signal_id="tick-1").run_id == first.run_id
    assert squid.start_cron("report", "cron", signal_id="tick-2").run_id != first.run_id


def test_skip_duplicate_says_that_the_second_start_was_skipped(make_squid: MakeSquid) -> None:
    squid = make_squid(nightly(hourly(idempotency="skip_duplicate")))
    first = squid.start_cron("report", "cron", intended_window=WINDOW)
    again = squid.start_cron("report", "cron", intended_window=WINDOW)
    assert (first.skipped, again.skipped, again.repeated) == (False, True, True)
    assert again.run_id == first.run_id


def test_a_window_is_not_started_again_by_a_changed_definition(make_squid: MakeSquid, clock: VirtualClock) -> None:
    first = make_squid(nightly(version="1")).start_cron("report", "cron", intended_window=WINDOW)
    newer = make_squid(nightly(hourly(payload={"region": "south"}), version="2", extra_step=True))
    again = newer.start_cron("report", "cron", intended_window=WINDOW, queue="elsewhere")
    assert (again.run_id, again.repeated) == (first.run_id, True)


@pytest.mark.parametrize(
    ("arguments", "error", "named"),
    [
        ({}, InvalidArgument, "signal_id"),
        ({"intended_window": {}}, InvalidArgument, "signal_id"),
        ({"signal_id": ""}, InvalidArgument, "signal_id"),
        ({"signal_id": 7}, InvalidArgument, "signal_id"),
        ({"intended_window": {"start_at": "2026-05-26T12:00:00Z"}}, InvalidArgument, "end_at"),
        ({"intended_window": {**WINDOW, "start_at": "today"}}, InvalidArgument, "start_at.*today"),
        ({"intended_window": {**WINDOW, "end_at": 1764}}, InvalidArgument, "end_at.*1764"),
        ({"intended_window": {**WINDOW, "start_at": "2026-05-26T12:00:00"}}, InvalidArgument, "timezone"),
        ({"intended_window": {**WINDOW, "end_at": WINDOW["start_at"]}}, InvalidArgument, "after its start"),
        ({"trigger": "manual", "signal_id": "s"}, InvalidArgument, "no cron trigger 'manual'"),
        ({"trigger": "weekly", "signal_id": "s"}, InvalidArgument, "'weekly'.*cron"),
        ({"workflow": "nothing", "signal_id": "s"}, NotFound, "nothing"),
        ({"signal_id": "s", "queue": "a b"}, InvalidThread, "a b"),
    ],
)
def test_a_cron_start_without_identity_or_sense_is_refused(
    make_squid: MakeSquid, arguments: dict[str, Any], error: type[SquidError], named: str
) -> None:
    squid = make_squid(nightly())
    with pytest.raises(error, match=named):
        squid.start_cron(**{"workflow": "report", "trigger": "cron", **arguments})
    assert state_of(squid.journal) == []


# --- what is due ----------------------------------------------------------------------------------------------------


def test_ticks_may_be_repeated_and_late(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(nightly())
    assert starts(squid, squid.start_due_crons()) == [T0]
    assert squid.start_due_crons() == []
    clock.advance(timedelta(minutes=59, seconds=59))
    assert squid.start_due_crons() == []
    clock.advance(timedelta(minutes=25))
    assert starts(squid, squid.start_due_crons()) == [T0 + HOUR], "late by 25 minutes"
    assert squid.start_due_crons() == []
    clock.advance(timedelta(minutes=36))
    assert starts(squid, squid.start_due_crons()) == [T0 + 2 * HOUR]


def test_the_window_runs_from_one_firing_to_the_next(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(nightly(Cron("30 9 * * 1-5", timezone="Europe/Berlin")))
    clock.advance(datetime(2026, 1, 2, 8, 31, tzinfo=UTC) - T0)
    (receipt,) = squid.start_due_crons()
    context = facts(squid, receipt.run_id, "run_started")[0].context
    assert context["schedule"]["intended_window"] == {
        "start_at": "2026-01-02T08:30:00Z",
        "end_at": "2026-01-05T08:30:00Z",  # Monday
    }
    assert finish(squid, clock, receipt.run_id).status == "completed"


def test_a_schedule_without_history_begins_with_the_next_window_not_with_the_last_one(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid(nightly(Cron("0 3 * * *", catch_up="all")))
    clock.advance(timedelta(hours=12))
    assert squid.start_due_crons() == [], "the day on which it is deployed is no missed night"
    clock.advance(timedelta(hours=15))
    assert starts(squid, squid.start_due_crons()) == [T0 + timedelta(days=1, hours=3)]


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [("latest", [5]), ("all", [1, 2, 3, 4, 5]), ("none", [])],
)
def test_windows_that_nobody_was_there_for_are_caught_up_with_as_the_trigger_says(
    make_squid: MakeSquid, clock: VirtualClock, catch_up: str, expected: list[int]
) -> None:
    squid = make_squid(nightly(hourly(catch_up)))
    assert starts(squid, squid.start_due_crons()) == [T0]
    clock.advance(timedelta(hours=5, minutes=40))
    assert starts(squid, squid.start_due_crons()) == [T0 + n * HOUR for n in expected]
    assert squid.start_due_crons() == []
    clock.advance(timedelta(minutes=20, seconds=30))
    assert starts(squid, squid.start_due_crons()) == [T0 + 6 * HOUR], "and then it goes on as usual"


def test_a_long_absence_is_caught_up_with_in_full_over_several_calls(clock: VirtualClock) -> None:
    squid = Squid(MemoryStorage(clock), nightly(Cron("*/5 * * * *", catch_up="all")))
    squid.start_due_crons()
    clock.advance(timedelta(minutes=5 * 1003))
    assert len(squid.start_due_crons()) == 1000
    assert len(squid.start_due_crons()) == 3
    assert squid.start_due_crons() == []


def test_every_cron_trigger_of_every_current_definition_is_looked_at(make_squid: MakeSquid) -> None:
    old = nightly(hourly(name="retired"), version="1")
    new = nightly(hourly(), hourly(name="second"), version="2", extra_step=True)
    squid = make_squid([old, new, nightly(name="other")])
    receipts = squid.start_due_crons()
    triggers = {
        (f.workflow, f.trigger, f.definition_version) for r in receipts for f in facts(squid, r.run_id, "run_started")
    }
    assert triggers == {("report", "cron", "2"), ("report", "second", "2"), ("other", "cron", None)}


def test_a_window_that_another_scheduler_has_started_is_not_due(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(nightly())
    window = {"start_at": T0.isoformat(), "end_at": (T0 + HOUR).isoformat()}
    squid.start_cron("report", "cron", signal_id="tick-1", intended_window=window)
    assert squid.start_due_crons() == []


def ahead(hours: int) -> dict[str, str]:
    """Return the window that begins so many hours after the first."""
    return {"start_at": (T0 + hours * HOUR).isoformat(), "end_at": (T0 + (hours + 1) * HOUR).isoformat()}


@pytest.mark.parametrize(("catch_up", "signal_id"), [("latest", None), ("all", "by-hand"), ("none", None)])
def test_a_window_started_ahead_of_its_time_silences_nothing_and_is_not_doubled(
    make_squid: MakeSquid, clock: VirtualClock, catch_up: str, signal_id: str | None
) -> None:
    squid = make_squid(nightly(hourly(catch_up)))
    squid.start_due_crons()
    squid.start_cron("report", "cron", signal_id=signal_id, intended_window=ahead(3))
    begun = []
    for _ in range(5):
        clock.advance(HOUR)
        begun.append(starts(squid, squid.start_due_crons()))
        assert squid.start_due_crons() == []
    assert begun == [[T0 + HOUR], [T0 + 2 * HOUR], [], [T0 + 4 * HOUR], [T0 + 5 * HOUR]]


def test_windows_before_one_that_was_started_ahead_of_its_time_are_caught_up_with(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid(nightly(hourly("all")))
    squid.start_cron("report", "cron", intended_window=ahead(2))
    squid.start_due_crons()
    clock.advance(4 * HOUR)
    receipts = squid.start_due_crons()
    assert starts(squid, receipts) == [T0 + n * HOUR for n in (1, 3, 4)]
    windows = [
        facts(squid, receipt.run_id, "run_started")[0].context["schedule"]["intended_window"] for receipt in receipts
    ]
    assert [datetime.fromisoformat(window["end_at"]) for window in windows] == [T0 + n * HOUR for n in (2, 4, 5)]


def test_a_replayed_window_does_not_count_as_the_latest_one(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(nightly(hourly("all")))
    (first,) = squid.start_due_crons()
    replayed = squid.replay(first.run_id)
    schedule = facts(squid, replayed.run_id, "run_started")[0].context["schedule"]
    assert "intended_window" not in schedule
    assert "idempotency_key" not in schedule
    assert schedule["trigger_name"] == "cron"
    clock.advance(HOUR)
    assert starts(squid, squid.start_due_crons()) == [T0 + HOUR]


def test_a_clock_that_went_back_starts_nothing_twice(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(nightly(hourly("all")))
    squid.start_due_crons()
    clock.advance(2 * HOUR)
    assert len(squid.start_due_crons()) == 2
    clock.advance(-HOUR)
    assert squid.start_due_crons() == []
    clock.advance(HOUR)
    assert squid.start_due_crons() == []


def test_a_time_without_a_zone_is_refused(make_squid: MakeSquid) -> None:
    with pytest.raises(InvalidArgument, match="now"):
        make_squid(nightly()).start_due_crons(datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_trigger_that_cannot_be_started_keeps_no_other_one_waiting(
    make_squid: MakeSquid, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    # given a run that was started by hand under the id of the first one's window
    window = {"start_at": T0.isoformat(), "end_at": (T0 + HOUR).isoformat()}
    elsewhere = Squid(MemoryStorage(VirtualClock(T0)), [nightly(name="first")])
    squid = make_squid([nightly(name="first"), nightly(name="second")])
    squid.start("first", run_id=elsewhere.start_cron("first", "cron", intended_window=window).run_id)
    # when crons are due, then the second one is started all the same
    receipts = squid.start_due_crons()
    assert [facts(squid, receipt.run_id, "run_started")[0].workflow for receipt in receipts] == ["second"]
    assert "cron 'cron' of workflow 'first' could not be started" in caplog.text
