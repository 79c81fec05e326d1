"""A card of the backlog: its state, and the predicates that folds and commands share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pydantic import JsonValue

from squid_dagster.protocol.entries import digest
from squid_dagster.protocol.facts.backlog import CardCreated


class CardStatus(StrEnum):
    """The status of a card."""

    READY = "ready"
    CLAIMED = "claimed"
    BLOCKED = "blocked"
    DONE = "done"
    DEAD_LETTERED = "dead_lettered"


@dataclass(frozen=True, slots=True)
class Card:
    """One card. Immutable; a rule returns a new one.

    `claim_token` is set only on the card that a claim returns, in that process's memory. `claim_ttl_seconds` counts
    from `claimed_at`, and so grows when the claim is renewed.
    """

    id: str
    title: str
    body: str | None
    phase: str | None
    priority: int
    status: CardStatus
    depends_on: tuple[str, ...]
    claim_owner: str | None
    claim_ttl_seconds: int | None
    claimed_at: datetime | None
    attempts: int
    idempotency_key: str | None
    acceptance: JsonValue
    created_at: datetime
    updated_at: datetime
    not_before: datetime | None
    max_attempts: int | None
    error: dict[str, Any] | None
    open_dependencies: int
    content_digest: str = field(repr=False)
    claim_token_hash: str | None = field(default=None, repr=False)
    claim_token: str | None = field(default=None, repr=False, compare=False)

    @property
    def claim_expires_at(self) -> datetime | None:
        """When the claim runs out; None while the card is not claimed."""
        if self.claimed_at is None or self.claim_ttl_seconds is None:
            return None
        return self.claimed_at + timedelta(seconds=self.claim_ttl_seconds)

    @property
    def queued_at(self) -> datetime:
        """Since when it waits among cards of its priority: its creation, or a later `not_before`."""
        return self.created_at if self.not_before is None else max(self.created_at, self.not_before)

    def expired(self, at: datetime) -> bool:
        """Return whether its claim has run out at that time, inclusively."""
        until = self.claim_expires_at
        return until is not None and until <= at

    def claimable(self, at: datetime) -> bool:
        """Return whether a claim may take it: it is ready and due, and all that it depends on is done."""
        return self.status is CardStatus.READY and self.open_dependencies == 0 and self.queued_at <= at

    def spent(self) -> bool:
        """Return whether it was claimed as often as it may be."""
        return self.max_attempts is not None and self.attempts >= self.max_attempts

    def to_dict(self) -> dict[str, Any]:
        """Return its columns as JSON values, without the token and its hash."""
        return {
            "id": self.id,
            "title": self.title,
            "body": self.body,
            "phase": self.phase,
            "priority": self.priority,
            "status": self.status.value,
            "depends_on": list(self.depends_on),
            "claim_owner": self.claim_owner,
            "claim_ttl_seconds": self.claim_ttl_seconds,
            "claimed_at": _text(self.claimed_at),
            "attempts": self.attempts,
            "idempotency_key": self.idempotency_key,
            "acceptance": self.acceptance,
            "created_at": _text(self.created_at),
            "updated_at": _text(self.updated_at),
            "claim_expires_at": _text(self.claim_expires_at),
            "not_before": _text(self.not_before),
            "max_attempts": self.max_attempts,
            "open_dependencies": self.open_dependencies,
            "error": self.error,
        }


def _text(value: datetime | None) -> str | None:
    return value.isoformat() if value is not None else None


def claim_order(card: Card) -> tuple[int, datetime, str]:
    """Return the sort key of claims: priority first, then the longest wait, then the id."""
    return (-card.priority, card.queued_at, card.id)


def content_digest(fact: CardCreated) -> str:
    """Return the digest of a creation's content: to create a card with the same content again is no conflict."""
    not_before = _text(fact.not_before)
    content = [fact.title, fact.body, fact.phase, fact.priority, sorted(fact.depends_on), fact.acceptance]
    return digest([*content, fact.idempotency_key, not_before, fact.max_attempts])


def new_card(fact: CardCreated, open_dependencies: int) -> Card:
    """Return the card that a fact creates."""
    return Card(
        id=fact.card_id,
        title=fact.title,
        body=fact.body,
        phase=fact.phase,
        priority=fact.priority,
        status=CardStatus.READY,
        depends_on=tuple(fact.depends_on),
        claim_owner=None,
        claim_ttl_seconds=None,
        claimed_at=None,
        attempts=0,
        idempotency_key=fact.idempotency_key,
        acceptance=fact.acceptance,
        created_at=fact.occurred_at,
        updated_at=fact.occurred_at,
        not_before=fact.not_before,
        max_attempts=fact.max_attempts,
        error=None,
        open_dependencies=open_dependencies,
        content_digest=content_digest(fact),
    )


def find_path(edges: Mapping[str, Sequence[str]], start: str, goal: str) -> list[str] | None:
    """Return the ids on a path of dependencies from one card to another; None if there is none."""
    predecessors: dict[str, str | None] = {start: None}
    stack = [start]
    while stack:
        card_id = stack.pop()
        if card_id == goal:
            path: list[str] = []
            step: str | None = card_id
            while step is not None:
                path.append(step)
                step = predecessors[step]
            return path[::-1]
        for dependency in edges.get(card_id, ()):
            if dependency not in predecessors:
                predecessors[dependency] = card_id
                stack.append(dependency)
    return None
