"""What a crash leaves behind, one kind at a time: facts are written by hand, so that what should follow is missing.

Everything goes through the real planner and the real claims; only the second half of each commit is left out.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, LiteralString, NamedTuple

from squid_dagster import Signal, SignalType
from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Completed, Failed, NextAttempt, Outcome, Settlement
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import ChildRunStarted, Origin, RunTerminal, run_thread
from squid_dagster.runtime.commands.derived_ids import derived_run_id
from squid_dagster.runtime.commands.run_start import prepare_start
from squid_dagster.testing import InjectedStorage

LEASE = timedelta(minutes=1)
Plant = Callable[[Squid, VirtualClock, str], None]


def start_half(squid: Squid, workflow: str, run_id: str, **options: Any) -> None:
    """Start a run, as far as its own thread: its queue has no entry."""
    start = prepare_start(squid.runtime, workflow, {}, run_id=run_id, **options)
    mine = [fact for fact in start.facts(squid.runtime.now()) if fact.thread == run_thread(run_id)]
    squid.journal.append(run_thread(run_id), mine)


def start(squid: Squid, workflow: str, run_id: str) -> None:
    """Start a run, whole."""
    squid.start(workflow, run_id=run_id)


def settle_half(squid: Squid, workflow: str, outcome: Outcome) -> None:
    """Claim the next attempt of a workflow and record its outcome; the run's thread has no entry."""
    key = squid.runtime.registry.select(workflow).key
    (claim,) = squid.runtime.dispatch.claim(squid.runtime.queue, "somebody", lease=LEASE, definitions=[key])
    squid.runtime.dispatch.settle([Settlement(claim.ref, outcome)])[0].unwrap()


def planned_but_unscheduled(squid: Squid, clock: VirtualClock, run_id: str) -> None:
    """Start a run whose first step is on no queue."""
    start_half(squid, "line", run_id)


def paused_and_unknown_to_its_queue(squid: Squid, clock: VirtualClock, run_id: str) -> None:
    """Start a run that waits for a person, and is unknown to its queue."""
    start_half(squid, "decided_first", run_id)


def completed_but_unapplied(squid: Squid, clock: VirtualClock, run_id: str) -> None:
    """Complete a step from which nothing follows."""
    start(squid, "line", run_id)
    settle_half(squid, "line", Completed({"did": "first"}))


def failed_but_unprogressed(squid: Squid, clock: VirtualClock, run_id: str) -> None:
    """Fail a step for good, with nothing that follows."""
    start(squid, "mended", run_id)
    settle_half(squid, "mended", Failed({"message": "planted"}))


def failed_with_an_unplanned_retry(squid: Squid, clock: VirtualClock, run_id: str) -> None:
    """Fail a step with a retry that the run knows nothing of."""
    start(squid, "retried", run_id)
    settle_half(
        squid, "retried", Failed({"message": "planted"}, NextAttempt(f"{run_id}:flaky:1:2", timedelta(seconds=10)))
    )


def expired_over_the_cap(squid: Squid, clock: VirtualClock, run_id: str) -> None:
    """Deliver an attempt as often as it may be, and let every lease run out."""
    start(squid, "deadly_mended", run_id)
    key = squid.runtime.registry.select("deadly_mended").key
    for _ in range(2):
        (_,) = squid.runtime.dispatch.claim(squid.runtime.queue, "somebody", lease=LEASE, definitions=[key])
        clock.advance(2 * LEASE)


def dead_letter_with_a_route(squid: Squid, clock: VirtualClock, run_id: str) -> None:
    """Dead-letter an attempt whose failure has a route that was not followed."""
    expired_over_the_cap(squid, clock, run_id)
    squid.runtime.dispatch.dead_letter_expired(squid.runtime.queue)


def child_link_without_a_child(squid: Squid, clock: VirtualClock, run_id: str) -> None:
    """Link a child that was never started."""
    start(squid, "waiting", run_id)
    link = ChildRunStarted(
        run_id=run_id,
        child_run_id=derived_run_id("line", "manual", f"{run_id}|long|planted"),
        child_workflow="line",
        child_trigger="manual",
        child_key="planted",
        origin=Origin(runnable_key=f"{run_id}:long:1:1", step="long", attempt=1),
        child_input={},
        occurred_at=squid.runtime.now(),
    )
    squid.journal.append(run_thread(run_id), [link])


def terminal_but_unfenced(squid: Squid, clock: VirtualClock, run_id: str) -> None:
    """End a run whose queue still shows open work."""
    start(squid, "line", run_id)
    end = RunTerminal(run_id=run_id, status="cancelled", occurred_at=squid.runtime.now())
    squid.journal.append(run_thread(run_id), [end])


def orphans_of_a_cascade(squid: Squid, clock: VirtualClock, run_id: str) -> None:
    """Cancel a run with its children, of which none has heard: one rests, one has ended, each has one that rests."""
    start(squid, "top", run_id)
    while squid.execute_next() is not None:
        pass
    now = squid.runtime.now()
    asked = Signal(type=SignalType.CANCEL_RUN, payload={"run_id": run_id, "cascade": True}, idempotency_key=run_id)
    end = RunTerminal(run_id=run_id, status="cancelled", occurred_at=now)
    squid.journal.append(run_thread(run_id), [asked.fact(run_id, now), end])


# --- entries that cannot be read ------------------------------------------------------------------------------------

_SPOIL: tuple[LiteralString, ...] = (
    "ALTER TABLE {schema}.journal_entries DISABLE TRIGGER journal_entries_append_only",
    "UPDATE {schema}.journal_entries SET data = '[1]' WHERE thread = %(thread)s AND type = %(type)s",
    "ALTER TABLE {schema}.journal_entries ENABLE ALWAYS TRIGGER journal_entries_append_only",
)


def spoil(storage: Storage, run_id: str, fact_type: str = "runnables_planned") -> None:
    """Corrupt facts of a run in the table, so that they cannot be read any more."""
    if isinstance(storage, InjectedStorage):
        spoil(storage.inner, run_id, fact_type)
    elif isinstance(storage, PostgresStorage):
        with storage.connection() as connection, connection.transaction():
            for text in _SPOIL:
                values = {"thread": run_thread(run_id), "type": fact_type} if "UPDATE" in text else None
                connection.execute(storage.sql(text), values)
    else:
        assert isinstance(storage, MemoryStorage)
        for rows in (storage._threads[run_thread(run_id)], storage._runs[run_id], storage._journal):
            for place, row in enumerate(rows):
                if row.thread == run_thread(run_id) and row.encoded.type == fact_type:
                    rows[place] = row._replace(encoded=row.encoded._replace(data="[1]"))


def completed_but_unreadable(squid: Squid, clock: VirtualClock, run_id: str) -> None:
    """Complete a step of a run whose plan cannot be read."""
    completed_but_unapplied(squid, clock, run_id)
    spoil(squid.journal, run_id)


class Repair(NamedTuple):
    """What a report counts for a repair, and how the run ends once workers have been at it. Listings come on top."""

    counts: Mapping[str, int]
    status: str


DAMAGE: Mapping[Plant, Repair] = {
    planned_but_unscheduled: Repair({"scheduled": 1}, "completed"),
    paused_and_unknown_to_its_queue: Repair({"queued": 1}, "paused"),
    completed_but_unapplied: Repair({"applied": 1}, "completed"),
    failed_but_unprogressed: Repair({"progressed": 1}, "completed"),
    failed_with_an_unplanned_retry: Repair({"progressed": 1}, "completed"),
    expired_over_the_cap: Repair({"dead_lettered": 1, "dead_letters": 1}, "completed"),
    dead_letter_with_a_route: Repair({"dead_letters": 1}, "completed"),
    child_link_without_a_child: Repair({"children": 1}, "running"),
    terminal_but_unfenced: Repair({"fenced": 1}, "cancelled"),
    orphans_of_a_cascade: Repair({"fenced": 1, "cascades": 3}, "cancelled"),
}
"""Each kind of damage that recovery repairs."""
