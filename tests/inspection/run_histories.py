"""`RunHistory`: facts as the runtime writes them, one after the other, in memory and by the real planner."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from pydantic import BaseModel

from squid_dagster.inspection.explain.case import Case, QueueState, make_case
from squid_dagster.inspection.explain.explanation import Explanation, explain
from squid_dagster.inspection.inspection import Inspection
from squid_dagster.inspection.run_record import read_record
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.worker_liveness import MemoryLiveness, WorkerRow
from squid_dagster.journal.fold_store.queries import FoldQueries
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.protocol import (
    Attempt,
    AttemptClaimed,
    AttemptCompleted,
    AttemptDeadLettered,
    AttemptFailed,
    AttemptHeartbeat,
    AttemptReleased,
    Fact,
    RunSignalReceived,
    RunStarted,
    RunUnit,
)
from squid_dagster.protocol.folds.attempt import OPEN
from squid_dagster.workflow import Deadline, Definition, Retry, Workflow, path
from squid_dagster.workflow.planner.planner import plan_resolution, plan_settled, plan_start
from squid_dagster.workflow.planner.schedule import plan_end
from squid_dagster.workflow.registry import Registry
from tests.facts import T0, token_hash

RUN = "run-1"


class Order(BaseModel):
    order_id: str = "o-1"


def charge(order_id: str) -> dict[str, Any]:
    return {"order_id": order_id}


def nothing() -> None:
    """Return nothing."""


def undo() -> None:
    """Undo it."""


def order(version: str | None = "1") -> Workflow:
    """Charge, rest an hour, check; ask a person about large amounts; a failed charge may be mended."""
    workflow = Workflow("orders", payload=Order, version=version, entry="charge")
    due = Deadline(timedelta(minutes=5))
    workflow.step(name="charge", retry=Retry(max_attempts=3), deadline=due, max_visits=3)(charge)
    workflow.step(name="mend")(nothing)
    workflow.wait("rest", timedelta(hours=1))
    workflow.step(name="check")(nothing)
    workflow.approval(
        "review", deadline=Deadline(timedelta(hours=2), timedelta(minutes=30), escalate_after=timedelta(hours=1))
    )
    workflow.route("charge", to="rest")
    workflow.route("charge", on="error", to="mend", recovery="compensation")
    workflow.route("mend", to="fail")
    workflow.route("rest", to="check")
    workflow.route("check", to="review", when=path("check.amount") > 100)
    workflow.route("check", to="charge", when=path("check.api_token") == "hunter2")
    workflow.route("check", to="complete")
    workflow.route("review", to="complete")
    workflow.route("review", on="error", to="fail")
    return workflow


def changed_order() -> Workflow:
    """Return another workflow of the same name."""
    workflow = Workflow("orders", payload=Order, version="2")
    workflow.step(name="charge")(charge)
    workflow.route("charge", to="complete")
    return workflow


def fan() -> Workflow:
    """Return a workflow of three steps side by side, and one that joins them."""
    workflow = Workflow("fan", version="1")
    for name in ("left", "middle", "right"):
        workflow.step(name=name)(nothing)
    workflow.step(name="join", after=["left", "middle", "right"])(nothing)
    return workflow


def saga() -> Workflow:
    """Return a workflow of two steps that can be undone, one that cannot, and one that may fail."""
    workflow = Workflow("saga", version="1")
    workflow.step(name="book", compensate=undo)(nothing)
    workflow.step(name="pay", compensate=undo)(nothing)
    workflow.step(name="mail", irreversible=True)(nothing)
    workflow.step(name="ship", max_deliveries=2)(nothing)
    for source, target in (("book", "pay"), ("pay", "mail"), ("mail", "ship"), ("ship", "complete")):
        workflow.route(source, to=target)
    return workflow


def looping() -> Workflow:
    """Return a workflow with a step that is visited again by two ways, and one that comes back to itself."""
    workflow = Workflow("looping", version="1", entry="poll")
    workflow.step(name="poll", max_visits=5)(nothing)
    workflow.step(name="look", max_visits=5)(nothing)
    workflow.pause("breathe", max_visits=5)
    workflow.route("poll", to="poll", when=path("poll.again") == True)  # noqa: E712
    workflow.route("poll", to="look")
    workflow.route("look", to="breathe", when=path("look.tired") == True)  # noqa: E712
    workflow.route("look", to="poll", when=path("look.again") == True)  # noqa: E712
    workflow.route("look", to="complete")
    workflow.route("breathe", to="poll")
    return workflow


class LiveWorker(NamedTuple):
    """A worker as it announces itself."""

    worker_id: str
    queues: tuple[str, ...] = ("default",)
    definitions: tuple[str, ...] | None = None
    capacity: int = 1
    running: int = 0


@dataclass
class RunHistory:
    """One run of a workflow, and the clock it lives by."""

    definition: Definition
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(T0))
    run_id: str = RUN
    claims: int = 0

    def __post_init__(self) -> None:
        self.storage = MemoryStorage(self.clock)
        self.registry = Registry([self.definition])

    @property
    def now(self) -> datetime:
        return self.clock.now()

    @property
    def unit(self) -> RunUnit:
        return RunUnit.fold(self.storage.read_run(self.run_id))

    def write(self, *facts: Fact) -> None:
        for fact in facts:
            self.storage.append(fact.thread, [fact])

    def advance(self, **span: float) -> "RunHistory":
        self.clock.advance(timedelta(**span))
        return self

    # --- what happens -----------------------------------------------------------------------------------------------

    def signal(self, signal_type: str, **fields: Any) -> None:
        base = {"run_id": self.run_id, "occurred_at": self.now, "payload": {}, "metadata": {}}
        self.write(RunSignalReceived(**{**base, "signal_type": signal_type, **fields}))

    def start(self, **fields: Any) -> "RunHistory":
        definition = self.definition
        base = {
            "run_id": self.run_id,
            "workflow": definition.name,
            "trigger": "manual",
            "input": definition.accept_payload({}),
            "queue": "default",
            "definition_version": definition.version,
            "definition_fingerprint": definition.fingerprint,
            "occurred_at": self.now,
        }
        started = RunStarted(**{**base, **fields})
        self.signal("start_run", payload={"workflow": definition.name, "input": started.input}, actor="ada")
        self.write(started, *plan_start(definition, started))
        return self

    def attempt(self, step: str) -> Attempt:
        """Return the latest attempt at a step."""
        attempts = [a for a in self.unit.dispatch.attempts.values() if a.step == step]
        return max(attempts, key=lambda a: (a.position, a.attempt_number))

    def claim(self, step: str, lease: float = 60, owner: str = "worker-a") -> "RunHistory":
        attempt = self.attempt(step)
        assert attempt.status in OPEN
        self.claims += 1
        self.write(
            AttemptClaimed(
                **self._fence(attempt, f"claim-{self.claims}"),
                owner_id=owner,
                lease_until=self.now + timedelta(seconds=lease),
            )
        )
        assert self.attempt(step).claim_id == f"claim-{self.claims}", "the claim was refused"
        return self

    def _fence(self, attempt: Attempt, claim: str | None = None) -> dict[str, Any]:
        held = claim or attempt.claim_id or ""
        return {
            "run_id": self.run_id,
            "runnable_key": attempt.runnable_key,
            "queue": attempt.queue,
            "claim_id": held,
            "claim_token_hash": token_hash(held),
            "occurred_at": self.now,
        }

    def beat(self, step: str, lease: float = 60) -> "RunHistory":
        fence = self._fence(self.attempt(step))
        self.write(AttemptHeartbeat(**fence, lease_until=self.now + timedelta(seconds=lease)))
        return self

    def completion(self, step: str, result: Any = None) -> Fact:
        return AttemptCompleted(**self._fence(self.attempt(step)), result=result)

    def failure(self, step: str, retry_in: float | None = None, error: dict[str, Any] | None = None) -> Fact:
        attempt = self.attempt(step)
        retry: dict[str, Any] = {}
        if retry_in is not None:
            key = f"{attempt.idempotency_key}:{attempt.attempt_number + 1}"
            retry = {"retry_runnable_key": key, "retry_visible_at": self.now + timedelta(seconds=retry_in)}
        said = error or {"type": "ValueError", "message": "declined"}
        return AttemptFailed(**self._fence(attempt), error=said, **retry)

    def complete(self, step: str, result: Any = None) -> "RunHistory":
        self.write(self.completion(step, result))
        return self.settle(self.attempt(step).runnable_key)

    def fail(self, step: str, retry_in: float | None = None, error: dict[str, Any] | None = None) -> "RunHistory":
        key = self.attempt(step).runnable_key
        self.write(self.failure(step, retry_in, error))
        return self.settle(key)

    def defer(self, step: str, seconds: float, reason: str | None = None) -> "RunHistory":
        later = self.now + timedelta(seconds=seconds)
        self.write(AttemptReleased(**self._fence(self.attempt(step)), reason=reason, visible_at=later))
        return self

    def settle(self, key: str) -> "RunHistory":
        """Write what follows from the outcome of an attempt."""
        attempts = self.unit.dispatch.attempts
        self.write(*plan_settled(self.definition, self.unit.run, [attempts[key]], attempts, self.now))
        return self

    def die(self, step: str) -> "RunHistory":
        """Claim an attempt until its deliveries are spent, and write that it is a dead letter."""
        attempt = self.attempt(step)
        while self.attempt(step).deliveries < attempt.max_deliveries:
            self.claim(step, lease=10).advance(seconds=11)
        self.write(
            AttemptDeadLettered(
                run_id=self.run_id,
                runnable_key=attempt.runnable_key,
                queue=attempt.queue,
                deliveries=attempt.max_deliveries,
                error={"code": "dead_letter", "message": "the lease ran out"},
                occurred_at=self.now,
            )
        )
        return self

    def decide(self, action: str, actor: str = "grace", comment: str | None = None) -> "RunHistory":
        command = {"approved": "approve_run", "rejected": "reject_run", "resumed": "resume_run"}[action]
        self.signal(command, actor=actor, comment=comment)
        result: dict[str, Any] = {} if action == "resumed" else {"decision": action, "actor": actor}
        self.write(*plan_resolution(self.definition, self.unit.run, action, result, {}, self.now))
        return self

    def end(self, status: str = "cancelled", **fields: Any) -> "RunHistory":
        self.signal("cancel_run", **{"actor": "grace", **fields})
        self.write(*plan_end(self.unit.run, status, self.now))
        return self

    def do(self, step: str, result: Any = None) -> "RunHistory":
        return self.claim(step).advance(seconds=5).complete(step, result)

    # --- looking ----------------------------------------------------------------------------------------------------

    def inspection(self, *definitions: Definition, workers: Sequence[LiveWorker] | None = None) -> Inspection:
        """Return the journal to look at; by default with its own definition, and a worker that takes anything."""
        liveness = MemoryLiveness(self.storage)
        for known in liveness.workers(timedelta(hours=1)):
            liveness.withdraw(known.worker_id)
        for worker in (LiveWorker("w-1"),) if workers is None else workers:
            liveness.report(WorkerRow(host="here", pid=1, **worker._asdict()))
        registry = Registry(definitions or [self.definition])
        return Inspection(self.storage, FoldQueries(self.storage), liveness, registry)

    def case(
        self,
        registry: Registry | None = None,
        workers: Sequence[LiveWorker] | None = None,
        queue_state: QueueState | None = None,
        at_revision: int | None = None,
    ) -> Case:
        record = read_record(self.storage, self.run_id, at_revision)
        known = self.registry if registry is None else registry
        return make_case(record, self.now, registry=known, workers=workers, queue_state=queue_state)

    def explain(self, **known: Any) -> Explanation:
        return explain(self.case(**known))


def start_history(workflow: Workflow) -> RunHistory:
    """Return a run that has just started."""
    return RunHistory(workflow.freeze()).start()
