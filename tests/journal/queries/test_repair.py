"""Which runs a crash may have left halfway: found in every state that needs repair, and in no healthy one."""

from itertools import pairwise
from typing import Any

import pytest

from squid_dagster.journal.contract.queries import WaitingStep
from squid_dagster.protocol import definition_key
from tests.facts import (
    applied,
    child,
    claimed,
    completed,
    dead_lettered,
    failed,
    failed_with_retry,
    fenced,
    planned,
    quarantined,
    queued,
    released,
    runnable,
    scheduled,
    signal,
    started,
    step_paused,
    t,
    terminal,
)
from tests.journal.queries.fixture import QueriesFixture, pages

STORAGES = ["fold on memory", "fold on memory, thread by thread", "postgres"]
pytestmark = pytest.mark.parametrize("fixture", STORAGES, indirect=True)


def child_of(parent: str) -> dict[str, Any]:
    """Return what a child run is started with."""
    return {"parent": {"run_id": parent}}


def test_healthy_runs_are_left_alone(fixture: QueriesFixture) -> None:
    # given a run in each healthy state
    fixture.start("scheduled", "claimed", "released", "applied", "failed", "retried", "ended", "paused")
    fixture.put(claimed("claimed"))
    fixture.put(claimed("released"), released("released"))
    fixture.put(claimed("applied"), completed("applied"), applied("applied"))
    fixture.put(claimed("failed"), failed("failed"), applied("failed", result=None))
    fixture.put(claimed("retried"), failed_with_retry("retried"))
    fixture.put(planned(runnable("retried", attempt=2, visible_at=t(40)), run="retried", at=30))
    fixture.put(claimed("ended"), completed("ended"), applied("ended"), terminal("ended"))
    fixture.put(step_paused("paused"))
    fixture.put(started("just-started"), queued("just-started"))
    # and a parent with a child, each open, and one that was cancelled after its child had ended
    fixture.start("parent")
    fixture.put(child("parent", child_run_id="its-child"))
    fixture.put(started("its-child", context=child_of("parent")), queued("its-child"))
    fixture.start("cancelled-parent")
    fixture.put(child("cancelled-parent", child_run_id="ended-child"))
    fixture.put(started("ended-child", context=child_of("cancelled-parent")), terminal("ended-child"))
    fixture.put(fenced("cancelled-parent"), terminal("cancelled-parent", status="cancelled"))
    # then none needs repair
    assert fixture.to_repair() == []


def test_planned_work_that_is_not_scheduled_is_found_until_it_is(fixture: QueriesFixture) -> None:
    fixture.put(started(), queued(), planned())
    assert fixture.to_repair() == ["run-1"]
    fixture.put(scheduled())
    assert fixture.to_repair() == []
    fixture.put(planned(runnable(step="ship")))
    assert fixture.to_repair() == ["run-1"]


def test_a_start_that_did_not_get_to_its_queue_is_found_until_it_does(fixture: QueriesFixture) -> None:
    # also when it has nothing to do there yet
    fixture.put(started(), step_paused())
    fixture.put(started("run-2"), terminal("run-2"))
    fixture.put(signal("run-3"))
    assert fixture.to_repair() == ["run-1"]
    assert fixture.to_repair("slow") == ["run-1"]
    fixture.put(queued())
    assert fixture.to_repair() == []


def test_a_start_that_did_not_get_to_its_queue_is_found_for_every_queue(fixture: QueriesFixture) -> None:
    fixture.put(started(), planned())
    fixture.put(started("run-2"), queued("run-2", queue="slow"), planned(runnable("run-2", queue="slow"), run="run-2"))
    assert fixture.to_repair() == ["run-1", "run-2"]
    assert fixture.to_repair("slow") == ["run-1", "run-2"]
    assert fixture.to_repair("default") == ["run-1"]


@pytest.mark.parametrize("settle", [completed, failed])
def test_an_outcome_that_is_not_applied_is_found_until_it_is(fixture: QueriesFixture, settle: Any) -> None:
    fixture.start("run-1")
    fixture.put(claimed(), settle())
    assert fixture.to_repair() == ["run-1"]
    fixture.put(applied(result=None))
    assert fixture.to_repair() == []


def test_a_dead_letter_is_found_until_it_is_applied_or_tried_again(fixture: QueriesFixture) -> None:
    for run in ("run-1", "run-2"):
        fixture.put(started(run), planned(run=run), scheduled(run, max_deliveries=1), claimed(run), dead_lettered(run))
    assert fixture.to_repair() == ["run-1", "run-2"]
    fixture.put(applied("run-1", result=None, at=110))
    fixture.put(planned(runnable("run-2", attempt=2), run="run-2", at=110), scheduled("run-2", attempt=2, at=110))
    assert fixture.to_repair() == []


def test_a_dead_letter_that_waits_for_a_person_is_left_out_where_nothing_else_is_wrong(fixture: QueriesFixture) -> None:
    def dead(run: str, step: str = "charge", **fields: Any) -> None:
        one = {"max_deliveries": 1, "workflow": "billing", "definition_fingerprint": "f", **fields}
        fixture.put(scheduled(run, step, **one), claimed(run, step), dead_lettered(run, step))

    for run in ("waits", "other-step", "other-definition", "more", "not-planned"):
        step = "ship" if run == "other-step" else "charge"
        if run != "not-planned":
            fixture.put(started(run), queued(run), planned(runnable(run, step), run=run))
        dead(run, step, **({"definition_fingerprint": "g"} if run == "other-definition" else {}))
    fixture.put(planned(runnable("more", "ship"), run="more"), scheduled("more", "ship"))
    fixture.put(claimed("more", "ship"), completed("more", "ship"))
    waiting = [WaitingStep(definition_key("billing", "f"), "charge"), WaitingStep("elsewhere", "ship")]
    fixture.put(started("unscheduled"), queued("unscheduled"), planned(run="unscheduled"))
    everything = ["more", "not-planned", "other-definition", "other-step", "unscheduled", "waits"]
    assert fixture.to_repair() == everything
    actual = fixture.queries.runs_to_repair("", 100, None, waiting)
    assert actual == [run for run in everything if run != "waits"]


def test_a_retry_that_the_run_has_not_planned_is_found_also_while_it_is_claimed(fixture: QueriesFixture) -> None:
    fixture.start("run-1")
    fixture.put(claimed(), failed_with_retry())
    assert fixture.to_repair() == ["run-1"]
    fixture.put(claimed(attempt=2, at=50))
    assert fixture.to_repair() == ["run-1"]
    fixture.put(planned(runnable(attempt=2, visible_at=t(40)), at=60))
    assert fixture.to_repair() == []


def test_a_retry_that_the_run_has_not_planned_is_found_also_after_the_next_one_was(fixture: QueriesFixture) -> None:
    fixture.start("run-1")
    fixture.put(claimed(), failed_with_retry())
    fixture.put(claimed(attempt=2, at=50), failed_with_retry(attempt=2, at=60))
    fixture.put(planned(runnable(attempt=3, visible_at=t(70)), at=60))
    assert fixture.to_repair() == ["run-1"]
    fixture.put(planned(runnable(attempt=2, visible_at=t(40)), at=70))
    assert fixture.to_repair() == []


def test_only_the_latest_attempt_of_a_visit_counts(fixture: QueriesFixture) -> None:
    # given a visit whose second attempt is under way, and another visit that completed
    fixture.start("run-1")
    fixture.put(claimed(), failed_with_retry())
    fixture.put(planned(runnable(attempt=2, visible_at=t(40)), at=30))
    assert fixture.to_repair() == []
    fixture.put(planned(runnable(visit=2), at=31), scheduled(visit=2, at=31))
    fixture.put(claimed(visit=2, at=32), completed(visit=2, at=33))
    assert fixture.to_repair() == ["run-1"]
    fixture.put(applied(visit=2, at=34))
    assert fixture.to_repair() == []


def test_an_end_that_the_queue_does_not_know_is_found_until_it_does(fixture: QueriesFixture) -> None:
    fixture.start("run-1", "run-2")
    fixture.put(terminal("run-1", status="cancelled"))
    # the other one had nothing open
    fixture.put(claimed("run-2"), completed("run-2"), applied("run-2"))
    fixture.put(terminal("run-2"))
    assert fixture.to_repair() == ["run-1"]
    assert fixture.to_repair("default") == ["run-1"]
    assert fixture.to_repair("slow") == []
    fixture.put(fenced("run-1"))
    assert fixture.to_repair() == []


def test_a_linked_child_that_never_started_is_found_until_it_does(fixture: QueriesFixture) -> None:
    fixture.start("run-1")
    fixture.put(child(child_run_id="child-1"))
    fixture.put(child(child_run_id="child-2", child_key="other"))
    fixture.put(started("child-2", context=child_of("run-1")), queued("child-2"))
    assert fixture.to_repair() == ["run-1"]
    # the child is known to its queue, and still has no start
    fixture.put(queued("child-1"))
    assert fixture.to_repair() == ["run-1"]
    fixture.put(started("child-1", context=child_of("run-1")))
    assert fixture.to_repair() == []


def test_a_missing_child_of_an_ended_run_is_no_matter(fixture: QueriesFixture) -> None:
    fixture.put(started(), child(), terminal())
    assert fixture.to_repair() == []


def test_open_children_of_a_cancelled_run_are_found(fixture: QueriesFixture) -> None:
    fixture.start("run-1", "run-2")
    for n, parent in enumerate(("run-1", "run-1", "run-2")):
        fixture.put(child(parent, child_run_id=f"child-{n}", child_key=f"k{n}"))
        fixture.put(started(f"child-{n}", context=child_of(parent)), queued(f"child-{n}"))
    fixture.put(fenced("run-1"), terminal("run-1", status="cancelled"))
    fixture.put(fenced("run-2"), terminal("run-2", status="failed"))
    assert fixture.to_repair() == ["child-0", "child-1"]
    fixture.put(terminal("child-0", status="cancelled"))
    assert fixture.to_repair() == ["child-1"]
    fixture.put(quarantined("child-1"))
    assert fixture.to_repair() == []


def test_whoever_names_a_cancelled_run_as_its_parent_and_was_never_linked_by_it_is_left_alone(
    fixture: QueriesFixture,
) -> None:
    fixture.put(started(), terminal(status="cancelled"))
    fixture.put(started("stranger", context=child_of("run-1")), queued("stranger"))
    assert fixture.to_repair() == []


def test_open_runs_below_a_cancelled_one_are_found_however_far_down(fixture: QueriesFixture) -> None:
    # given a line of runs, of which the one in the middle has ended
    line = ("run-1", "child-1", "child-2", "child-3")
    fixture.start("run-1")
    for parent, below in pairwise(line):
        fixture.put(child(parent, child_run_id=below))
        fixture.put(started(below, context=child_of(parent)), queued(below))
    fixture.put(terminal("child-2"))
    assert fixture.to_repair() == []
    fixture.put(fenced("run-1"), terminal("run-1", status="cancelled"))
    assert fixture.to_repair() == ["child-1", "child-3"]
    assert fixture.to_repair("slow") == []


def test_a_run_in_between_need_not_have_linked_its_own_child(fixture: QueriesFixture) -> None:
    fixture.start("run-1")
    fixture.put(child(child_run_id="child-1"))
    fixture.put(started("child-1", context=child_of("run-1")), queued("child-1"))
    fixture.put(started("child-2", context=child_of("child-1")), queued("child-2"))
    fixture.put(fenced("run-1"), terminal("run-1", status="cancelled"))
    assert fixture.to_repair() == ["child-1", "child-2"]


def test_runs_that_name_each_other_as_parents_are_no_trap(fixture: QueriesFixture) -> None:
    for run, parent in (("run-1", "run-2"), ("run-2", "run-1"), ("run-3", "run-3")):
        fixture.put(started(run, context=child_of(parent)), child(run, child_run_id=parent), queued(run))
    assert fixture.to_repair() == []
    fixture.put(terminal("run-1", status="cancelled"))
    assert fixture.to_repair() == ["run-2"]


def test_a_quarantined_run_is_left_alone_until_it_ends(fixture: QueriesFixture) -> None:
    fixture.put(started(), planned(), child(), quarantined())
    fixture.put(started("run-2"), planned(run="run-2"), scheduled("run-2"), quarantined("run-2"))
    assert fixture.to_repair() == []
    fixture.put(terminal("run-2", status="cancelled"))
    assert fixture.to_repair() == ["run-2"]


def test_runs_come_once_each_in_pages_in_the_order_of_their_ids(fixture: QueriesFixture) -> None:
    # given runs that need repair for several reasons at a time
    for n in range(9):
        run = f"run-{(n * 7) % 9}"
        fixture.put(started(run), planned(runnable(run), runnable(run, "ship"), run=run))
        if n == 8:
            fixture.put(child(run, child_run_id=f"child-{run}"))
    expected = [f"run-{n}" for n in range(9)]
    assert fixture.to_repair() == expected
    for size in (1, 2, 4):
        actual = pages(lambda after, limit: fixture.queries.runs_to_repair(after, limit), str, "", size)
        assert actual == expected
    assert fixture.queries.runs_to_repair("run-8", 5) == []
