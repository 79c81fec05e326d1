"""A run in memory: plans are folded as they are made, and the test gives the outcomes."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from squid_dagster.protocol import Fact, RunStarted
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.protocol.folds.run_unit import RunUnit, apply_unit
from squid_dagster.workflow import Workflow
from squid_dagster.workflow.planner.planner import plan_resolution, plan_settled, plan_start
from tests.facts import claimed, completed, dead_lettered, failed, failed_with_retry, t

RUN = "run-1"


class Ok(NamedTuple):
    """The step returned this."""

    result: Any = None


class Error(NamedTuple):
    """The step failed; with `retry_after`, the next attempt is due that many seconds later."""

    message: str = "declined"
    retry_after: float | None = None


class Lost(NamedTuple):
    """The attempt was delivered as often as it may be, and none of its workers settled it."""


class FoldedRun:
    """A run of a workflow. Time passes by a second with every outcome."""

    def __init__(self, workflow: Workflow, payload: dict[str, Any] | None = None, **start: Any) -> None:
        """Start the run."""
        self.definition = workflow.freeze()
        self.entries: list[Entry] = []
        self.unit = RunUnit()
        self.at = 0.0
        begun = RunStarted(
            run_id=RUN,
            workflow=self.definition.name,
            input=self.definition.accept_payload(payload),
            occurred_at=t(0),
            definition_fingerprint=self.definition.fingerprint,
            **{"queue": "default", **start},
        )
        self.write([begun, *plan_start(self.definition, begun)])

    def write(self, facts: Iterable[Fact]) -> list[Any]:
        """Fold facts as if they had been appended; return them."""
        written = list(facts)
        for fact in written:
            entry = Entry(fact.thread, 0, len(self.entries) + 1, fact)
            self.entries.append(entry)
            apply_unit(self.unit, entry)
        return written

    def open(self) -> list[str]:
        """Return the attempts that could be claimed, without the run's id."""
        return [attempt.runnable_key.removeprefix(f"{RUN}:") for attempt in self.unit.dispatch.open_attempts()]

    def attempt(self, step: str) -> Attempt:
        """Return the open attempt at a step."""
        return next(attempt for attempt in self.unit.dispatch.open_attempts() if attempt.step == step)

    def outcome(self, step: str, outcome: Ok | Error | Lost) -> Attempt:
        """Fold the outcome of an attempt and return the attempt; nothing follows from it yet."""
        attempt = self.attempt(step)
        self.at = max(self.at + 1, (attempt.visible_at - t(0)).total_seconds())
        visit = int(attempt.idempotency_key.rpartition(":")[2])
        about: dict[str, Any] = {"visit": visit, "attempt": attempt.attempt_number, "queue": attempt.queue}
        facts: list[Fact] = [claimed(RUN, step, at=self.at, claim="a", lease=60, **about)]
        match outcome:
            case Ok(result):
                facts.append(completed(RUN, step, at=self.at, result=result, **about))
            case Error(message, None):
                facts.append(failed(RUN, step, at=self.at, error={"message": message}, **about))
            case Error(message, delay):
                error = {"message": message}
                facts.append(failed_with_retry(RUN, step, at=self.at, delay=delay or 0, error=error, **about))
            case Lost():
                for _ in range(attempt.max_deliveries - 1):
                    self.at += 60
                    facts.append(claimed(RUN, step, at=self.at, claim="a", lease=60, **about))
                self.at += 60
                facts.append(dead_lettered(RUN, step, at=self.at, deliveries=attempt.max_deliveries, **about))
        self.write(facts)
        return self.unit.dispatch.attempts[attempt.runnable_key]

    def plan(self, *settled: Attempt) -> list[Any]:
        """Return what follows from settled attempts; nothing is written."""
        attempts = self.unit.dispatch.attempts
        return list(plan_settled(self.definition, self.unit.run, settled, attempts, t(self.at)))

    def settle(self, **outcomes: Ok | Error | Lost) -> list[Any]:
        """Settle attempts together, by their steps, and write what follows; return that."""
        return self.write(self.plan(*[self.outcome(step, outcome) for step, outcome in outcomes.items()]))

    def resolve(self, action: str, **result: Any) -> list[Any]:
        """Decide, and write what follows; return that."""
        self.at += 1
        return self.write(plan_resolution(self.definition, self.unit.run, action, result, {}, t(self.at)))


def types(facts: Iterable[Any]) -> list[str]:
    """Return the types of facts."""
    return [fact.type for fact in facts]
