"""A card of the backlog: its state, and the questions that folds and commands ask of it alike."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pydantic import JsonValue

from squid_dagster.protocol.entries import digest
from squid_dagster.protocol.facts.backlog import CardCreated


class CardStatus(StrEnum):
    """Where a card stands."""

    READY = "ready"
    CLAIMED = "claimed"
    BLOCKED = "blocked"
    DONE = "done"
    DEAD_LETTERED = "dead_lettered"


@dataclass(frozen=True, slots=True)
class Card:
    """One card. Immutable; a rule gives a new one.

    `claim_token` is there only on the card that a claim gives, in that process's memory. `claim_ttl_seconds` counts
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
        """When the claim runs out; None while nobody holds the card."""
        if self.claimed_at is None or self.claim_ttl_seconds is None:
            return None
        return self.claimed_at + timedelta(seconds=self.claim_ttl_seconds)

    @property
    def queued_at(self) -> datetime:
        """Since when it waits its turn among cards of its priority: its creation, or a later `not_before`."""
        return self.created_at if self.not_before is None else max(self.created_at, self.not_before)

    def expired(self, at: datetime) -> bool:
        """Tell whether its claim has run out; at the very instant counts."""
        until = self.claim_expires_at
        return until is not None and until <= at

    def claimable(self, at: datetime) -> bool:
        """Tell whether a claim may take it: ready, due, and all that it depends on is done."""
        return self.status is CardStatus.READY and self.open_dependencies == 0 and self.queued_at <= at

    def spent(self) -> bool:
        """Tell whether it was claimed as often as it may be."""
        return self.max_attempts is not None and self.attempts >= self.max_attempts

    def to_dict(self) -> dict[str, Any]:
        """Give it as JSON values: the columns of a card, and nothing by which one could act for its holder."""
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
    """Sort key of claims: priority first, then who waits longest, then the id."""
    return (-card.priority, card.queued_at, card.id)


def content_digest(fact: CardCreated) -> str:
    """Give the digest of what was asked for when a card was created; to ask for the same again is no conflict."""
    not_before = fact.not_before.isoformat() if fact.not_before is not None else None
    asked = [fact.title, fact.body, fact.phase, fact.priority, sorted(fact.depends_on), fact.acceptance]
    return digest([*asked, fact.idempotency_key, not_before, fact.max_attempts])


def new_card(fact: CardCreated, open_dependencies: int) -> Card:
    """Give the card that a creation makes."""
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
    """Give the ids on a way from one card to another along what they depend on; None when there is none."""
    came_from: dict[str, str | None] = {start: None}
    waiting = [start]
    while waiting:
        here = waiting.pop()
        if here == goal:
            path: list[str] = []
            step: str | None = here
            while step is not None:
                path.append(step)
                step = came_from[step]
            return path[::-1]
        for there in edges.get(here, ()):
            if there not in came_from:
                came_from[there] = here
                waiting.append(there)
    return None
