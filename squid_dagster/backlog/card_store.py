"""The contract of a card store: what the backlog needs of a storage. One version by fold, one on Postgres."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from squid_dagster.protocol.backlog.card import Card, CardStatus
from squid_dagster.protocol.backlog.projection import BacklogProjection
from squid_dagster.protocol.backlog.rules import CardFactType
from squid_dagster.protocol.entries import Entry

# Gives the facts that a command writes about the cards at hand at that time; none: nothing to do. May raise to refuse,
# and may be asked again. Pure.
Decision = Callable[[BacklogProjection, datetime], Sequence[CardFactType]]


class CardSelection(NamedTuple):
    """What a command looks at: cards by id, the one of an idempotency key, and all that a card depends on in the end.

    `links` says that edges are about to change, so that nobody else changes any meanwhile; `frees`, that cards which
    wait for these may change with them.
    """

    ids: tuple[str, ...]
    key: str | None = None
    closure_of: str | None = None
    links: bool = False
    frees: bool = False


class ClaimRequest(NamedTuple):
    """Who wants a card for how long: the best one, of a phase if that is given, or the one of that id."""

    owner: str
    ttl_seconds: int
    token_hash: str
    card_id: str | None = None
    phase: str | None = None


class CardFilter(NamedTuple):
    """Which cards are listed."""

    status: CardStatus | None = None
    phase: str | None = None
    ready_only: bool = False
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """The backlog in numbers. Ages in seconds; None where there is no ready card."""

    counts: dict[str, int]
    claimable: int
    oldest_ready_age_seconds: float | None
    expired_claims: int

    def to_dict(self) -> dict[str, Any]:
        """Give them as JSON values."""
        return {
            "counts": self.counts,
            "total": sum(self.counts.values()),
            "claimable": self.claimable,
            "oldest_ready_age_seconds": self.oldest_ready_age_seconds,
            "expired_claims": self.expired_claims,
        }


@dataclass(frozen=True, slots=True)
class CardRebuild:
    """What a rebuild did: how many facts it folded into how many cards, and how many facts no rule lets through."""

    facts: int
    cards: int
    anomalies: int


class CardStore(Protocol):
    """Where cards are kept: always a view of the facts on the backlog's thread, changed in one commit with them."""

    def decide(self, wanted: CardSelection, decision: Decision) -> BacklogProjection:
        """Read what is wanted, write what `decision` makes of it, and give the cards as they are then.

        No fact about these cards comes in between.

        Raises:
            SquidError: whatever the decision raises; nothing is written then.
        """

    def claim(self, request: ClaimRequest) -> Card | None:
        """Claim one card: of those that are claimable the best, or the one that is named; None when there is none.

        Claims that ran out are released first, with facts. Never raises a conflict.

        Raises:
            NotFound: no card of that id.
        """

    def release_expired(self) -> list[Card]:
        """Release all claims that ran out; give these cards, ready or dead-lettered."""

    def find(self, card_id: str) -> Card | None:
        """Give a card, or None."""

    def select(self, wanted: CardFilter) -> list[Card]:
        """Give cards in the order of claims."""

    def stats(self) -> Stats:
        """Count."""

    def history(self, card_id: str) -> list[Entry]:
        """Give all facts about a card, in order."""

    def rebuild(self) -> CardRebuild:
        """Make the cards anew from the facts."""

    def differences(self) -> list[str]:
        """Say what differs between the cards and what the facts tell of them; nothing, if all is well."""
