"""A host's queue in a list."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from squid_dagster import Delivery, Intent, LeaseOutcome


class ListQueue:
    """A host's queue in a dictionary: intents, with the time from which each may be claimed."""

    def __init__(self, now: Callable[[], Any]) -> None:
        """Create an empty queue with that clock."""
        self._now, self._lock = now, threading.Lock()
        self.items: dict[str, tuple[Intent, Any]] = {}
        self.buried: dict[str, str] = {}

    def offer(self, intent: Intent) -> None:
        """Add an intent, once."""
        with self._lock:
            self.buried.pop(intent.item_id, None)
            self.items.setdefault(intent.item_id, (intent, self._now()))

    def claim(self, queue: str, owner: str, limit: int, lease: timedelta) -> list[Delivery]:
        """Return what is due."""
        del owner
        with self._lock:
            due = [one for one, at in self.items.values() if at <= self._now() and one.queue == queue]
            chosen = sorted(due, key=lambda one: (-one.priority, one.visible_at))[:limit]
            for one in chosen:
                self.items[one.item_id] = (one, self._now() + lease)
        return [Delivery(one) for one in chosen]

    def heartbeat(self, delivery: Delivery, lease: timedelta) -> None:
        """Extend its lease."""
        self.items[delivery.intent.item_id] = (delivery.intent, self._now() + lease)

    def complete(self, delivery: Delivery) -> None:
        """Remove it."""
        self.items.pop(delivery.intent.item_id, None)

    def fail(self, delivery: Delivery, why: str, retry_after: timedelta | None) -> LeaseOutcome:
        """Keep it for later, or bury it."""
        if retry_after is None:
            self.complete(delivery)
            self.buried[delivery.intent.item_id] = why
            return LeaseOutcome.DEAD_LETTERED
        self.items[delivery.intent.item_id] = (delivery.intent, self._now() + retry_after)
        return LeaseOutcome.REQUEUED
