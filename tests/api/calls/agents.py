"""Calls of agents, notifiers, liveness, the backlog and redaction."""

from datetime import timedelta

from squid_dagster import journal, redaction
from squid_dagster.agents import DispatchAgent, WorkflowAgent
from squid_dagster.backlog import Backlog
from squid_dagster.journal import FoldDispatchStore, FoldQueries, LocalNotifier, MemoryLiveness, MemoryStorage
from squid_dagster.journal.contract.clock import VirtualClock
from tests.api.fixture import ApiFixture
from tests.api.wrong_values import Call, Make
from tests.facts import T0


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


def _apply(w: ApiFixture) -> Call:
    w.runtime.dispatch.settle([journal.Settlement(w.claim.claim.ref, journal.Completed("tea"))])
    return Call(w.squid.workflow_agent(w.open).apply_result, {"runnable_key": f"{w.open}:check:1:1"})
