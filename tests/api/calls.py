"""A call that works for every public callable of the library, in a world in which it does."""

import dataclasses
import inspect
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

from pydantic import BaseModel

from squid_dagster import inspection, journal, protocol, redaction, testing, workflow
from squid_dagster.agents import DispatchAgent, WorkflowAgent
from squid_dagster.api import Squid
from squid_dagster.backlog import Backlog, BacklogLeases
from squid_dagster.backlog.lease_backend import BacklogQueue
from squid_dagster.journal import Append, FoldDispatchStore, FoldQueries, LocalNotifier, MemoryLiveness, MemoryStorage
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.command_target import CommandTarget
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.protocol.threads import run_thread
from squid_dagster.runtime.commands.child_runs import ChildStarter
from squid_dagster.runtime.commands.cloudevents import to_cloudevent
from squid_dagster.runtime.commands.signals import Signal
from squid_dagster.runtime.execution.step_calls import StepCalls
from squid_dagster.runtime.execution.step_execution import make_context
from squid_dagster.runtime.leases.host_queue import QueueLeases
from squid_dagster.runtime.leases.lease_backend import JournalLeases
from squid_dagster.runtime.leases.lease_work import work_one_lease
from squid_dagster.workflow import (
    Cancellation,
    Cron,
    Deadline,
    Defer,
    Fail,
    Manual,
    Resource,
    Retry,
    StepContext,
    Workflow,
    path,
)
from squid_dagster.workflow.registry import Registry
from tests.api.wrong_values import Call, Make
from tests.facts import T0, started


class Order(BaseModel):
    """What a run is started with."""

    item: str = "tea"
    much: dict[str, Any] = {}


def _nothing(item: str) -> str:
    return item


def workflows() -> list[Workflow]:
    """Two workflows: one that waits for a person, and one that is done at once; the clock starts that."""
    orders = Workflow("orders", payload=Order)
    orders.step(name="check")(_nothing)
    orders.approval("review")
    orders.route("check", to="review")
    orders.route("review", to="complete")
    orders.route("review", on="error", to="fail")
    nightly = Workflow("nightly", triggers=[Cron("0 4 * * *", name="night")])
    nightly.pause("rest")
    nightly.route("rest", to="complete")
    return [orders, nightly]


_numbers = count(1)
_WORKFLOWS = [each.freeze() for each in workflows()]
_OUTSIDE = Workflow("outside")
_OUTSIDE.external("report", kind="dagster_job", job="report")
_WORKFLOWS.append(_OUTSIDE.freeze())


class World:
    """A journal with a run in every state that a call asks for, and names that no other world has."""

    def __init__(self, storage: Any = None) -> None:
        """Bring it about."""
        self.clock = VirtualClock(T0)
        self.storage = MemoryStorage(clock=self.clock) if storage is None else storage
        self.number = next(_numbers)
        self.queue = f"queue-{self.number}"
        self.squid = Squid(self.storage, _WORKFLOWS, queue=self.queue)
        self.runtime = self.squid.runtime
        self.waiting, self.paused, self.open = (f"{name}-{self.number}" for name in ("waiting", "paused", "open"))
        self.squid.start("orders", {}, run_id=self.waiting)
        self.squid.execute_next()
        self.squid.start("nightly", run_id=self.paused)
        self.squid.start("orders", {}, run_id=self.open)
        self.agent = self.squid.dispatch_agent()
        self.claim: Any = self.agent.claim_next("ada")
        self.squid.start("orders", {}, run_id=f"fresh-{self.number}")
        self.cards = self.squid.backlog
        self.free, self.held = f"card-{self.number}", f"held-{self.number}"
        self.cards.create(self.free, "a card", phase=f"p{self.number}")
        self.cards.create(self.held, "another one")
        self.lease: Any = None  # a backend's
        self.outside: Any = None  # the attempt of an external step
        self.card: Any = self.cards.claim("ada", card_id=self.held)

    def facts(self) -> int:
        """Tell how far the journal has come."""
        return int(self.storage.cut())

    def context(self) -> StepContext:
        """What the step of the claimed attempt is given."""
        definition = self.runtime.registry.select("orders", None)
        calls = StepCalls(self.claim.claim, Cancellation(), timedelta(seconds=30))
        starter = ChildStarter(self.runtime, calls)
        return make_context(self.claim.claim, definition, {}, Cancellation(), child_starter=starter)


OPTIONS: dict[str, Any] = {"actor": "ada", "comment": "why", "metadata": {"a": 1}, "idempotency_key": "key-1"}
_OURS = {"storage": "a part of ours", "dispatch": "a part of ours", "queries": "a part of ours"}


def _squid() -> dict[str, Make]:
    found: dict[str, Make] = {
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
        "Squid.retry_attempt": _retry,
        "Squid.close": lambda w: Call(w.squid.close),
        "StepContext.start_child_run": lambda w: Call(
            w.context().start_child_run,
            {"workflow": "orders", "payload": {}, "child_key": "c", "metadata": {}, "trigger": None, "queue": None},
        ),
    }
    return found


def _retry(w: World) -> Call:
    w.clock.advance(timedelta(hours=1))
    for _ in range(5):
        w.agent.claim_many("ada", 10, lease=timedelta(seconds=1))
        w.clock.advance(timedelta(hours=1))
    w.squid.recover()
    return Call(w.squid.retry_attempt, {"run_id": w.open, "runnable_key": f"{w.open}:check:1:1", **OPTIONS})


def _dead_letter(w: World) -> dict[str, Any]:
    return {name: value for name, value in _retry(w).kwargs.items() if name in ("run_id", "runnable_key")}


def _external(w: World) -> dict[str, Any]:
    if w.outside is None:
        run_id = w.squid.start("outside").run_id
        w.outside = {"run_id": run_id, "runnable_key": w.squid.inspect_run(run_id).attempts[0].runnable_key}
    return {**w.outside}


def _signals() -> dict[str, Callable[[World], dict[str, Any]]]:
    """Give a payload that works, with all of its fields, for every command that can be asked for as data."""

    def start(w: World) -> dict[str, Any]:
        return {"workflow": "orders", "trigger": None, "input": {}, "queue": None, "priority": None, "version": None}

    def start_cron(w: World) -> dict[str, Any]:
        return {
            "workflow": "nightly",
            "trigger": "night",
            "signal_id": f"s-{next(_numbers)}",
            "intended_window": None,
            "queue": None,
            "input": None,
        }

    def note(w: World) -> dict[str, Any]:
        return {**_external(w), "launcher": "dagster", "external_run_id": None, "launch": None}

    outcome = {"succeeded": True, "result": None, "error": None, "final": None, "external_run_id": None}
    told = {"step": None, "actor": None, "comment": None}
    return {
        "start_run": start,
        "start_cron": start_cron,
        "replay_run": lambda w: {"run_id": w.open, "allow_irreversible": True},
        "approve_run": lambda w: {"run_id": w.waiting, **told},
        "reject_run": lambda w: {"run_id": w.waiting, **told},
        "resume_run": lambda w: {"run_id": w.paused, **told},
        "cancel_run": lambda w: {"run_id": w.open, "cascade": True},
        "retry_attempt": _dead_letter,
        "external_requested": lambda w: {**note(w), "launch": 1},
        "external_started": lambda w: {**note(w), "external_run_id": "x-1"},
        "external_completed": lambda w: {**_external(w), **outcome},
    }


def signal_calls() -> dict[str, Make]:
    """Give the calls of every command as data: its payload's fields, its own, and those of an event that brings it."""
    made: dict[str, Make] = {}
    for kind, payload in _signals().items():

        def fields(w: World, kind: str = kind, payload: Any = payload) -> Call:
            def apply(**given: Any) -> Any:
                return w.squid.apply_signal({"type": kind, "payload": given, "actor": "ada"})

            return Call(apply, payload(w))

        def envelope(w: World, kind: str = kind, payload: Any = payload) -> Call:
            def apply(**given: Any) -> Any:
                return w.squid.apply_signal(given)

            return Call(apply, {"type": kind, "payload": payload(w), "occurred_at": T0.isoformat(), **OPTIONS})

        def model(w: World, kind: str = kind, payload: Any = payload) -> Call:
            def apply(**given: Any) -> Any:
                return w.squid.apply_signal(Signal(**given))

            return Call(apply, {"type": kind, "payload": payload(w), "caller_time": T0, **OPTIONS})

        def event(w: World, kind: str = kind, payload: Any = payload) -> Call:
            def apply(**given: Any) -> Any:
                return w.squid.apply_signal({name: value for name, value in given.items() if value is not None})

            signal = Signal(type=kind, payload=payload(w), actor="ada")
            made = to_cloudevent(signal, f"e-{next(_numbers)}", T0)
            return Call(apply, {**made, "subject": made["subject"], "an_extension": "x"})

        made |= {
            f"{kind}: payload": fields,
            f"{kind}: fields": envelope,
            f"{kind}: Signal": model,
            f"{kind}: event": event,
        }
    return made


def _authoring() -> dict[str, Make]:
    return {
        "Workflow": lambda w: Call(
            _frozen(lambda **k: _stepped(Workflow(k.pop("name"), **k)), Workflow), {"name": "w"}
        ),
        "Workflow.step": lambda w: Call(_frozen(_step, Workflow.step, "self", "function"), {"name": "s"}),
        "Workflow.route": lambda w: Call(
            _frozen(_route, Workflow.route, "self"), {"source": "check", "to": "complete"}
        ),
        "Workflow.approval": lambda w: Call(_frozen(_declare("approval"), Workflow.approval, "self"), {"name": "s"}),
        "Workflow.pause": lambda w: Call(_frozen(_declare("pause"), Workflow.pause, "self"), {"name": "s"}),
        "Workflow.wait": lambda w: Call(
            _frozen(_declare("wait"), Workflow.wait, "self"), {"name": "s", "duration": timedelta(1)}
        ),
        "Workflow.log": lambda w: Call(_frozen(_declare("log"), Workflow.log, "self"), {"name": "s", "message": "m"}),
        "Workflow.external": lambda w: Call(
            _frozen(_declare("external"), Workflow.external, "self"), {"name": "s", "kind": "dagster_job", "job": "j"}
        ),
        "Workflow.check": lambda w: Call(_stepped(Workflow("w")).check),
        "Workflow.draft": lambda w: Call(_stepped(Workflow("w")).draft),
        "Workflow.freeze": lambda w: Call(_stepped(Workflow("w")).freeze),
        "Retry": lambda w: Call(_frozen(lambda **k: _with(retry=Retry(**k)), Retry), {}),
        "Deadline": lambda w: Call(
            _frozen(lambda **k: _with(deadline=Deadline(**k)), Deadline), {"within": timedelta(1)}
        ),
        "Cron": lambda w: Call(
            _frozen(lambda **k: _stepped(Workflow("w", triggers=[Cron(**k)])), Cron), {"expression": "0 4 * * *"}
        ),
        "Manual": lambda w: Call(_frozen(lambda **k: _stepped(Workflow("w", triggers=[Manual(**k)])), Manual), {}),
        "Resource": lambda w: Call(Resource, {"key": "slack"}),
        "Defer": lambda w: Call(Defer, {"reason": "busy", "after": timedelta(seconds=1)}),
        "Fail": lambda w: Call(Fail, {"message": "no", "details": {"a": 1}}),
        "path": lambda w: Call(path, {"place": "item"}),
        "load_workflows": lambda w: Call(workflow.load_workflows, {"source": workflows()}),
        "delay": lambda w: Call(workflow.delay, {"policy": Retry(), "failed_attempt_number": 1, "random_unit": 0.5}),
        "Cancellation.wait": lambda w: Call(
            Cancellation().wait, {"timeout": 0.0}, {"timeout": "threading's own, and None waits for ever"}
        ),
        "Cancellation.set": lambda w: Call(Cancellation().set),
        "Cancellation.is_set": lambda w: Call(Cancellation().is_set),
        "Definition.accept_payload": lambda w: Call(
            w.runtime.registry.select("orders", None).accept_payload, {"values": {}}
        ),
    }


def _stepped(made: Workflow) -> Workflow:
    made.step(name="first")(_free)
    return made


def _free() -> None:
    """Take nothing."""


def _with(**options: Any) -> Workflow:
    made = Workflow("w")
    made.step(name="s", **options)(_free)
    return made


def _step(**options: Any) -> Workflow:
    made = Workflow("w")
    made.step(**options)(_free)
    return made


def _route(**options: Any) -> Workflow:
    made = Workflow("w")
    made.step(name="check")(_free)
    made.route(**options)
    return made


def _declare(kind: str) -> Callable[..., Workflow]:
    def declared(**options: Any) -> Workflow:
        made = Workflow("w", entry="first")
        made.step(name="first")(_free)
        getattr(made, kind)(**options)
        made.route("first", to="s")
        made.route("s", to="complete")
        if kind == "approval":
            made.route("s", on="error", to="fail")
        return made

    return declared


def _frozen(declare: Callable[..., Workflow], of: Any, *without: str) -> Callable[..., Any]:
    """Declare and judge: what is declared is judged when the workflow is frozen, all of it at once."""

    def frozen(**options: Any) -> Any:
        return declare(**options).freeze()

    signature = inspect.signature(of)
    kept = [each for name, each in signature.parameters.items() if name not in without]
    frozen.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    return frozen


def storage_calls(name: str) -> dict[str, Make]:
    return {
        f"{name}.append": lambda w: Call(w.storage.append, {"thread": run_thread("r"), "entries": [started("r")]}),
        f"{name}.commit": lambda w: Call(w.storage.commit, {"appends": [Append(run_thread("r"), [started("r")])]}),
        f"{name}.cut": lambda w: Call(w.storage.cut),
        f"{name}.find_commit": lambda w: Call(w.storage.find_commit, {"commit_id": __import__("uuid").uuid4()}),
        f"{name}.read": lambda w: Call(w.storage.read, {"thread": run_thread(w.open)}),
        f"{name}.revision": lambda w: Call(w.storage.revision, {"thread": run_thread(w.open)}),
        f"{name}.read_between": lambda w: Call(w.storage.read_between, {"after": 0, "upto": 5}),
        f"{name}.read_run": lambda w: Call(w.storage.read_run, {"run_id": w.open}),
        f"{name}.put_checkpoint": lambda w: Call(
            w.storage.put_checkpoint, {"thread": run_thread(w.open), "revision": 1, "data": "{}"}
        ),
        f"{name}.get_checkpoint": lambda w: Call(w.storage.get_checkpoint, {"thread": run_thread(w.open)}),
        f"{name}.delete_checkpoint": lambda w: Call(w.storage.delete_checkpoint, {"thread": run_thread(w.open)}),
        f"{name}.delete_thread": lambda w: Call(w.storage.delete_thread, {"thread": run_thread("gone")}),
        f"{name}.now": lambda w: Call(w.storage.now),
    }


def dispatch_calls(name: str) -> dict[str, Make]:
    def settle(w: World) -> Call:
        return Call(
            w.runtime.dispatch.settle,
            {"settlements": [journal.Settlement(w.claim.claim.ref, journal.Completed("tea"))]},
        )

    def shown(w: World) -> Call:
        def heartbeat(**parts: str) -> Any:
            return w.runtime.dispatch.heartbeat([journal.ClaimRef(**parts)])

        ref = w.claim.claim.ref
        return Call(heartbeat, {each.name: getattr(ref, each.name) for each in dataclasses.fields(ref) if each.init})

    return {
        "ClaimRef": shown,
        f"{name}.claim": lambda w: Call(w.runtime.dispatch.claim, {"queue": w.queue, "owner_id": "ada", "limit": 1}),
        f"{name}.heartbeat": lambda w: Call(w.runtime.dispatch.heartbeat, {"refs": [w.claim.claim.ref]}),
        f"{name}.settle": settle,
        f"{name}.release": lambda w: Call(w.runtime.dispatch.release, {"refs": [w.claim.claim.ref], "reason": "r"}),
        f"{name}.visible": lambda w: Call(w.runtime.dispatch.visible, {"queue": w.queue}),
        f"{name}.expired": lambda w: Call(w.runtime.dispatch.expired, {"queue": w.queue}),
        f"{name}.dead_letter_expired": lambda w: Call(w.runtime.dispatch.dead_letter_expired, {"queue": w.queue}),
        f"{name}.decide": lambda w: Call(
            w.runtime.dispatch.decide,
            {"run_ids": [w.open], "decision": lambda units, now: []},
            {"decision": "what it gives is its own business"},
        ),
        f"{name}.command": lambda w: Call(
            w.runtime.dispatch.command,
            {"targets": [CommandTarget(w.open)], "decision": lambda runs, now: []},
            {"decision": "what it gives is its own business"},
        ),
        f"{name}.start_runs": lambda w: Call(w.runtime.dispatch.start_runs, {"runs": []}),
    }


def query_calls(name: str) -> dict[str, Make]:
    return {
        f"{name}.list_runs": lambda w: Call(
            w.runtime.queries.list_runs, {"where": journal.RunFilter(), "before": None, "limit": 5}
        ),
        f"{name}.get_run": lambda w: Call(w.runtime.queries.get_run, {"run_id": w.open}),
        f"{name}.runs_to_repair": lambda w: Call(w.runtime.queries.runs_to_repair, {"after": "", "limit": 5}),
        f"{name}.runs_to_list": lambda w: Call(w.runtime.queries.runs_to_list, {"limit": 5}),
        f"{name}.dead_letters": lambda w: Call(w.runtime.queries.dead_letters, {"queue": None, "limit": 5}),
        f"{name}.queues": lambda w: Call(w.runtime.queries.queues),
        f"{name}.backlog": lambda w: Call(
            w.runtime.queries.backlog, {"queues": [w.queue], "definitions": None, "limit": 5}
        ),
        f"{name}.children": lambda w: Call(w.runtime.queries.children, {"run_id": w.open}),
        f"{name}.anomalies": lambda w: Call(w.runtime.queries.anomalies, {"run_id": None, "limit": 5}),
        f"{name}.schedule_cursor": lambda w: Call(
            w.runtime.queries.schedule_cursor, {"workflow": "nightly", "trigger": "night"}
        ),
    }


def other_calls() -> dict[str, Make]:
    return {
        "DispatchAgent": lambda w: Call(
            DispatchAgent, {"storage": w.storage, "dispatch": w.runtime.dispatch, "queue": w.queue}
        ),
        "DispatchAgent.claim_many": lambda w: Call(w.agent.claim_many, {"owner_id": "ada", "limit": 1}),
        "DispatchAgent.claim_next": lambda w: Call(w.agent.claim_next, {"owner_id": "ada"}),
        "DispatchAgent.complete": lambda w: Call(w.agent.complete, {"claim": w.claim, "result": "tea"}),
        "DispatchAgent.fail": lambda w: Call(w.agent.fail, {"claim": w.claim, "error": {"message": "m"}}),
        "DispatchAgent.heartbeat": lambda w: Call(w.agent.heartbeat, {"claim": w.claim}),
        "DispatchAgent.release": lambda w: Call(w.agent.release, {"claim": w.claim, "reason": "r"}),
        "DispatchAgent.schedule_attempts": lambda w: Call(
            w.agent.schedule_attempts, {"run_id": w.open, "runnables": []}
        ),
        "DispatchAgent.visible_attempts": lambda w: Call(w.agent.visible_attempts),
        "DispatchAgent.expired_claims": lambda w: Call(w.agent.expired_claims),
        "WorkflowAgent": lambda w: Call(
            WorkflowAgent,
            {
                "storage": w.storage,
                "dispatch": w.runtime.dispatch,
                "run_id": w.open,
                "definition_of": w.runtime.definition_of,
            },
        ),
        "WorkflowAgent.apply_result": _apply,
        "WorkflowAgent.apply_pending_results": lambda w: Call(w.squid.workflow_agent(w.open).apply_pending_results),
        "WorkflowAgent.pending_results": lambda w: Call(w.squid.workflow_agent(w.open).pending_results),
        "WorkflowAgent.pending_dispatches": lambda w: Call(w.squid.workflow_agent(w.open).pending_dispatches),
        "WorkflowAgent.schedule_pending_dispatches": lambda w: Call(
            w.squid.workflow_agent(w.open).schedule_pending_dispatches
        ),
        "MemoryStorage": lambda w: Call(MemoryStorage),
        "FoldDispatchStore": lambda w: Call(FoldDispatchStore, {"storage": w.storage}),
        "FoldQueries": lambda w: Call(FoldQueries, {"storage": w.storage}),
        "MemoryLiveness": lambda w: Call(MemoryLiveness, {"storage": w.storage}),
        "MemoryLiveness.report": lambda w: Call(
            w.runtime.liveness.report,
            {
                "worker": journal.WorkerRow(
                    worker_id="w", kind="worker", queues=(w.queue,), definitions=(), host="h", pid=1, capacity=1
                )
            },
        ),
        "MemoryLiveness.withdraw": lambda w: Call(w.runtime.liveness.withdraw, {"worker_id": "w"}),
        "MemoryLiveness.workers": lambda w: Call(w.runtime.liveness.workers, {"alive_within": timedelta(seconds=5)}),
        "LocalNotifier": lambda w: Call(LocalNotifier, {"storage": w.storage}),
        "LocalNotifier.notify": lambda w: Call(w.runtime.notifier.notify, {"queues": [w.queue]}),
        "LocalNotifier.listen": lambda w: Call(w.runtime.notifier.listen, {"queues": [w.queue]}, close=True),
        "LocalNotifier.close": lambda w: Call(w.runtime.notifier.close),
        "VirtualClock": lambda w: Call(VirtualClock, {"start": T0}),
        "VirtualClock.advance": lambda w: Call(VirtualClock(T0).advance, {"by": timedelta(1)}),
        "VirtualClock.now": lambda w: Call(VirtualClock(T0).now),
        "SystemClock": lambda w: Call(journal.SystemClock),
        "SystemClock.now": lambda w: Call(journal.SystemClock().now),
        "RunFilter": lambda w: Call(journal.RunFilter),
        "RunFilter.matches": lambda w: Call(
            journal.RunFilter().matches, {"row": w.runtime.queries.get_run(w.open)}, {"row": "what queries give"}
        ),
        "quarantine": lambda w: Call(journal.quarantine, {"storage": w.storage, "entries": []}),
        "Backlog": lambda w: Call(Backlog, {"storage": w.storage}),
        "Backlog.create": lambda w: Call(
            w.cards.create, {"card_id": f"new-{w.number}", "title": "t", "body": "b", "phase": "p"}
        ),
        "Backlog.link": lambda w: Call(w.cards.link, {"card_id": w.free, "depends_on": w.held}),
        "Backlog.claim": lambda w: Call(w.cards.claim, {"owner": "ada", "card_id": w.free}),
        "Backlog.renew": lambda w: Call(w.cards.renew, {"card_id": w.held, "token": w.card.claim_token}),
        "Backlog.complete": lambda w: Call(w.cards.complete, {"card_id": w.held, "token": w.card.claim_token}),
        "Backlog.fail": lambda w: Call(w.cards.fail, {"card_id": w.held, "error": "e", "token": w.card.claim_token}),
        "Backlog.block": lambda w: Call(w.cards.block, {"card_id": w.free, "reason": "r"}),
        "Backlog.unblock": lambda w: Call(w.cards.unblock, {"card_id": w.free}),
        "Backlog.reclaim": lambda w: Call(w.cards.reclaim),
        "Backlog.get": lambda w: Call(w.cards.get, {"card_id": w.free}),
        "Backlog.history": lambda w: Call(w.cards.history, {"card_id": w.free}),
        "Backlog.list": lambda w: Call(w.cards.list),
        "Backlog.stats": lambda w: Call(w.cards.stats),
        "Backlog.rebuild": lambda w: Call(w.cards.rebuild),
        "Backlog.differences": lambda w: Call(w.cards.differences),
        "redact_also": lambda w: Call(redaction.redact_also, {"keys": [], "patterns": []}),
    }


def protocol_calls() -> dict[str, Make]:
    """Give the calls of the protocol's functions."""
    fact = started("r")
    unit = RunUnit.fold([Entry(run_thread("r"), 1, 1, fact)])
    joined = {"run": unit.run, "dispatch": unit.dispatch}
    stored = {"thread": run_thread("r"), "type_name": "run_started", "run_id": "r", "occurred_at": T0, "data": "{}"}
    visit = {"run_id": "r", "step": "s", "visit": 1}
    return {
        "decode": lambda w: Call(protocol.decode, stored),
        "definition_key": lambda w: Call(protocol.definition_key, {"workflow": "w", "fingerprint": "f"}),
        "dispatch_thread": lambda w: Call(protocol.dispatch_thread, {"queue": "q"}),
        "encode": lambda w: Call(protocol.encode, {"fact": fact, "max_bytes": 10_000}),
        "idempotency_key": lambda w: Call(protocol.idempotency_key, visit),
        "parse_fact": lambda w: Call(protocol.parse_fact, {"value": protocol.to_json(fact)}),
        "parse_thread": lambda w: Call(protocol.parse_thread, {"thread_id": run_thread("r")}),
        "planned_but_unscheduled": lambda w: Call(protocol.planned_but_unscheduled, joined),
        "redact": lambda w: Call(protocol.redact, {"value": {"a": 1}}),
        "results_ready_to_apply": lambda w: Call(protocol.results_ready_to_apply, joined),
        "run_index_thread": lambda w: Call(protocol.run_index_thread, {"workflow": "w"}),
        "run_thread": lambda w: Call(protocol.run_thread, {"run_id": "r"}),
        "runnable_key": lambda w: Call(protocol.runnable_key, {**visit, "attempt_number": 1}),
        "to_json": lambda w: Call(protocol.to_json, {"fact": fact}),
        "unfenced_attempts": lambda w: Call(protocol.unfenced_attempts, joined),
    }


def lease_calls() -> dict[str, Make]:
    """Return the calls of every lease backend, on an attempt that it has claimed."""
    made: dict[str, Make] = {
        "JournalLeases": lambda w: Call(JournalLeases, {"runtime": w.runtime}),
        "QueueLeases": lambda w: Call(QueueLeases, {"runtime": w.runtime, "queue": BacklogQueue(w.cards)}),
        "BacklogLeases": lambda w: Call(BacklogLeases, {"runtime": w.runtime, "backlog": w.cards}),
        "work_one_lease": lambda w: Call(
            work_one_lease,
            {"runtime": w.runtime, "backend": JournalLeases(w.runtime), "queue": w.queue, "owner": "ada"},
        ),
    }
    for name, backend in _BACKENDS.items():
        made |= _backend_calls(name, backend)
    for name in ("QueueLeases", "BacklogLeases"):
        made[f"{name}.offer"] = lambda w, name=name: Call(_BACKENDS[name](w).offer, {"queue": w.queue})  # type: ignore[misc]
    return made


def _queue_leases(w: World) -> QueueLeases:
    return QueueLeases(w.runtime, BacklogQueue(w.cards))


_BACKENDS: dict[str, Callable[[World], Any]] = {
    "JournalLeases": lambda w: JournalLeases(w.runtime),
    "QueueLeases": _queue_leases,
    "BacklogLeases": lambda w: BacklogLeases(w.runtime, w.cards),
}


def _backend_calls(name: str, backend: Callable[[World], Any]) -> dict[str, Make]:
    def with_lease(method: str, **arguments: Any) -> Make:
        def make(w: World) -> Call:
            leases = backend(w)
            if w.lease is None:
                (w.lease,) = leases.claim(w.queue, "ada")
            # An outcome that cannot be written down is on record as a failure that says so.
            return Call(getattr(leases, method), {"lease": w.lease, **arguments}, on_record=frozenset(arguments))

        return make

    return {
        f"{name}.claim": lambda w: Call(backend(w).claim, {"queue": w.queue, "owner": "ada"}),
        f"{name}.heartbeat": with_lease("heartbeat"),
        f"{name}.complete": with_lease("complete", result="tea"),
        f"{name}.fail": with_lease("fail", error="no tea"),
        f"{name}.settled": with_lease("settled"),
    }


def _apply(w: World) -> Call:
    w.runtime.dispatch.settle([journal.Settlement(w.claim.claim.ref, journal.Completed("tea"))])
    return Call(w.squid.workflow_agent(w.open).apply_result, {"runnable_key": f"{w.open}:check:1:1"})


def _looking() -> dict[str, Make]:
    def about(w: World, **more: Any) -> dict[str, Any]:
        return {"storage": w.storage, "run_id": w.open, "now": T0, "registry": w.runtime.registry, **more}

    return {
        "explain_run": lambda w: Call(inspection.explain_run, about(w, queries=w.runtime.queries, workers=[])),
        "inspect_run": lambda w: Call(inspection.inspect_run, about(w, workers=[])),
        "inspect_run_graph": lambda w: Call(inspection.inspect_run_graph, about(w)),
        "inspect_run_timeline": lambda w: Call(
            inspection.inspect_run_timeline, {"storage": w.storage, "run_id": w.open}
        ),
        "list_runs": lambda w: Call(inspection.list_runs, {"queries": w.runtime.queries, "registry": Registry([])}),
    }


def _testing() -> dict[str, Make]:
    def squid() -> Any:
        made = testing.make_squid(workflows())
        made.start("orders", {}, run_id="open")
        return made

    return {
        "make_squid": lambda w: Call(testing.make_squid, {"workflows": workflows()}),
        "advance": lambda w: Call(testing.advance, {"squid": squid(), "by": timedelta(1)}),
        "drain": lambda w: Call(testing.drain, {"squid": squid()}),
        "execute_until_blocked": lambda w: Call(testing.execute_until_blocked, {"squid": squid(), "run_id": "open"}),
        "golden": lambda w: Call(testing.golden, {"source": squid(), "run_id": "open"}),
        "assert_invariants": lambda w: Call(testing.assert_invariants, {"source": squid()}),
        "check_invariants": lambda w: Call(testing.check_invariants, {"source": squid()}),
        "simulate": lambda w: Call(
            testing.simulate,
            {"workflows": workflows()[:1], "payloads": [{}], "schedules": 1},
            {
                "schedules": "as many as one wants",
                "payloads": "of the runs",
                "resources": "of the steps",
                "approves": "a person",
            },
        ),
        "violations": lambda w: Call(testing.violations, {"entries": []}),
    }


def table() -> dict[str, Make]:
    """Give the call of every public callable that works in memory."""
    return {
        **_squid(),
        **_authoring(),
        **storage_calls("MemoryStorage"),
        **dispatch_calls("FoldDispatchStore"),
        **query_calls("FoldQueries"),
        **other_calls(),
        **lease_calls(),
        **protocol_calls(),
        **_looking(),
        **_testing(),
    }
