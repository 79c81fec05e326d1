"""The scenarios: every command, every outcome of a step, the agents, a worker, and recovery itself."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

from squid_dagster.agents import DispatchAgent
from squid_dagster.protocol.errors import ExpiredClaim
from squid_dagster.runtime.commands.derived_ids import derived_run_id
from squid_dagster.runtime.worker.heartbeats import Heartbeats
from squid_dagster.workflow import Workflow
from tests.facts import T0
from tests.recovery import damage
from tests.recovery import workflows as w
from tests.recovery.scenario import RECOVER, STEP, WORK, Move, Scenario, Scene, commands, passes, starts

LINE = w.line()
OWNER = "somebody"


def _scenario(name: str, *moves: Move, known: tuple[Workflow, ...] = (), **more: Any) -> Scenario:
    return Scenario(name, (LINE, *known), moves, **more)


# --- commands that are more than one call ---------------------------------------------------------------------------


def _start_by_key(scene: Scene) -> None:
    scene.squid.start(LINE, {}, idempotency_key=scene.name("keyed"), actor="ada")


def _started_by_key(scene: Scene) -> bool:
    run_id = derived_run_id("line", "manual", scene.name("keyed"))
    return any(entry.fact.type == "run_started" for entry in scene.squid.journal.read_run(run_id))


def _many(scene: Scene) -> list[str]:
    return [scene.name(f"many-{number}") for number in range(3)]


def _start_many(scene: Scene) -> None:
    scene.squid.start_many(LINE, [{}, {}, {}], idempotency_keys=_many(scene))


def _started_many(scene: Scene) -> bool:
    runs = [derived_run_id("line", "manual", key) for key in _many(scene)]
    return all(scene.squid.journal.read_run(run_id) for run_id in runs)


def _window(scene: Scene) -> dict[str, str]:
    begins = T0 + timedelta(hours=scene.number)
    return {"start_at": begins.isoformat(), "end_at": (begins + timedelta(hours=1)).isoformat()}


def _started_by_the_clock(scene: Scene) -> bool:
    found = scene.squid.journal.read_between(0, scene.squid.journal.cut())
    return any(e.fact.type == "run_started" and getattr(e.fact, "queue", "") == scene.case for e in found)


def _start_cron(scene: Scene) -> None:
    scene.squid.start_cron("hourly", "hourly", intended_window=_window(scene))


def _start_due_crons(scene: Scene) -> None:
    scene.squid.start_due_crons(T0 + timedelta(hours=scene.number, minutes=1))


def _start_by_signal(scene: Scene) -> None:
    scene.squid.apply_signal(
        {
            "type": "start_run",
            "payload": {"workflow": "line", "input": {}, "queue": scene.case},
            "idempotency_key": scene.name("keyed"),
        }
    )


def _replay(scene: Scene) -> None:
    scene.squid.replay(scene.name("run"), idempotency_key=scene.name("again"))


def _replayed(scene: Scene) -> bool:
    return bool(scene.squid.journal.read_run(derived_run_id("replay_run", scene.name("run"), scene.name("again"))))


def _pause(scene: Scene) -> None:
    scene.squid.pause_queue(scene.case, idempotency_key=scene.name("pause"), actor="ada")


def _resume(scene: Scene) -> None:
    scene.squid.resume_queue(scene.case, idempotency_key=scene.name("resume"))


def _start_child_from_outside(scene: Scene) -> None:
    """Do what a program does that holds a claim, and is no worker: start the child that the step would start."""
    agent = scene.squid.dispatch_agent(scene.case)
    claim = agent.claim_next(OWNER)
    if claim is None:  # held since a crash
        scene.clock.advance(scene.squid.runtime.lease)
        claim = agent.claim_next(OWNER)
    assert claim is not None
    scene.squid.start_child_run(claim, "line", {}, child_key="only", metadata={"why": "test"})
    agent.release(claim)


def _signals(kind: str, attempt: int, **payload: Any) -> Move:
    """Another system says something about the external step of a run."""
    name = f"{kind} {attempt}"

    def do(scene: Scene) -> None:
        key = f"{scene.name('run')}:there:1:{attempt}"
        content = {"run_id": scene.name("run"), "runnable_key": key, **payload}
        scene.squid.apply_signal({"type": kind, "payload": content, "idempotency_key": scene.name(name)})

    def done(scene: Scene) -> bool:
        return scene.has("run_signal_received", signal_type=kind, idempotency_key=scene.name(name))

    return Move(name, do, done)


# --- what agents and workers do -------------------------------------------------------------------------------------


def _handle_by_agent(scene: Scene) -> None:
    agent = scene.squid.dispatch_agent(scene.case)
    claim = agent.claim_next(OWNER)
    assert claim is not None
    agent.heartbeat(claim)
    agent.release(claim, "not today")
    again = agent.claim_next(OWNER)
    assert again is not None
    agent.complete(again, {"attempt": 2})


def _fail_by_agent(scene: Scene) -> None:
    agent = scene.squid.dispatch_agent(scene.case)
    claim = agent.claim_next(OWNER)
    assert claim is not None
    # As the step itself would fail, so that it does not matter who gets hold of it after a crash.
    error = {"type": "ValueError", "message": "the first attempt fails"}
    agent.fail(claim, error, retry_after=timedelta(seconds=10))


def _complete_without_plan(scene: Scene) -> None:
    runtime = scene.squid.runtime
    agent = DispatchAgent(runtime.storage, runtime.dispatch, scene.case)
    claim = agent.claim_next(OWNER)
    assert claim is not None
    agent.complete(claim, {"did": "first"})


def _apply_by_agent(scene: Scene) -> None:
    scene.squid.workflow_agent(scene.name("run")).apply_pending_results()


def _schedule_by_run(scene: Scene) -> None:
    scene.squid.workflow_agent(scene.name("run")).schedule_pending_dispatches()


def _schedule_by_queue(scene: Scene) -> None:
    pending = scene.squid.workflow_agent(scene.name("run")).pending_dispatches()
    scene.squid.dispatch_agent(scene.case).schedule_attempts(scene.name("run"), pending)


def _deliver_twice(scene: Scene) -> None:
    """Let two workers hang over the first attempt until their leases have run out."""
    while not scene.has("attempt_claimed", count=2):
        with suppress(ExpiredClaim):
            scene.squid.execute_next(scene.case)


def _beat(scene: Scene) -> None:
    runtime = scene.squid.runtime
    heartbeats = Heartbeats(runtime.dispatch, runtime.lease)
    heartbeats.add(runtime.dispatch.claim(scene.case, OWNER))
    assert heartbeats.beat()
    heartbeats.close()


STOPPER = w.Stopper()


def _work_and_stop(scene: Scene) -> None:
    worker = scene.squid.new_worker(scene.case, concurrency=1)

    def stop() -> None:
        worker.stop()
        worker.stop()

    STOPPER.stop = stop
    try:
        worker.run()
    finally:
        STOPPER.stop = None


def _work_until_idle(scene: Scene) -> None:
    scene.squid.worker(scene.case, concurrency=1, until_idle=True)


def _was_worked_on(scene: Scene) -> bool:
    return scene.has("attempt_released") or scene.has("attempt_completed")


def _spoiled() -> Move:
    return Move("spoil", lambda scene: damage.spoil(scene.squid.journal, scene.name("run")), lambda _: False)


def _half(workflow: str) -> Move:
    return Move(
        "start half", lambda scene: damage.start_half(scene.squid, workflow, scene.name("run")), lambda _: False
    )


def _plant(kinds: list[Any]) -> tuple[Move, ...]:
    return tuple(
        Move(
            f"plant {kind.__name__}",
            lambda scene, kind=kind: kind(scene.squid, scene.clock, scene.name(kind.__name__)),  # type: ignore[misc]
            lambda _: False,
        )
        for kind in kinds
    )


SCENARIOS: tuple[Scenario, ...] = (
    # starts
    _scenario("start", Move("start", _start_by_key, _started_by_key), WORK),
    _scenario("start many", Move("start many", _start_many, _started_many), after=(WORK,)),
    _scenario("start cron", Move("start cron", _start_cron, _started_by_the_clock), known=(w.hourly(),), after=(WORK,)),
    _scenario(
        "start due crons", Move("tick", _start_due_crons, _started_by_the_clock), known=(w.hourly(),), after=(WORK,)
    ),
    _scenario("start by signal", Move("apply signal", _start_by_signal, _started_by_key), after=(WORK,)),
    _scenario(
        "start child",
        Move("start child", _start_child_from_outside, lambda scene: scene.has("child_run_started")),
        known=(w.parent(),),
        before=(starts(w.parent()),),
        after=(WORK,),
    ),
    _scenario(
        "child from a step",
        STEP,
        known=(w.parent(),),
        before=(starts(w.parent()),),
        after=(WORK,),
    ),
    _scenario("replay", Move("replay", _replay, _replayed), before=(starts(LINE), WORK), after=(WORK,)),
    # controls
    _scenario(
        "approve",
        STEP,
        commands("approve", "approve_run", actor="ada", comment="fine"),
        known=(w.reviewed(),),
        before=(starts(w.reviewed()),),
        after=(WORK,),
    ),
    _scenario(
        "reject",
        commands("reject", "reject_run", actor="ada"),
        WORK,
        known=(w.reviewed(),),
        before=(starts(w.reviewed()), WORK),
    ),
    _scenario(
        "resume",
        starts(w.paused_first()),
        commands("resume", "resume_run"),
        known=(w.paused_first(),),
        after=(WORK,),
    ),
    _scenario(
        "reject at once",
        starts(w.decided_first()),
        commands("reject", "reject_run", actor="ada"),
        known=(w.decided_first(),),
    ),
    _scenario("cancel", starts(w.waiting()), commands("cancel", "cancel_run"), known=(w.waiting(),)),
    _scenario(
        "cancel with children",
        commands("cancel", "cancel_run", cascade=True),
        known=w.family(),
        before=(starts(w.family()[0]), WORK),
    ),
    _scenario(
        "pause and resume a queue",
        Move("pause", _pause, lambda scene: scene.queue_has("queue_paused", scene.name("pause"))),
        WORK,
        Move("resume", _resume, lambda scene: scene.queue_has("queue_resumed", scene.name("resume"))),
        before=(starts(LINE),),
        after=(WORK,),
    ),
    # outcomes
    _scenario("fan out and join", WORK, known=(w.diamond(),), before=(starts(w.diamond()), STEP)),
    _scenario(
        "retry",
        STEP,
        passes(timedelta(minutes=1)),
        STEP,
        known=(w.retried(),),
        before=(starts(w.retried()),),
        after=(WORK,),
    ),
    _scenario("final failure beside open work", STEP, known=(w.failing(),), before=(starts(w.failing()),)),
    _scenario("error route", STEP, known=(w.mended(),), before=(starts(w.mended()),), after=(WORK,)),
    _scenario("saga", WORK, known=(w.saga(),), before=(starts(w.saga()), STEP, STEP)),
    _scenario("defer", STEP, known=(w.deferring(),), before=(starts(w.deferring()),), after=(WORK,)),
    _scenario("interrupted step", WORK, known=(w.interrupted(),), before=(starts(w.interrupted()),)),
    _scenario("unwritable result", STEP, known=(w.unwritable(),), before=(starts(w.unwritable()),), after=(WORK,)),
    _scenario("unreadable entry", STEP, known=(w.turning(),), before=(starts(w.turning()), _spoiled())),
    _scenario(
        "external step",
        _signals("external_requested", 1, launcher="there"),
        _signals("external_started", 1, launcher="there", external_run_id="e-1"),
        _signals("external_completed", 1, succeeded=False, error={"code": "broken", "message": "it broke"}),
        passes(timedelta(minutes=1)),
        _signals("external_completed", 2, succeeded=True, result={"did": "there"}, external_run_id="e-2"),
        known=(w.elsewhere(),),
        before=(starts(w.elsewhere()),),
        after=(WORK,),
    ),
    # dead letters
    _scenario(
        "dead letter, met by a claim and retried",
        WORK,
        commands("retry_attempt", "retry_attempt"),
        known=(w.deadly(),),
        before=(starts(w.deadly()),),
        after=(WORK,),
    ),
    _scenario(
        "dead letter, met by recovery and routed",
        Move("deliver twice", _deliver_twice, lambda scene: scene.has("attempt_claimed", count=2)),
        passes(timedelta(minutes=10)),
        RECOVER,
        known=(w.deadly_mended(),),
        before=(starts(w.deadly_mended()),),
        after=(WORK,),
    ),
    # agents and workers
    _scenario(
        "agent of a queue",
        Move("schedule", _schedule_by_queue, lambda scene: scene.has("attempt_scheduled")),
        Move("fail", _fail_by_agent, lambda scene: scene.has("attempt_failed")),
        passes(timedelta(minutes=1)),
        Move("handle", _handle_by_agent, lambda scene: scene.has("attempt_completed")),
        known=(w.retried(),),
        before=(_half("retried"),),
        after=(WORK,),
    ),
    _scenario(
        "agent of a run",
        Move("schedule", _schedule_by_run, lambda scene: scene.has("attempt_scheduled")),
        Move("complete", _complete_without_plan, lambda scene: scene.has("attempt_completed")),
        Move("apply", _apply_by_agent, lambda scene: scene.has("runnable_applied")),
        before=(_half("line"),),
        after=(WORK,),
    ),
    _scenario(
        "worker",
        Move("beat", _beat, lambda scene: scene.has("attempt_heartbeat") or _was_worked_on(scene)),
        passes(timedelta(minutes=10)),
        Move("stopped worker", _work_and_stop, _was_worked_on),
        Move("worker", _work_until_idle, lambda _: False),
        known=(w.stopped(),),
        before=(starts(w.stopped()),),
        resources={"stopper": STOPPER},
    ),
    # recovery
    _scenario(
        "recovery",
        RECOVER,
        known=(w.retried(), w.deadly_mended(), w.decided_first(), w.waiting()),
        before=_plant(
            [
                damage.completed_but_unreadable,
                damage.planned_but_unscheduled,
                damage.paused_and_unknown_to_its_queue,
                damage.completed_but_unapplied,
                damage.failed_with_an_unplanned_retry,
                damage.expired_over_the_cap,
                damage.child_link_without_a_child,
                damage.terminal_but_unfenced,
            ]
        ),
    ),
    _scenario("recovery of a cascade", RECOVER, known=w.family(), before=_plant([damage.orphans_of_a_cascade])),
)
