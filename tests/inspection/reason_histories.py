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
from tests.inspection.run_histories import LiveWorker, RunHistory, changed_order, order, saga, start_history

Situation = tuple[RunHistory, dict[str, Any]]


def _terminal() -> Situation:
    return start_history(order()).do("charge").advance(hours=1).do("rest").do("check", {"amount": 5}), {}


def _quarantined() -> Situation:
    history = start_history(order())
    history.write(quarantined(entry_seq=2, reason="input: Field required"))
    return history, {}


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


def damaged() -> RunHistory:
    """Return a run of which one entry cannot be read."""
    history = RunHistory(order().freeze())
    history.storage = _Damaged(history.clock)
    return history.start()


def _not_started() -> Situation:
    history = RunHistory(order().freeze())
    history.write(queued(), signal())
    return history, {}


def _manual() -> Situation:
    history = start_history(order()).do("charge").advance(hours=1).do("rest").do("check", {"amount": 500})
    return history.advance(minutes=95), {}


def _held() -> Situation:
    return start_history(order()), {"registry": Registry([changed_order().freeze()])}


def _dead_letter() -> Situation:
    return start_history(saga()).do("book").do("pay").do("mail").die("ship"), {}


def _completed_pending() -> Situation:
    history = start_history(order()).claim("charge")
    history.write(history.completion("charge", {"ok": True}))
    return history, {}


def _failure_pending() -> Situation:
    history = start_history(order()).claim("charge")
    history.write(history.failure("charge"))
    return history, {}


def _planned_pending() -> Situation:
    history = RunHistory(order().freeze())
    history.write(started(workflow="orders"), planned())
    return history, {}


def _queue_paused() -> Situation:
    history = start_history(order())
    history.write(queue_paused())
    paused = history.storage.read("squid:dispatch:default")[-1]
    return history, {"queue_state": QueueState("default", True, paused, paused.fact.occurred_at)}


def _no_worker_for_queue() -> Situation:
    return start_history(order()).advance(minutes=5), {"workers": [LiveWorker("w-1", ("slow",))]}


def _no_worker_for_definition() -> Situation:
    return start_history(order()), {
        "workers": [LiveWorker("w-1", definitions=("other/abc",)), LiveWorker("w-2", ("slow",))]
    }


def _expired_claim() -> Situation:
    return start_history(order()).claim("charge", lease=30).advance(seconds=40), {"workers": [LiveWorker("w-1")]}


def _compensating() -> Situation:
    return start_history(saga()).do("book").do("pay").do("mail").claim("ship").fail("ship"), {
        "workers": [LiveWorker("w-1")]
    }


def _visible() -> Situation:
    history = start_history(order()).advance(seconds=9)
    return history, {"workers": [LiveWorker("w-1", definitions=(history.definition.key,))]}


def _claimed() -> Situation:
    return start_history(order()).claim("charge").advance(seconds=20).beat("charge").advance(seconds=15), {}


def _external() -> Situation:
    workflow = Workflow("orders")
    workflow.external("train", "dagster_job", job="train_model")
    history = start_history(workflow).advance(minutes=2)
    history.write(
        signal(
            signal_type="external_requested",
            payload={"runnable_key": "run-1:train:1:1", "launcher": "d-1"},
            occurred_at=history.clock.now(),
        )
    )
    return history.advance(minutes=3), {}


def _retry() -> Situation:
    return start_history(order()).claim("charge").fail("charge", retry_in=30), {}


def _deferred() -> Situation:
    return start_history(order()).claim("charge").defer("charge", 120, "the bank is closed"), {}


def _wait() -> Situation:
    return start_history(order()).do("charge").advance(minutes=10), {}


def _later() -> Situation:
    return start_history(order()).do("charge"), {"registry": Registry()}


def _idle() -> Situation:
    history = RunHistory(order().freeze())
    history.write(started(workflow="orders"), planned(), applied())
    return history, {}


def _run_started() -> Situation:
    history = RunHistory(order().freeze())
    history.write(started(workflow="orders"))
    return history, {}


def _waiting() -> Situation:
    history = start_history(order())
    history.write(fenced())
    return history, {}


HISTORIES: dict[RunReason, Callable[[], Situation]] = {
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
