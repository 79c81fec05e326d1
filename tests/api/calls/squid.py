"""Calls of `Squid` and of a step's context."""

from datetime import timedelta

from squid_dagster.api import Squid
from tests.api.fixture import OPTIONS, ApiFixture, workflows
from tests.api.wrong_values import Call, Make
from tests.facts import T0


def squid_calls() -> dict[str, Make]:
    calls: dict[str, Make] = {
        "Squid": lambda w: Call(
            Squid,
            {
                "storage": w.storage,
                "workflows": workflows(),
                "resources": {},
                "queue": w.queue,
                "lease": timedelta(seconds=30),
            },
        ),
        "Squid.apply_signal": lambda w: Call(
            w.squid.apply_signal, {"signal": {"type": "approve_run", "payload": {"run_id": w.waiting}, "actor": "ada"}}
        ),
        "Squid.approve": lambda w: Call(w.squid.approve, {"run_id": w.waiting, **OPTIONS}),
        "Squid.reject": lambda w: Call(w.squid.reject, {"run_id": w.waiting, **OPTIONS}),
        "Squid.resume": lambda w: Call(w.squid.resume, {"run_id": w.paused, **OPTIONS}),
        "Squid.cancel": lambda w: Call(w.squid.cancel, {"run_id": w.open, "cascade": True, **OPTIONS}),
        "Squid.replay": lambda w: Call(w.squid.replay, {"run_id": w.open, "allow_irreversible": True, **OPTIONS}),
        "Squid.start": lambda w: Call(w.squid.start, {"workflow": "orders", "payload": {}, **OPTIONS}),
        "Squid.start_many": lambda w: Call(w.squid.start_many, {"workflow": "orders", "payloads": [{}, {}]}),
        "Squid.start_cron": lambda w: Call(
            w.squid.start_cron, {"workflow": "nightly", "trigger": "night", "signal_id": "s-1"}
        ),
        "Squid.start_due_crons": lambda w: Call(w.squid.start_due_crons, {"now": T0, "only": ("nightly", "night")}),
        "Squid.start_child_run": lambda w: Call(
            w.squid.start_child_run, {"parent": w.context(), "workflow": "orders", "payload": {}, "child_key": "c"}
        ),
        "Squid.pause_queue": lambda w: Call(w.squid.pause_queue, {"queue": w.queue, **OPTIONS}),
        "Squid.resume_queue": lambda w: Call(w.squid.resume_queue, {"queue": w.queue, **OPTIONS}),
        "Squid.execute_next": lambda w: Call(
            w.squid.execute_next, {"queue": w.queue, "owner_id": "ada", "lease": timedelta(seconds=30)}
        ),
        "Squid.worker": lambda w: Call(
            w.squid.worker,
            {"queue": "other", "until_idle": True, "concurrency": 1},
            {"until_idle": "it would work for ever"},
        ),
        "Squid.new_worker": lambda w: Call(
            w.squid.new_worker,
            {
                "queue": w.queue,
                "until_idle": True,
                "concurrency": 1,
                "lease": timedelta(seconds=30),
                "poll": timedelta(seconds=1),
                "grace": timedelta(seconds=1),
                "max_age": timedelta(hours=1),
                "housekeeping": timedelta(seconds=30),
                "worker_id": "w",
                "kind": "worker",
                "details": {},
                "heartbeat": timedelta(seconds=1),
                "on_settled": None,
            },
        ),
        "Squid.recover": lambda w: Call(w.squid.recover, {}),
        "Squid.dead_letters": lambda w: Call(w.squid.dead_letters, {}),
        "Squid.dispatch_agent": lambda w: Call(w.squid.dispatch_agent, {}),
        "Squid.workflow_agent": lambda w: Call(w.squid.workflow_agent, {"run_id": w.open}),
        "Squid.attention": lambda w: Call(w.squid.attention),
        "Squid.attention_items": lambda w: Call(w.squid.attention_items, {"kind": "waiting"}),
        "Squid.queues": lambda w: Call(w.squid.queues),
        "Squid.inspect_queue": lambda w: Call(w.squid.inspect_queue, {"queue": w.queue}),
        "Squid.live_workers": lambda w: Call(w.squid.live_workers),
        "Squid.inspect_run": lambda w: Call(w.squid.inspect_run, {"run_id": w.open}),
        "Squid.explain_run": lambda w: Call(w.squid.explain_run, {"run_id": w.open}),
        "Squid.inspect_run_graph": lambda w: Call(w.squid.inspect_run_graph, {"run_id": w.open}),
        "Squid.inspect_run_timeline": lambda w: Call(w.squid.inspect_run_timeline, {"run_id": w.open}),
        "Squid.list_runs": lambda w: Call(
            w.squid.list_runs,
            {
                "workflow": "orders",
                "status": "running",
                "queue": w.queue,
                "trigger": "manual",
                "parent_run_id": None,
                "definition_version": None,
                "started_after": T0,
                "started_before": T0,
                "open_only": True,
            },
        ),
        "Squid.retry_attempt": retry_call,
        "Squid.close": lambda w: Call(w.squid.close),
        "StepContext.start_child_run": lambda w: Call(
            w.context().start_child_run,
            {"workflow": "orders", "payload": {}, "child_key": "c", "metadata": {}, "trigger": None, "queue": None},
        ),
    }
    return calls


def retry_call(w: ApiFixture) -> Call:
    w.clock.advance(timedelta(hours=1))
    for _ in range(5):
        w.agent.claim_many("ada", 10, lease=timedelta(seconds=1))
        w.clock.advance(timedelta(hours=1))
    w.squid.recover()
    return Call(w.squid.retry_attempt, {"run_id": w.open, "runnable_key": f"{w.open}:check:1:1", **OPTIONS})
