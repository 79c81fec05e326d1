"""A lease backend for a host's own queue: intents to run attempts travel through it.

The host's queue delivers, the journal fences. A delivery is claimed in the journal by its key. If its work is done, it
is completed on the queue; if it is not due, it is put back; any other refused one is buried there until it is offered
again. A crash in between leaves at worst an item that is delivered once more.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

from squid_dagster.journal.contract.dispatch_store import (
    DEFAULT_LEASE,
    Claim,
    Completed,
    Deferred,
    Interrupted,
    Outcome,
    Unfinished,
    check_claim,
)
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.argument_checks import checks_arguments, name_problem
from squid_dagster.protocol.errors import (
    InvalidArgument,
    InvalidFact,
    InvalidThread,
    NotFound,
    SquidError,
    StorageRefused,
    StorageUnavailable,
)
from squid_dagster.protocol.folds.attempt import out_of_deliveries
from squid_dagster.redaction import redacted_text
from squid_dagster.runtime.leases.claim_by_key import Refused, claim_item
from squid_dagster.runtime.leases.lease_backend import (
    Lease,
    LeaseOutcome,
    comes_back,
    extended,
    failed,
    is_over,
    settle_lease,
)
from squid_dagster.runtime.runtime import Runtime

logger = redacting_logger(__name__)

OFFERED_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Intent:
    """An attempt that may be claimed: all of it that travels through a queue. The rest is in the journal."""

    item_id: str  # the same for every attempt at it
    run_id: str
    queue: str
    step: str
    priority: int
    visible_at: datetime


@dataclass(frozen=True, slots=True)
class Delivery:
    """An intent that a queue has delivered. `ref` is the queue's own reference to it."""

    intent: Intent
    ref: object = field(default=None, repr=False)


class HostQueue(Protocol):
    """The interface of a host's queue. Safe between threads and processes that share it.

    A delivery that is neither completed nor failed is delivered again once its lease is over. So errors of `heartbeat`,
    `complete` and `fail` cost latency, never work: they are logged. Errors of `offer` and `claim` go to the worker.
    """

    def offer(self, intent: Intent) -> None:
        """Add an intent, unless one of that `item_id` is queued already; a buried one becomes available again."""

    def claim(self, queue: str, owner: str, limit: int, lease: timedelta) -> list[Delivery]:
        """Deliver up to `limit` intents of a queue, each to this owner alone for as long as `lease`."""

    def heartbeat(self, delivery: Delivery, lease: timedelta) -> None:
        """Extend a delivery: it is not delivered again until `lease` from now."""

    def complete(self, delivery: Delivery) -> None:
        """Remove a delivery: its work is done, and is never offered again."""

    def fail(self, delivery: Delivery, why: str, retry_after: timedelta | None) -> LeaseOutcome:
        """Deliver it again, that much later; None: bury it until it is offered again."""


@checks_arguments
class QueueLeases:
    """`LeaseBackend` of a host's queue."""

    def __init__(self, runtime: Runtime, queue: HostQueue) -> None:
        """Bind to a runtime (`squid.runtime`) and the queue."""
        self._runtime, self._queue = runtime, queue

    def offer(self, queue: str, limit: int = OFFERED_AT_ONCE) -> int:
        """Put claimable attempts on the host's queue; return how many were offered. Safe to repeat."""
        dispatch, known = self._runtime.dispatch, self._runtime.registry.keys
        expired = dispatch.expired(queue, limit, definitions=known)
        due = [*dispatch.visible(queue, limit, definitions=known), *(a for a in expired if not out_of_deliveries(a))]
        errors: list[Exception] = []
        for attempt in due:
            try:
                key, run_id, step = attempt.idempotency_key, attempt.run_id, attempt.step
                self._queue.offer(Intent(key, run_id, attempt.queue, step, attempt.priority, attempt.visible_at))
            except Exception as error:  # noqa: BLE001  the host's own code; the other items are offered all the same
                errors.append(error)
                logger.warning("the queue refuses %s: %s: %s", attempt.idempotency_key, type(error).__name__, error)
        if errors and len(errors) == len(due):
            raise errors[0]
        return len(due) - len(errors)

    def claim(self, queue: str, owner: str, *, limit: int = 1, lease: timedelta = DEFAULT_LEASE) -> list[Lease]:
        """Claim deliveries on the queue and then in the journal, as the contract says."""
        runtime = self._runtime
        check_claim(queue, owner, limit, lease, None)
        if (problem := name_problem(owner)) is not None:  # before attempts are offered: a host's queue may refuse it
            raise InvalidArgument(f"owner {owner!r:.80} is no name: {problem}")
        runtime.dispatch.dead_letter_expired(queue)
        if not runtime.queries.backlog([queue], runtime.registry.keys, 1):
            return []  # nothing is due, or the queue is paused
        leases: list[Lease] = []
        # The first ones in claim order; many only if those are delivered to other workers already.
        for offered in (limit, max(limit, OFFERED_AT_ONCE)):
            if len(leases) < limit:
                self.offer(queue, offered)
                self._claim_into(leases, queue, owner, limit, lease)
        return leases

    def _claim_into(self, leases: list[Lease], queue: str, owner: str, limit: int, lease: timedelta) -> None:
        while len(leases) < limit:
            deliveries = self._queue.claim(queue, owner, limit - len(leases), lease)
            if not deliveries:
                return
            for delivery in deliveries:
                try:
                    claimed = self._claim(delivery, owner, lease)
                except StorageUnavailable:
                    if not leases:  # claimed work must be returned to the caller; the rest is delivered again
                        raise
                    return
                leases += [claimed] if claimed is not None else []

    def _claim(self, delivery: Delivery, owner: str, lease: timedelta) -> Lease | None:
        intent = delivery.intent
        try:
            claim = claim_item(self._runtime, intent.run_id, intent.item_id, owner, lease)
        except (InvalidThread, InvalidFact, NotFound, StorageRefused) as error:  # about this item alone
            claim = Refused(f"{intent.item_id!r} cannot be claimed: {error}")
        if isinstance(claim, Claim):
            return Lease(intent.queue, owner, claim.lease_until, claim, delivery)
        logger.info("a delivery is not worked on: %s", claim.why)
        self._let_go(delivery, claim)
        return None

    def _let_go(self, delivery: Delivery, refused: Refused) -> None:
        why = redacted_text(refused.why)  # the host's queue may store it anywhere
        with _errors_logged(delivery):
            if refused.done:
                self._queue.complete(delivery)
            elif refused.again_at is None:
                self._queue.fail(delivery, why, None)
            else:
                wait = max(refused.again_at - self._runtime.now(), timedelta(0))
                self._queue.fail(delivery, why, wait)

    def heartbeat(self, lease: Lease, *, extend: timedelta = DEFAULT_LEASE) -> Lease:
        """Extend the journal's claim, then the delivery, as the contract says."""
        delivery = _delivery(lease)
        longer = extended(self._runtime, lease, extend)
        with _errors_logged(delivery):
            self._queue.heartbeat(delivery, extend)
        return longer

    def complete(self, lease: Lease, result: Any = None) -> None:
        """Settle in the journal, then on the queue, as the contract says."""
        self._settle(lease, _delivery(lease), Completed(result))
        self.settled(lease)

    def fail(self, lease: Lease, error: Unfinished | dict[str, Any] | str) -> LeaseOutcome:
        """Settle in the journal, then put it back on the queue or bury it, as the contract says."""
        delivery, outcome = _delivery(lease), failed(self._runtime, lease, error)
        self._settle(lease, delivery, outcome)
        after = comes_back(outcome)
        with _errors_logged(delivery):
            self._queue.fail(delivery, _reason(outcome), after)
        return LeaseOutcome.DEAD_LETTERED if after is None else LeaseOutcome.REQUEUED

    def settled(self, lease: Lease) -> None:
        """Complete the delivery on the queue."""
        delivery = _delivery(lease)
        with _errors_logged(delivery):
            self._queue.complete(delivery)

    def _settle(self, lease: Lease, delivery: Delivery, outcome: Outcome) -> None:
        try:
            settle_lease(self._runtime, lease, outcome)
        except StorageUnavailable:
            raise  # neither settled nor refused: its holder tries again
        except SquidError as error:
            over = Refused(str(error), None if is_over(error) else self._runtime.now())
            self._let_go(delivery, over)
            raise


@contextmanager
def _errors_logged(delivery: Delivery) -> Iterator[None]:
    """Log errors of the queue: the item is then delivered once more, and the journal decides about it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  the host's own code; the outcome is in the journal
        logger.warning("the queue failed on %s: %s: %s", delivery.intent.item_id, type(error).__name__, error)


def _delivery(lease: Lease) -> Delivery:
    """Return the delivery behind a lease; raise `InvalidArgument` for a lease of another backend."""
    if not isinstance(lease.ref, Delivery):
        raise InvalidArgument(
            f"the lease on {lease.attempt.runnable_key!r} was not claimed through a queue: give it to the backend "
            "that it came from"
        )
    return lease.ref


def _reason(outcome: Unfinished) -> str:
    why = outcome.reason if isinstance(outcome, Deferred | Interrupted) else outcome.error.get("message")
    return str(why or type(outcome).__name__.lower())
