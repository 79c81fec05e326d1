"""What a person sees and does in Dagster's UI, in a real browser, with a real daemon behind it."""

import re
from collections.abc import Callable
from typing import NamedTuple

import pytest
from playwright.sync_api import Page, expect

from examples.stack import Stack
from examples.ui import Ui
from squid_dagster import Squid
from tests.browser.conftest import ARTIFACTS
from tests.plugin.processes.daemon import wait_for
from tests.runtime.runs import facts

expect.set_options(timeout=30_000)

START = """\
ops:
  squid_start_run:
    config:
      workflow: payment_recovery
      payload:
        account_id: acct-7
        amount: 640
      actor: ada
      comment: from the launchpad
"""
APPROVE = """\
ops:
  squid_approve_run:
    config:
      run_id: {run_id}
      actor: grace
"""


class Started(NamedTuple):
    """A run that was started from the launchpad, and the Dagster run that did it."""

    run_id: str
    dagster_run_id: str


@pytest.fixture(scope="module")
def started(page: Page, stack: Stack) -> Started:
    """A run that was started from the launchpad; the Dagster run's page is open."""
    ui = Ui(page, stack.address)
    ui.fill_launchpad("squid_start", START)
    ui.keep(ARTIFACTS, "launchpad")
    dagster_run_id = ui.launch()
    assert ui.wait_for_end() == "RUN_SUCCESS"
    said = page.get_by_text(re.compile(r"start_run done: run ")).inner_text()
    return Started(said.rpartition(" ")[2], dagster_run_id)


def is_paused(squid: Squid, run_id: str) -> Callable[[], bool]:
    return lambda: squid.inspect_run(run_id).status == "paused"


def test_the_location_is_loaded_with_jobs_sensors_and_schedules(ui: Ui) -> None:
    ui.open("/jobs")
    for job in ("dispatch", "recovery", "start", "approve", "reject", "resume", "cancel", "replay", "retry"):
        expect(ui.page.get_by_text(f"squid_{job}", exact=True).first).to_be_visible()
    ui.open("/automation")
    for name in ("squid_dispatch_sensor", "squid_attention_sensor", "squid_recovery_schedule"):
        expect(ui.page.get_by_text(name, exact=True).first).to_be_visible()


def test_a_start_from_the_launchpad_shows_the_run_that_the_click_made(ui: Ui, started: Started, squid: Squid) -> None:
    output = ui.open_output()
    expect(output).to_contain_text(started.run_id)
    # the graph is a picture
    graph = ui.open_markdown("graph")
    picture = graph.locator("img")
    expect(picture).to_be_visible()
    assert picture.evaluate("image => image.complete && image.naturalWidth > 100 && image.naturalHeight > 100")
    ui.keep(ARTIFACTS, "graph")
    ui.close_markdown()
    # the timeline is a table
    timeline = ui.open_markdown("timeline")
    expect(timeline.locator("table tr")).not_to_have_count(0)
    expect(timeline.locator("table")).to_contain_text("ada asked for the run: from the launchpad.")
    ui.keep(ARTIFACTS, "timeline")
    ui.close_markdown()
    # the explanation says why, what to do and by which facts
    explanation = ui.open_markdown("explanation")
    expect(explanation).to_contain_text("What can be done")
    expect(explanation.locator("table")).to_contain_text("squid:")
    ui.keep(ARTIFACTS, "explanation")
    ui.close_markdown()
    # and the journal has it, with who asked and where
    (signal,) = facts(squid, started.run_id, "run_signal_received")
    assert (signal.signal_type, signal.actor, signal.comment) == ("start_run", "ada", "from the launchpad")
    assert signal.metadata["actor_source"] == "dagster_launchpad"
    assert signal.metadata["dagster_run_id"] == started.dagster_run_id
    assert squid.inspect_run(started.run_id).input == {"account_id": "acct-7", "amount": 640}


def test_the_sensor_launches_the_dispatch_job_which_works_it_off(
    ui: Ui, started: Started, squid: Squid, stack: Stack
) -> None:
    ui.open("/locations/squid/sensors/squid_dispatch_sensor")
    expect(ui.page.get_by_text("1 run requested").first).to_be_visible()
    ui.keep(ARTIFACTS, "sensor")
    ui.open("/locations/squid/jobs/squid_dispatch/runs")
    wait_for(is_paused(squid, started.run_id), stack)
    claims = facts(squid, started.run_id, "attempt_claimed")
    dagster_run_id = claims[0].owner_id.removeprefix("dagster:")
    expect(ui.page.get_by_text(dagster_run_id[:8]).first).to_be_visible()


def test_an_approval_from_the_launchpad_lets_the_run_go_on(
    ui: Ui, started: Started, squid: Squid, stack: Stack
) -> None:
    wait_for(is_paused(squid, started.run_id), stack)
    ui.fill_launchpad("squid_approve", APPROVE.format(run_id=started.run_id))
    dagster_run_id = ui.launch()
    assert ui.wait_for_end() == "RUN_SUCCESS"
    expect(ui.open_output()).to_contain_text(started.run_id)
    wait_for(lambda: squid.inspect_run(started.run_id).status == "completed", stack)
    approval = facts(squid, started.run_id, "run_signal_received")[-1]
    assert (approval.signal_type, approval.actor) == ("approve_run", "grace")
    assert approval.metadata["actor_source"] == "dagster_launchpad"
    assert approval.metadata["dagster_run_id"] == dagster_run_id
    # what is not paused cannot be approved: our words stand in the run, and the journal holds nothing from it
    before = facts(squid, started.run_id, "run_signal_received")
    ui.fill_launchpad("squid_approve", APPROVE.format(run_id=started.run_id))
    ui.launch()
    assert ui.wait_for_end() == "RUN_FAILURE"
    refusal = f"run '{started.run_id}' is completed: there is nothing that could be approved"
    expect(ui.page.get_by_text(refusal).first).to_be_visible()
    assert facts(squid, started.run_id, "run_signal_received") == before


def test_the_recovery_schedule_ticks(ui: Ui) -> None:
    ui.open("/locations/squid/schedules/squid_recovery_schedule")
    expect(ui.page.get_by_text("1 run requested").first).to_be_visible(timeout=90_000)
    ui.keep(ARTIFACTS, "schedule")
    ui.open(ui.page.locator('a[href^="/runs/"]').first.get_attribute("href") or "")
    assert ui.wait_for_end() == "RUN_SUCCESS"
