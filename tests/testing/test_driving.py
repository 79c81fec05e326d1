"""Drivers: they execute what is due, move the clock where they may, and stop where a person is needed."""

from datetime import timedelta

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import InvalidArgument, NotFound
from squid_dagster.testing import (
    LimitReached,
    SquidFactory,
    advance,
    assert_invariants,
    drain,
    execute_until_blocked,
)
from tests.facts import T0, quarantined
from tests.journal.access import put
from tests.testing.flows import Script, circle, deferring, diamond, family, review, saga, scripted

HOUR = timedelta(hours=1)


# --- drain ----------------------------------------------------------------------------------------------------------


def test_drain_executes_all_that_is_due_and_lets_time_stand_still(
    squid: SquidFactory, storage: Storage, clock: VirtualClock
) -> None:
    # given runs on two queues
    app = squid([review(), diamond()], storage=storage, clock=clock, resources={"script": Script()})
    waiting = app.start("review").run_id
    done = app.start("diamond", queue="other").run_id
    # when all is drained
    assert drain(app) == 1 + 4
    # then the one is at its wait, the other is done, and no time has passed
    assert app.inspect_run(waiting).reason == "wait_step"
    assert app.inspect_run(done).status == "completed"
    assert clock.now() == T0
    assert drain(app) == 0
    # and what waits is due when its time has come
    advance(app, HOUR)
    assert drain(app) == 1
    assert_invariants(storage)


def test_drain_keeps_to_the_queues_that_are_named(squid: SquidFactory) -> None:
    app = squid(circle(1))
    for queue in ("a", "b", "c"):
        app.start("circle", queue=queue)
    assert drain(app, "a") == 1
    assert drain(app, ["a", "c"]) == 1
    assert app.inspect_run("run-2").status == "running"
    assert drain(app) == 1


def test_drain_leaves_a_paused_queue_alone(squid: SquidFactory) -> None:
    app = squid(circle(1))
    app.start("circle")
    app.pause_queue("default")
    assert drain(app) == 0
    app.resume_queue("default")
    assert drain(app) == 1


def test_drain_goes_on_after_a_step_that_lost_its_claim(squid: SquidFactory) -> None:
    # given a step that takes longer than its lease, the first time
    script = Script()
    app = squid(scripted(), resources={"script": script})
    script.then(lambda: advance(app, timedelta(minutes=6)))
    run_id = app.start("scripted").run_id
    # then its result is dropped, and it is executed again
    assert drain(app) == 2
    assert app.inspect_run(run_id).outputs == {"work": {"amount": 1, "call": 2}}


def test_drain_ends_with_an_error_instead_of_never(squid: SquidFactory) -> None:
    app = squid(circle())
    app.start("circle")
    with pytest.raises(LimitReached, match=r"more than 20 attempts .* 'default': look for a workflow .* circles"):
        drain(app, limit=20)
    assert drain(squid(circle(20)), limit=20) == 0


# --- execute_until_blocked ------------------------------------------------------------------------------------------


def test_a_run_is_brought_over_waits_to_a_person_and_from_person_to_person_to_its_end(
    squid: SquidFactory, storage: Storage, clock: VirtualClock
) -> None:
    app = squid(review(), storage=storage, clock=clock)
    run_id = app.start("review", {"amount": 21}).run_id
    # over the wait, up to the approval
    seen = execute_until_blocked(app, run_id)
    assert (seen.status, seen.reason) == ("paused", "manual_intervention_required")
    assert seen.manual_state is not None
    assert seen.manual_state.step == "approve"
    assert clock.now() == T0 + HOUR
    # nothing happens by itself from there on
    assert execute_until_blocked(app, run_id) == seen
    # three days later, up to the pause
    advance(app, timedelta(days=3))
    app.approve(run_id, actor="ada")
    seen = execute_until_blocked(app, run_id)
    assert seen.manual_state is not None
    assert seen.manual_state.step == "hold"
    # and to the end
    app.resume(run_id)
    seen = execute_until_blocked(app, run_id)
    assert (seen.status, seen.outputs["paid"]) == ("completed", "42 as ada said, under run-1:pay:1")
    assert seen.ended_at == clock.now() == T0 + HOUR + timedelta(days=3)
    assert_invariants(storage)


def test_the_clock_moves_over_retries_and_deferrals(squid: SquidFactory, clock: VirtualClock) -> None:
    script = Script(ValueError("no"), deferring(hours=2), ValueError("no"))
    app = squid(scripted(), resources={"script": script})
    seen = execute_until_blocked(app, app.start("scripted").run_id)
    assert (seen.status, script.calls) == ("completed", 4)
    assert clock.now() == T0 + timedelta(minutes=10) + 2 * HOUR + timedelta(minutes=10)


def test_a_run_that_fails_for_good_has_ended(squid: SquidFactory) -> None:
    undone: list[str] = []
    app = squid(saga(undone))
    seen = execute_until_blocked(app, app.start("saga").run_id)
    assert (seen.status, undone) == ("failed", ["charge", "book"])
    assert seen.error is not None
    assert seen.error["message"] == "no ship for 1"


def test_a_worker_that_is_gone_holds_a_run_up_until_its_lease_is_over(
    squid: SquidFactory, storage: Storage, clock: VirtualClock
) -> None:
    app = squid(circle(1), storage=storage, clock=clock)
    run_id = app.start("circle").run_id
    app.dispatch_agent().claim_next("gone", lease=timedelta(minutes=5))
    assert execute_until_blocked(app, run_id).terminal
    assert clock.now() == T0 + timedelta(minutes=5)
    assert_invariants(storage)


def test_a_dead_letter_waits_for_a_person(squid: SquidFactory, storage: Storage, clock: VirtualClock) -> None:
    # given a step during which the lease always runs out
    script = Script()
    app = squid(
        scripted(max_deliveries=2),
        storage=storage,
        clock=clock,
        resources={"script": script},
        lease=timedelta(minutes=5),
    )
    script.then(*[lambda: advance(app, timedelta(minutes=6))] * 2)
    run_id = app.start("scripted").run_id
    # then the run is blocked by the dead letter
    seen = execute_until_blocked(app, run_id)
    assert (seen.status, len(seen.dead_letters), script.calls) == ("running", 1, 2)
    # and goes on when a person says so
    app.retry_attempt(run_id)
    assert execute_until_blocked(app, run_id).status == "completed"
    assert_invariants(storage)


def test_an_error_route_leads_on_from_a_dead_letter(squid: SquidFactory, storage: Storage, clock: VirtualClock) -> None:
    workflow = scripted(max_deliveries=1)
    workflow.log("regret", "that was too often")
    workflow.route("work", on="error", to="regret")
    workflow.route("regret", to="complete")
    script = Script()
    app = squid(workflow, storage=storage, clock=clock, resources={"script": script})
    script.then(lambda: advance(app, timedelta(minutes=6)))
    assert execute_until_blocked(app, app.start("scripted").run_id).status == "completed"
    assert_invariants(storage)


def test_siblings_of_a_dead_letter_are_done_before_the_run_is_blocked(squid: SquidFactory) -> None:
    script = Script()
    app = squid(diamond(max_deliveries=1, priority=5), resources={"script": script})
    script.then(lambda: advance(app, timedelta(minutes=6)))
    seen = execute_until_blocked(app, app.start("diamond").run_id)
    assert (seen.status, seen.outputs) == ("running", {"top": 1, "right": 11})


def test_a_run_without_its_definition_is_held(squid: SquidFactory, storage: Storage, clock: VirtualClock) -> None:
    run_id = squid(circle(2), storage=storage, clock=clock).start("circle").run_id
    changed = circle(2)
    changed.wait("rest", HOUR)
    changed.route("look", on="error", to="rest")
    changed.route("rest", to="complete")
    assert execute_until_blocked(squid(changed, storage=storage, clock=clock), run_id).status == "held"
    # and one of a workflow that is not known at all stays where it is
    assert execute_until_blocked(squid(review(), storage=storage, clock=clock), run_id).visible_attempts


def test_a_run_on_a_paused_queue_is_blocked(squid: SquidFactory) -> None:
    app = squid(circle(1))
    run_id = app.start("circle").run_id
    app.pause_queue("default")
    assert len(execute_until_blocked(app, run_id).visible_attempts) == 1
    app.resume_queue("default")
    assert execute_until_blocked(app, run_id).terminal


def test_a_quarantined_run_is_blocked(squid: SquidFactory) -> None:
    app = squid(circle(1))
    run_id = app.start("circle").run_id
    put(app.journal, quarantined(run_id))
    assert execute_until_blocked(app, run_id).status == "quarantined"


def test_other_runs_of_the_queue_are_executed_as_their_turn_comes(squid: SquidFactory) -> None:
    app = squid(family())
    child_first = app.start("child", priority=5).run_id
    parent = app.start("parent").run_id
    later = app.start("child", priority=-5).run_id
    assert execute_until_blocked(app, parent).status == "completed"
    assert app.inspect_run(child_first).status == "completed"
    assert app.inspect_run(later).status == "running"


def test_a_run_that_never_blocks_is_an_error_that_says_where_it_was(squid: SquidFactory) -> None:
    app = squid(circle())
    run_id = app.start("circle").run_id
    with pytest.raises(LimitReached, match=r"'run-1' was not blocked after 30 .* it is running "):
        execute_until_blocked(app, run_id, limit=30)


def test_an_unknown_run_is_not_found(squid: SquidFactory) -> None:
    with pytest.raises(NotFound, match="run-9"):
        execute_until_blocked(squid(), "run-9")


@pytest.mark.parametrize("limit", [0, -1, True, 1.5])
def test_a_limit_that_makes_no_sense_is_refused(squid: SquidFactory, limit: int) -> None:
    app = squid(circle(1))
    app.start("circle")
    with pytest.raises(InvalidArgument, match="limit must be"):
        drain(app, limit=limit)
    with pytest.raises(InvalidArgument, match="limit must be"):
        execute_until_blocked(app, "run-1", limit)
    assert app.inspect_run("run-1").visible_attempts


# --- time -----------------------------------------------------------------------------------------------------------


def test_time_passes_forwards_only(squid: SquidFactory, clock: VirtualClock) -> None:
    app = squid()
    assert advance(app, HOUR) == clock.now() == T0 + HOUR
    for by in (timedelta(seconds=-1), timedelta(days=-5)):
        with pytest.raises(InvalidArgument, match="passes forwards"):
            advance(app, by)
    assert clock.now() == T0 + HOUR


def test_a_real_clock_is_never_waited_for() -> None:
    app = Squid(MemoryStorage(), review())
    run_id = app.start("review").run_id
    with pytest.raises(InvalidArgument, match=r"goes on at .* cannot be moved: make it with make_squid"):
        execute_until_blocked(app, run_id)
    with pytest.raises(InvalidArgument, match="cannot be moved"):
        advance(app, HOUR)
    assert app.inspect_run(run_id).reason == "wait_step"


def test_any_squid_can_be_driven_whose_storage_knows_its_clock(
    postgres_virtual: PostgresStorage, clock: VirtualClock
) -> None:
    with Squid(postgres_virtual, review()) as app:
        assert execute_until_blocked(app, app.start("review").run_id).status == "paused"
    assert clock.now() == T0 + HOUR
