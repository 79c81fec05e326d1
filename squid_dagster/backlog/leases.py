"""The backlog as a lease backend: a runnable intent is a card, its phase the queue."""

import hashlib
import json
import math
from datetime import datetime, timedelta

from squid_dagster.backlog.backlog import Backlog
from squid_dagster.protocol.backlog_cards import Card, CardStatus
from squid_dagster.runtime.core import Runtime
from squid_dagster.runtime.leases import LeaseOutcome
from squid_dagster.runtime.leases_queue import Delivery, Intent, QueueLeases


class BacklogQueue:
    """`HostQueue` on a backlog. Cards that people work on may be there too: theirs have other phases."""

    def __init__(self, backlog: Backlog) -> None:
        """Bind to a backlog, of the journal's own storage or of another one."""
        self._backlog = backlog

    def offer(self, intent: Intent) -> None:
        """Make a card of an intent, unless it is there; a dead letter that is wanted again is freed."""
        card = self._backlog.create(
            card_id(intent.item_id),
            f"{intent.step}: {intent.item_id}"[:1000],
            body=json.dumps({**_fields(intent), "visible_at": intent.visible_at.isoformat()}),
            phase=phase(intent.queue),
            priority=intent.priority,
            idempotency_key=card_id(intent.item_id),
        )
        if card.status is CardStatus.DEAD_LETTERED:
            self._backlog.reclaim(card.id)

    def claim(self, queue: str, owner: str, limit: int, lease: timedelta) -> list[Delivery]:
        """Claim cards of the queue's phase."""
        found: list[Delivery] = []
        while len(found) < limit:
            card = self._backlog.claim(owner, ttl=_whole(lease), phase=phase(queue))
            if card is None:
                break
            found.append(Delivery(_intent(card), card))
        return found

    def heartbeat(self, delivery: Delivery, lease: timedelta) -> None:
        """Renew the claim on the card."""
        card = _card(delivery)
        self._backlog.renew(card.id, ttl=_whole(lease), token=card.claim_token)

    def complete(self, delivery: Delivery) -> None:
        """Set the card to done."""
        card = _card(delivery)
        self._backlog.complete(card.id, token=card.claim_token)

    def fail(self, delivery: Delivery, why: str, retry_after: timedelta | None) -> LeaseOutcome:
        """Give the card back, or make it a dead letter."""
        card = _card(delivery)
        left = self._backlog.fail(card.id, error=why, retry_after=retry_after, token=card.claim_token)
        dead = left.status is CardStatus.DEAD_LETTERED
        return LeaseOutcome.DEAD_LETTERED if dead else LeaseOutcome.REQUEUED


class BacklogLeases(QueueLeases):
    """`LeaseBackend` of a backlog: the reference for whoever brings a queue of his own."""

    def __init__(self, runtime: Runtime, backlog: Backlog) -> None:
        """Bind to a runtime (`squid.runtime`) and a backlog (`squid.backlog`, or one of its own)."""
        super().__init__(runtime, BacklogQueue(backlog))


def card_id(item_id: str) -> str:
    """Give the id of the card of an item, whose own id may be longer than a card's, and of other letters."""
    return f"lease:{hashlib.blake2b(item_id.encode(), digest_size=16).hexdigest()}"


def phase(queue: str) -> str:
    """Give the phase of a queue's cards."""
    return f"queue:{queue}"


def _fields(intent: Intent) -> dict[str, object]:
    return {
        "item_id": intent.item_id,
        "run_id": intent.run_id,
        "queue": intent.queue,
        "step": intent.step,
        "priority": intent.priority,
    }


def _intent(card: Card) -> Intent:
    told = json.loads(card.body or "{}")
    return Intent(**{**told, "visible_at": datetime.fromisoformat(told["visible_at"])})


def _card(delivery: Delivery) -> Card:
    assert isinstance(delivery.ref, Card)  # noqa: S101  a delivery goes back to where it came from
    return delivery.ref


def _whole(lease: timedelta) -> timedelta:
    return timedelta(seconds=max(1, math.ceil(lease.total_seconds())))
