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
from tests.recovery.scenario import RECOVER, STEP, WORK, Client, Move, Scenario, commands, passes, starts

LINE = w.line()
OWNER = "somebody"


def _scenario(name: str, *moves: Move, known: tuple[Workflow, ...] = (), **options: Any) -> Scenario:
    return Scenario(name, (LINE, *known), moves, **options)


# --- commands that are more than one call ---------------------------------------------------------------------------


def _start_by_key(client: Client) -> None:
    client.squid.start(LINE, {}, idempotency_key=client.name("keyed"), actor="ada")


def _started_by_key(client: Client) -> bool:
    run_id = derived_run_id("line", "manual", client.name("keyed"))
    return any(entry.fact.type == "run_started" for entry in client.squid.journal.read_run(run_id))


def _many(client: Client) -> list[str]:
    return [client.name(f"many-{number}") for number in range(3)]


def _start_many(client: Client) -> None:
    client.squid.start_many(LINE, [{}, {}, {}], idempotency_keys=_many(client))


def _started_many(client: Client) -> bool:
    runs = [derived_run_id("line", "manual", key) for key in _many(client)]
    return all(client.squid.journal.read_run(run_id) for run_id in runs)


def _window(client: Client) -> dict[str, str]:
    begins = T0 + timedelta(hours=client.number)
    return {"start_at": begins.isoformat(), "end_at": (begins + timedelta(hours=1)).isoformat()}


def _started_by_the_clock(client: Client) -> bool:
    entries = client.squid.journal.read_between(0, client.squid.journal.cut())
    return any(e.fact.type == "run_started" and getattr(e.fact, "queue", "") == client.case for e in entries)


def _start_cron(client: Client) -> None:
    client.squid.start_cron("hourly", "hourly", intended_window=_window(client))


def _start_due_crons(client: Client) -> None:
    client.squid.start_due_crons(T0 + timedelta(hours=client.number, minutes=1))


def _start_by_signal(client: Client) -> None:
    client.squid.apply_signal(
        {
            "type": "start_run",
            "payload": {"workflow": "line", "input": {}, "queue": client.case},
            "idempotency_key": client.name("keyed"),
        }
    )


def _replay(client: Client) -> None:
    client.squid.replay(client.name("run"), idempotency_key=client.name("again"))


def _replayed(client: Client) -> bool:
    return bool(client.squid.journal.read_run(derived_run_id("replay_run", client.name("run"), client.name("again"))))


def _pause(client: Client) -> None:
    client.squid.pause_queue(client.case, idempotency_key=client.name("pause"), actor="ada")


def _resume(client: Client) -> None:
    client.squid.resume_queue(client.case, idempotency_key=client.name("resume"))


def _start_child_from_outside(client: Client) -> None:
    """Start the child that the step would start, from a program that holds the claim and is no worker."""
    agent = client.squid.dispatch_agent(client.case)
    claim = agent.claim_next(OWNER)
    if claim is None:  # held since a crash
        client.clock.advance(client.squid.runtime.lease)
        claim = agent.claim_next(OWNER)
    assert claim is not None
    client.squid.start_child_run(claim, "line", {}, child_key="only", metadata={"why": "test"})
    agent.release(claim)


def _signals(kind: str, attempt: int, **payload: Any) -> Move:
    """Return the move by which another system signals about the external step of a run."""
    name = f"{kind} {attempt}"

    def do(client: Client) -> None:
        key = f"{client.name('run')}:there:1:{attempt}"
        content = {"run_id": client.name("run"), "runnable_key": key, **payload}
        client.squid.apply_signal({"type": kind, "payload": content, "idempotency_key": client.name(name)})

    def done(client: Client) -> bool:
        return client.has("run_signal_received", signal_type=kind, idempotency_key=client.name(name))

    return Move(name, do, done)


# --- what agents and workers do -------------------------------------------------------------------------------------


def _handle_by_agent(client: Client) -> None:
    agent = client.squid.dispatch_agent(client.case)
    claim = agent.claim_next(OWNER)
    assert claim is not None
    agent.heartbeat(claim)
    agent.release(claim, "not today")
    again = agent.claim_next(OWNER)
    assert again is not None
    agent.complete(again, {"attempt": 2})


def _fail_by_agent(client: Client) -> None:
    agent = client.squid.dispatch_agent(client.case)
    claim = agent.claim_next(OWNER)
    assert claim is not None
    # As the step itself would fail, so that it does not matter who gets hold of it after a crash.
    error = {"type": "ValueError", "message": "the first attempt fails"}
    agent.fail(claim, error, retry_after=timedelta(seconds=10))


def _complete_without_plan(client: Client) -> None:
    runtime = client.squid.runtime
    agent = DispatchAgent(runtime.storage, runtime.dispatch, client.case)
    claim = agent.claim_next(OWNER)
    assert claim is not None
    agent.complete(claim, {"did": "first"})


def _apply_by_agent(client: Client) -> None:
    client.squid.workflow_agent(client.name("run")).apply_pending_results()


def _schedule_by_run(client: Client) -> None:
    client.squid.workflow_agent(client.name("run")).schedule_pending_dispatches()


def _schedule_by_queue(client: Client) -> None:
    pending = client.squid.workflow_agent(client.name("run")).pending_dispatches()
    client.squid.dispatch_agent(client.case).schedule_attempts(client.name("run"), pending)


def _deliver_twice(client: Client) -> None:
    """Claim the first attempt twice, with steps that outlast their leases."""
    while not client.has("attempt_claimed", count=2):
        with suppress(ExpiredClaim):
            client.squid.execute_next(client.case)


def _beat(client: Client) -> None:
    runtime = client.squid.runtime
    heartbeats = Heartbeats(runtime.dispatch, runtime.lease)
    heartbeats.add(runtime.dispatch.claim(client.case, OWNER))
    assert heartbeats.beat()
    heartbeats.close()


STOPPER = w.Stopper()


def _work_and_stop(client: Client) -> None:
    worker = client.squid.new_worker(client.case, concurrency=1)

    def stop() -> None:
        worker.stop()
        worker.stop()

    STOPPER.stop = stop
    try:
        worker.run()
    finally:
        STOPPER.stop = None


def _work_until_idle(client: Client) -> None:
    client.squid.worker(client.case, concurrency=1, until_idle=True)


def _was_worked_on(client: Client) -> bool:
    return client.has("attempt_released") or client.has("attempt_completed")


def _spoiled() -> Move:
    return Move("spoil", lambda client: damage.spoil(client.squid.journal, client.name("run")), lambda _: False)


def _half(workflow: str) -> Move:
    return Move(
        "start half", lambda client: damage.start_half(client.squid, workflow, client.name("run")), lambda _: False
    )


def _plant(kinds: list[Any]) -> tuple[Move, ...]:
    return tuple(
        Move(
            f"plant {kind.__name__}",
            lambda client, kind=kind: kind(client.squid, client.clock, client.name(kind.__name__)),  # type: ignore[misc]
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
        Move("start child", _start_child_from_outside, lambda client: client.has("child_run_started")),
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
        Move("pause", _pause, lambda client: client.queue_has("queue_paused", client.name("pause"))),
        WORK,
        Move("resume", _resume, lambda client: client.queue_has("queue_resumed", client.name("resume"))),
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
        Move("deliver twice", _deliver_twice, lambda client: client.has("attempt_claimed", count=2)),
        passes(timedelta(minutes=10)),
        RECOVER,
        known=(w.deadly_mended(),),
        before=(starts(w.deadly_mended()),),
        after=(WORK,),
    ),
    # agents and workers
    _scenario(
        "agent of a queue",
        Move("schedule", _schedule_by_queue, lambda client: client.has("attempt_scheduled")),
        Move("fail", _fail_by_agent, lambda client: client.has("attempt_failed")),
        passes(timedelta(minutes=1)),
        Move("handle", _handle_by_agent, lambda client: client.has("attempt_completed")),
        known=(w.retried(),),
        before=(_half("retried"),),
        after=(WORK,),
    ),
    _scenario(
        "agent of a run",
        Move("schedule", _schedule_by_run, lambda client: client.has("attempt_scheduled")),
        Move("complete", _complete_without_plan, lambda client: client.has("attempt_completed")),
        Move("apply", _apply_by_agent, lambda client: client.has("runnable_applied")),
        before=(_half("line"),),
        after=(WORK,),
    ),
    _scenario(
        "worker",
        Move("beat", _beat, lambda client: client.has("attempt_heartbeat") or _was_worked_on(client)),
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
