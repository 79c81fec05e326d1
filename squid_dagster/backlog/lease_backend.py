"""The backlog as a lease backend: each runnable intent is a card, whose phase names the queue."""

import hashlib
import math
from contextlib import suppress
from datetime import timedelta

from pydantic import TypeAdapter, ValidationError

from squid_dagster.backlog.backlog import Backlog
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.backlog.card import Card, CardStatus
from squid_dagster.protocol.errors import ExpiredClaim, InvalidTransition, StaleClaim, explain
from squid_dagster.runtime.leases.host_queue import Delivery, Intent, QueueLeases
from squid_dagster.runtime.leases.lease_backend import LeaseOutcome
from squid_dagster.runtime.runtime import Runtime

logger = redacting_logger(__name__)

_INTENT = TypeAdapter(Intent)  # unknown fields are ignored: newer workers may write some


class BacklogQueue:
    """`HostQueue` on a backlog. Other cards may be there too, such as those of people: they have other phases.

    A card of a queue's phase that holds no intent is blocked, with a reason, by the worker that claims it.
    """

    def __init__(self, backlog: Backlog) -> None:
        """Bind to a backlog, of the journal's own storage or of another one."""
        self._backlog = backlog

    def offer(self, intent: Intent) -> None:
        """Create the card of an intent, unless it exists; a dead-lettered card is freed."""
        card = self._backlog.create(
            card_id(intent.item_id),
            f"{intent.step}: {intent.item_id}"[:1000],
            body=_INTENT.dump_json(intent).decode(),
            phase=phase(intent.queue),
            priority=intent.priority,
            idempotency_key=card_id(intent.item_id),
        )
        if card.status is CardStatus.DEAD_LETTERED:
            with suppress(InvalidTransition):  # another worker freed and completed it meanwhile
                self._backlog.reclaim(card.id)

    def claim(self, queue: str, owner: str, limit: int, lease: timedelta) -> list[Delivery]:
        """Claim cards of the queue's phase."""
        deliveries: list[Delivery] = []
        while len(deliveries) < limit:
            card = self._backlog.claim(owner, ttl=_whole(lease), phase=phase(queue))
            if card is None:
                break
            intent = self._read(card)
            if intent is not None:
                deliveries.append(Delivery(intent, card))
        return deliveries

    def _read(self, card: Card) -> Intent | None:
        """Return the intent on a claimed card; block the card and return None if it holds no intent."""
        try:
            return _INTENT.validate_json(card.body or "{}")
        except ValidationError as error:
            reason = f"no intent that may be worked on: {explain(error)}"
        logger.warning("card %s of phase %s is blocked: %s", card.id, card.phase, reason)
        with suppress(StaleClaim, ExpiredClaim):  # another worker has claimed it by now, and blocks it, too
            self._backlog.block(card.id, reason=reason[:10_000], token=card.claim_token)
        return None

    def heartbeat(self, delivery: Delivery, lease: timedelta) -> None:
        """Renew the claim on the card."""
        card = _card(delivery)
        self._backlog.renew(card.id, ttl=_whole(lease), token=card.claim_token)

    def complete(self, delivery: Delivery) -> None:
        """Set the card to done."""
        card = _card(delivery)
        self._backlog.complete(card.id, token=card.claim_token)

    def fail(self, delivery: Delivery, why: str, retry_after: timedelta | None) -> LeaseOutcome:
        """Release the card after a failure, or dead-letter it."""
        card = _card(delivery)
        left = self._backlog.fail(card.id, error=why, retry_after=retry_after, token=card.claim_token)
        dead = left.status is CardStatus.DEAD_LETTERED
        return LeaseOutcome.DEAD_LETTERED if dead else LeaseOutcome.REQUEUED


@checks_arguments
class BacklogLeases(QueueLeases):
    """`LeaseBackend` of a backlog: the reference for authors of other lease backends."""

    def __init__(self, runtime: Runtime, backlog: Backlog) -> None:
        """Bind to a runtime (`squid.runtime`) and a backlog (`squid.backlog`, or another one)."""
        super().__init__(runtime, BacklogQueue(backlog))


def card_id(item_id: str) -> str:
    """Return the id of an item's card; an item's id may be longer than a card's, and hold other characters."""
    return f"lease:{hashlib.blake2b(item_id.encode(), digest_size=16).hexdigest()}"


def phase(queue: str) -> str:
    """Return the phase of a queue's cards."""
    return f"queue:{queue}"


def _card(delivery: Delivery) -> Card:
    assert isinstance(delivery.ref, Card)  # noqa: S101  a delivery returns to the queue that created it
    return delivery.ref


def _whole(lease: timedelta) -> timedelta:
    return timedelta(seconds=max(1, math.ceil(lease.total_seconds())))
