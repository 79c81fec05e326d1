"""For every reason that an explanation can give, a history that leads to it, and what else was known then."""

from collections.abc import Callable
from typing import Any

from squid_dagster.inspection.explain.case import QueueState
from squid_dagster.inspection.explain.reasons import RunReason
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol import MalformedFact
from squid_dagster.protocol.entries import Entry
from squid_dagster.workflow import Workflow
from squid_dagster.workflow.registry import Registry
from tests.facts import T0, applied, fenced, planned, quarantined, queue_paused, queued, signal, started
from tests.inspection.scenes import Scene, Somebody, changed_order, order, saga, scene

Told = tuple[Scene, dict[str, Any]]


def _terminal() -> Told:
    return scene(order()).do("charge").advance(hours=1).do("rest").do("check", {"amount": 5}), {}


def _quarantined() -> Told:
    told = scene(order())
    told.write(quarantined(entry_seq=2, reason="input: Field required"))
    return told, {}


class _Damaged(MemoryStorage):
    """A journal in which the second fact of the queue cannot be read."""

    def read_run(self, run_id: str, before: int | None = None) -> list[Entry]:
        unreadable = MalformedFact(
            "attempt_scheduled", run_id, T0, "step: wrong (got 'hunter2'); x", '{"a": "hunter2"}'
        )
        return [
            entry._replace(fact=unreadable) if (entry.thread, entry.seq) == ("squid:dispatch:default", 2) else entry
            for entry in super().read_run(run_id, before)
        ]


def damaged() -> Scene:
    """A run of which one entry cannot be read."""
    told = Scene(order().freeze())
    told.storage = _Damaged(told.clock)
    return told.start()


def _not_started() -> Told:
    told = Scene(order().freeze())
    told.write(queued(), signal())
    return told, {}


def _manual() -> Told:
    told = scene(order()).do("charge").advance(hours=1).do("rest").do("check", {"amount": 500})
    return told.advance(minutes=95), {}


def _held() -> Told:
    return scene(order()), {"registry": Registry([changed_order().freeze()])}


def _dead_letter() -> Told:
    return scene(saga()).do("book").do("pay").do("mail").die("ship"), {}


def _completed_pending() -> Told:
    told = scene(order()).claim("charge")
    told.write(told.completion("charge", {"ok": True}))
    return told, {}


def _failure_pending() -> Told:
    told = scene(order()).claim("charge")
    told.write(told.failure("charge"))
    return told, {}


def _planned_pending() -> Told:
    told = Scene(order().freeze())
    told.write(started(workflow="orders"), planned())
    return told, {}


def _queue_paused() -> Told:
    told = scene(order())
    told.write(queue_paused())
    paused = told.storage.read("squid:dispatch:default")[-1]
    return told, {"queue_state": QueueState("default", True, paused, paused.fact.occurred_at)}


def _no_worker_for_queue() -> Told:
    return scene(order()).advance(minutes=5), {"workers": [Somebody("w-1", ("slow",))]}


def _no_worker_for_definition() -> Told:
    return scene(order()), {"workers": [Somebody("w-1", definitions=("other/abc",)), Somebody("w-2", ("slow",))]}


def _expired_claim() -> Told:
    return scene(order()).claim("charge", lease=30).advance(seconds=40), {"workers": [Somebody("w-1")]}


def _compensating() -> Told:
    return scene(saga()).do("book").do("pay").do("mail").claim("ship").fail("ship"), {"workers": [Somebody("w-1")]}


def _visible() -> Told:
    told = scene(order()).advance(seconds=9)
    return told, {"workers": [Somebody("w-1", definitions=(told.definition.key,))]}


def _claimed() -> Told:
    return scene(order()).claim("charge").advance(seconds=20).beat("charge").advance(seconds=15), {}


def _external() -> Told:
    workflow = Workflow("orders")
    workflow.external("train", "dagster_job", job="train_model")
    told = scene(workflow).advance(minutes=2)
    told.write(
        signal(
            signal_type="external_requested",
            payload={"runnable_key": "run-1:train:1:1", "launcher": "d-1"},
            occurred_at=told.clock.now(),
        )
    )
    return told.advance(minutes=3), {}


def _retry() -> Told:
    return scene(order()).claim("charge").fail("charge", retry_in=30), {}


def _deferred() -> Told:
    return scene(order()).claim("charge").defer("charge", 120, "the bank is closed"), {}


def _wait() -> Told:
    return scene(order()).do("charge").advance(minutes=10), {}


def _later() -> Told:
    return scene(order()).do("charge"), {"registry": Registry()}


def _idle() -> Told:
    told = Scene(order().freeze())
    told.write(started(workflow="orders"), planned(), applied())
    return told, {}


def _run_started() -> Told:
    told = Scene(order().freeze())
    told.write(started(workflow="orders"))
    return told, {}


def _waiting() -> Told:
    told = scene(order())
    told.write(fenced())
    return told, {}


STORIES: dict[RunReason, Callable[[], Told]] = {
    RunReason.TERMINAL: _terminal,
    RunReason.QUARANTINED: _quarantined,
    RunReason.UNREADABLE_ENTRY: lambda: (damaged(), {}),
    RunReason.NOT_STARTED: _not_started,
    RunReason.MANUAL_INTERVENTION_REQUIRED: _manual,
    RunReason.HELD: _held,
    RunReason.DEAD_LETTER: _dead_letter,
    RunReason.COMPLETED_RESULT_PENDING_APPLY: _completed_pending,
    RunReason.FAILURE_PENDING_APPLY: _failure_pending,
    RunReason.PLANNED_DISPATCH_PENDING_SCHEDULE: _planned_pending,
    RunReason.QUEUE_PAUSED: _queue_paused,
    RunReason.NO_WORKER_FOR_QUEUE: _no_worker_for_queue,
    RunReason.NO_WORKER_FOR_DEFINITION: _no_worker_for_definition,
    RunReason.EXPIRED_CLAIM: _expired_claim,
    RunReason.COMPENSATING: _compensating,
    RunReason.ATTEMPT_VISIBLE: _visible,
    RunReason.ATTEMPT_CLAIMED: _claimed,
    RunReason.WAITING_EXTERNAL: _external,
    RunReason.RETRY_SCHEDULED: _retry,
    RunReason.DEFERRED_CONTINUATION: _deferred,
    RunReason.WAIT_STEP: _wait,
    RunReason.ATTEMPT_SCHEDULED_FOR_LATER: _later,
    RunReason.IDLE: _idle,
    RunReason.RUN_STARTED: _run_started,
    RunReason.WAITING_FOR_DISPATCH: _waiting,
}
