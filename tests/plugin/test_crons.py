"""Cron triggers as schedules: whatever Dagster's ticks do, the journal's windows decide."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from pydantic import BaseModel

from squid_dagster import Receipt
from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.plugin.commands.jobs import build_command_jobs
from squid_dagster.plugin.crons import build_cron_schedules, due_time, schedule_name, summary
from squid_dagster.plugin.recovery import build_recovery_job
from squid_dagster.plugin.resource import SquidResource
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.workflow import Cron, Workflow
from tests.facts import T0
from tests.plugin.workflows import launch

HOUR = timedelta(hours=1)
MakeSquid = Callable[..., Squid]


class Report(BaseModel):
    region: str = "all"


def hourly(catch_up: Any = "latest", name: str = "hourly", **options: Any) -> Cron:
    return Cron("0 * * * *", catch_up=catch_up, name=name, **options)


def report(*crons: Cron, name: str = "report", version: str | None = None) -> Workflow:
    wf = Workflow(name, payload=Report, version=version, triggers=crons or [hourly()])
    wf.step(name="write")(lambda: "written")
    wf.route("write", to="complete")
    return wf


@pytest.fixture
def make_squid(postgres_virtual: PostgresStorage) -> Iterator[MakeSquid]:
    made: list[Squid] = []

    def make(*workflows: Workflow) -> Squid:
        made.append(Squid(postgres_virtual, workflows))
        return made[-1]

    yield make
    for created in made:
        created.close()


def tick(squid: Squid | SquidResource, workflow: Workflow, at: datetime, which: int = 0, **options: Any) -> str:
    """Evaluate one tick of a schedule, on an empty Dagster instance; return its text."""
    schedule = build_cron_schedules(workflows=[workflow])[which]
    resource = SquidResource.for_testing(squid) if isinstance(squid, Squid) else squid
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_schedule_context(
            instance=instance,
            scheduled_execution_time=at,
            resources={"squid": resource},
        )
        data = schedule.evaluate_tick(context)
    assert not data.run_requests
    assert data.skip_message is not None
    return str(data.skip_message)


def windows(squid: Squid) -> list[str]:
    """Return the windows that runs were started for, oldest first."""
    runs = [squid.inspect_run(listed.run_id) for listed in squid.list_runs(limit=500).runs]
    return sorted(run.context["schedule"]["intended_window"]["start_at"][11:16] for run in runs)


def noon(clock: VirtualClock, hour: int = 12, minute: int = 0, second: int = 0) -> datetime:
    """Set the clock to noon, or that time of day; return it."""
    return clock.advance(T0.replace(hour=hour, minute=minute, second=second) - clock.now())


def refused(squid: Squid, workflow: Workflow, at: datetime) -> str:
    """Evaluate a tick that fails; return the text of our error, which Dagster shows under its own."""
    (schedule,) = build_cron_schedules(workflows=[workflow])
    resources = {"squid": SquidResource.for_testing(squid)}
    context = dg.build_schedule_context(scheduled_execution_time=at, resources=resources)
    with pytest.raises(dg.DagsterUserCodeExecutionError) as error:
        schedule.evaluate_tick(context)
    assert isinstance(error.value.__cause__, dg.Failure)
    return str(error.value.__cause__)


# --- whatever ticks do ----------------------------------------------------------------------------------------------


def test_a_tick_starts_its_window_and_says_so(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(report())
    text = tick(squid, report(), noon(clock))
    (run,) = squid.list_runs().runs
    assert text == f"Started 1 run, the latest window began at 2026-01-01T12:00:00Z: {run.run_id}."
    assert windows(squid) == ["12:00"]
    assert squid.inspect_run(run.run_id).trigger == "hourly"


def test_a_repeated_tick_starts_nothing_twice_and_needs_no_memory(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(report())
    at = noon(clock)
    tick(squid, report(), at)
    # Every tick here has a new Dagster instance: wiped storage is what it always finds.
    assert tick(squid, report(), at) == "Nothing was due: the latest window began at 2026-01-01T12:00:00Z."
    clock.advance(timedelta(minutes=5))
    tick(squid, report(), at)
    assert windows(squid) == ["12:00"]


def test_a_late_tick_starts_what_is_due_by_then(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(report())
    tick(squid, report(), noon(clock))
    noon(clock, 13, 40)
    tick(squid, report(), T0.replace(hour=13, minute=0, second=0))
    assert windows(squid) == ["12:00", "13:00"]


@pytest.mark.parametrize(
    ("catch_up", "started"),
    [("latest", ["12:00", "17:00"]), ("all", ["12:00", "13:00", "14:00", "15:00", "16:00", "17:00"])],
)
def test_missed_ticks_are_made_up_for(
    make_squid: MakeSquid, clock: VirtualClock, catch_up: Any, started: list[str]
) -> None:
    squid = make_squid(report(hourly(catch_up)))
    tick(squid, report(hourly(catch_up)), noon(clock))
    tick(squid, report(hourly(catch_up)), noon(clock, 17, 0))
    assert windows(squid) == started


def test_where_nothing_is_caught_up_on_a_late_tick_starts_nothing(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(report(hourly("none")))
    noon(clock, 12, 2)
    text = tick(squid, report(hourly("none")), T0.replace(hour=12, minute=0, second=0))
    assert text == "Nothing was due: no window has been started yet."
    assert windows(squid) == []


def test_two_ticks_at_once_start_one_run(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squids = [make_squid(report()) for _ in range(4)]
    at = noon(clock)
    with ThreadPoolExecutor(4) as threads:
        texts = list(threads.map(lambda squid: tick(squid, report(), at), squids))
    assert windows(squids[0]) == ["12:00"]
    assert sum(text.startswith("Started 1 run") for text in texts) == 1


def test_what_no_tick_has_started_recovery_starts(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(report())
    at = noon(clock)
    launch(build_recovery_job(), squid, raise_on_error=True)
    assert windows(squid) == ["12:00"]
    assert tick(squid, report(), at).startswith("Nothing was due")


def test_a_tick_is_about_its_own_trigger(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = report(hourly(name="north", payload={"region": "north"}), hourly(name="south", payload={"region": "south"}))
    squid = make_squid(wf)
    tick(squid, wf, noon(clock), which=1)
    (run,) = squid.list_runs().runs
    assert squid.inspect_run(run.run_id).input == {"region": "south"}


def test_a_daemon_that_is_a_little_ahead_starts_its_window_and_one_that_is_far_ahead_does_not(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    squid = make_squid(report())
    noon(clock, 11, 59, 58)
    tick(squid, report(), T0.replace(hour=14, minute=0, second=0))
    assert windows(squid) == []
    tick(squid, report(), T0.replace(hour=12, minute=0, second=0))
    assert windows(squid) == ["12:00"]
    clock.advance(timedelta(seconds=3))
    tick(squid, report(), clock.now())
    assert windows(squid) == ["12:00"]


def test_the_database_clock_decides_unless_the_tick_is_slightly_later() -> None:
    now = datetime(2026, 5, 26, 12, tzinfo=UTC)
    second, minute = timedelta(seconds=1), timedelta(minutes=1)
    assert due_time(now - HOUR, now) == now
    assert due_time(now + second, now) == now + second
    assert due_time(now + minute, now) == now + minute
    assert due_time(now + minute + second, now) == now


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_a_tick_that_cannot_start_its_window_fails_in_our_words(make_squid: MakeSquid, clock: VirtualClock) -> None:
    squid = make_squid(report(name="another"))
    assert "workflow 'report' is not registered" in refused(squid, report(), noon(clock))
    other = make_squid(report(hourly(name="renamed")))
    assert "has no cron trigger 'hourly': it has renamed" in refused(other, report(), noon(clock))
    assert windows(squid) == []


def test_a_tick_that_cannot_reach_the_database_is_skipped_in_our_words() -> None:
    resource = SquidResource(url="postgresql://nobody@127.0.0.1:1/nowhere")
    assert "cannot reach Postgres" in tick(resource, report(), T0)


def test_two_triggers_that_dagster_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"are both 'squid_cron_report_a_b' in Dagster: rename"):
        build_cron_schedules(workflows=[report(hourly(name="a-b"), hourly(name="a_b"))])


# --- as Dagster sees them -------------------------------------------------------------------------------------------


def test_a_schedule_has_the_expression_and_the_timezone_of_its_trigger_and_is_on() -> None:
    night = Cron("30 2 * * mon-fri", timezone="Europe/Berlin", name="night")
    first, second = build_cron_schedules(workflows=[report(night, hourly(name="by-hour"))])
    assert (first.name, first.cron_schedule, first.execution_timezone) == (
        "squid_cron_report_night",
        "30 2 * * mon-fri",
        "Europe/Berlin",
    )
    assert second.name == "squid_cron_report_by_hour" == schedule_name("report", "by-hour")
    assert first.default_status is second.default_status is dg.DefaultScheduleStatus.RUNNING


@pytest.mark.parametrize("macro", ["@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually"])
def test_dagster_takes_every_name_that_we_take(macro: str) -> None:
    (schedule,) = build_cron_schedules(workflows=[report(Cron(macro))])
    assert schedule.cron_schedule == macro


def test_only_the_current_version_of_a_workflow_is_scheduled() -> None:
    old, new = report(hourly(name="old"), version="1"), report(hourly(name="new"), version="2")
    assert [schedule.name for schedule in build_cron_schedules(workflows=[old, new])] == ["squid_cron_report_new"]
    assert build_cron_schedules(workflows=[]) == []


def test_schedules_load_beside_the_job_that_they_name_or_with_one_of_their_own() -> None:
    resources = {"squid": SquidResource()}
    schedules = build_cron_schedules(workflows=[report()])
    jobs = build_command_jobs(workflows=[report()])
    dg.Definitions.validate_loadable(dg.Definitions(jobs=jobs, schedules=schedules, resources=resources))
    mine = build_recovery_job()
    schedules = build_cron_schedules(workflows=[report()], job=mine)
    dg.Definitions.validate_loadable(dg.Definitions(jobs=[mine], schedules=schedules, resources=resources))


def test_a_long_list_of_runs_is_cut() -> None:
    receipts = [Receipt(f"run-{number}", "start_cron", T0) for number in range(30)]
    assert summary(receipts, T0).endswith("run-18, run-19 and 10 more.")
    assert summary(receipts, T0).startswith("Started 30 runs, the latest window began at ")
