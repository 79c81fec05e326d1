"""Execution of runs in tests, and what was written about them: drain the queue, then read facts."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol

from squid_dagster.api import Squid
from squid_dagster.inspection import RunSnapshot
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol import dispatch_thread, run_thread
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.folds.run_unit import RunUnit
from squid_dagster.testing import Rule, Violation, check_invariants
from squid_dagster.workflow import Workflow
from squid_dagster.workflow.definition import Definition

Workflows = Iterable[Workflow | Definition] | Workflow
_MOST = 500  # units of work in one test: more than that is a loop that does not end


class MakeSquid(Protocol):
    """The type of the fixture `make_squid`."""

    def __call__(self, workflows: Workflows = (), **options: object) -> Squid:
        """Create a `Squid` on the journal under test."""


def drain(squid: Squid, queue: str | None = None) -> int:
    """Execute what is due now, and what follows from it; return the number of attempts."""
    for done in range(_MOST):
        if squid.execute_next(queue) is None:
            return done
    raise AssertionError(f"still at work after {_MOST} units")


def finish(squid: Squid, clock: VirtualClock, run_id: str) -> RunSnapshot:
    """Execute, and move the clock over waits, retries and deferrals, until nothing more is due for the run."""
    for _ in range(_MOST):
        drain(squid)
        snapshot = squid.inspect_run(run_id)
        if snapshot.terminal or snapshot.next_visible_at is None:
            return snapshot
        clock.advance(snapshot.next_visible_at - clock.now())
    raise AssertionError(f"run {run_id} still has work planned after {_MOST} turns")


def complete_run(
    squid: Squid, clock: VirtualClock, workflow: str, payload: dict[str, Any] | None = None
) -> RunSnapshot:
    """Start a run and execute it as far as it goes without a person."""
    return finish(squid, clock, squid.start(workflow, payload).run_id)


def unit(squid: Squid, run_id: str) -> RunUnit:
    """Fold everything about a run."""
    return RunUnit.fold(squid.journal.read_run(run_id))


def facts(squid: Squid, run_id: str, type_name: str | None = None) -> list[Any]:
    """Return the facts about a run by position, or those of one type."""
    return [e.fact for e in squid.journal.read_run(run_id) if type_name in (None, e.fact.type)]


def run_facts(squid: Squid, run_id: str) -> list[str]:
    """Return the types of the facts on a run's own thread."""
    return [entry.fact.type for entry in squid.journal.read(run_thread(run_id))]


def applied_steps(squid: Squid, run_id: str) -> list[str]:
    """Return steps with their visits in the order in which they became part of the run, such as `charge:1`."""
    keys = [fact.runnable_key for fact in facts(squid, run_id, "runnable_applied")]
    return [key.removeprefix(f"{run_id}:").rpartition(":")[0] for key in keys]


def planned_steps(squid: Squid, run_id: str) -> list[str]:
    """Return what was planned, in order, such as `charge:1:2` for the second attempt at the first visit."""
    plans = facts(squid, run_id, "runnables_planned")
    return [runnable.runnable_key.removeprefix(f"{run_id}:") for plan in plans for runnable in plan.runnables]


def transitions(squid: Squid, run_id: str) -> list[tuple[str, str, str]]:
    """Return the decisions that a run took: from, outcome, to."""
    taken = [fact.transition for fact in facts(squid, run_id) if getattr(fact, "transition", None) is not None]
    return [(transition["from"], transition["on"], transition["to"]) for transition in taken]


def everything(storage: Storage) -> list[Entry]:
    """Return the whole journal, for a test that compares it with what it was before."""
    return storage.read_between(0, storage.cut())


def unsound(storage: Storage) -> list[Violation]:
    """Return the rules of every journal that this one breaks.

    Where a commit cannot span threads, work may be scheduled for a run that ends meanwhile: there the fold's own
    anomalies, and what comes after the end, are for tests to judge.
    """
    violations = check_invariants(storage)
    excused = () if storage.atomic_across_threads else (Rule.NO_ANOMALY, Rule.NOTHING_AFTER_THE_END)
    return [violation for violation in violations if violation.rule not in excused]


def state_of(storage: Storage) -> Sequence[tuple[str, int, str]]:
    """Return what a journal holds, in a form that tests can compare."""
    return [(entry.thread, entry.seq, entry.fact.type) for entry in everything(storage)]


def claims(squid: Squid, queue: str = "default") -> list[str]:
    """Return the runnable keys in the order in which they were claimed."""
    queue_facts: list[Any] = [entry.fact for entry in squid.journal.read(dispatch_thread(queue))]
    return [fact.runnable_key for fact in queue_facts if fact.type == "attempt_claimed"]


def seconds(count: float) -> timedelta:
    """Return a duration."""
    return timedelta(seconds=count)
