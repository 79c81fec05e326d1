"""The contract of a card store: what the backlog needs of a storage. Implemented by fold, and on Postgres."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from squid_dagster.protocol.backlog.card import Card, CardStatus
from squid_dagster.protocol.backlog.projection import BacklogProjection
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.facts.backlog import CardFactType

# Returns the facts that a command writes about the loaded cards at that time; none: nothing to do. May raise to refuse,
# and may be called again. Pure.
Decision = Callable[[BacklogProjection, datetime], Sequence[CardFactType]]


class CardSelection(NamedTuple):
    """What a command loads: cards by id, the one of an idempotency key, and the transitive dependencies of a card.

    `links`: the command may change edges, so no other command changes any meanwhile. `frees`: cards that depend on
    these may change with them.
    """

    ids: tuple[str, ...]
    key: str | None = None
    closure_of: str | None = None
    links: bool = False
    frees: bool = False


class ClaimRequest(NamedTuple):
    """A claim of the first claimable card, of a phase if that is given, or of the card of that id."""

    owner: str
    ttl_seconds: int
    token_hash: str
    card_id: str | None = None
    phase: str | None = None


class CardFilter(NamedTuple):
    """Which cards to list."""

    status: CardStatus | None = None
    phase: str | None = None
    ready_only: bool = False
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """The backlog in numbers. The age is None if there is no ready card."""

    counts: dict[str, int]
    claimable: int
    oldest_ready_age_seconds: float | None
    expired_claims: int

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        return {
            "counts": self.counts,
            "total": sum(self.counts.values()),
            "claimable": self.claimable,
            "oldest_ready_age_seconds": self.oldest_ready_age_seconds,
            "expired_claims": self.expired_claims,
        }


@dataclass(frozen=True, slots=True)
class CardRebuild:
    """What a rebuild did: how many facts it folded to how many cards, and how many facts the rules refused."""

    facts: int
    cards: int
    anomalies: int


class CardStore(Protocol):
    """The cards: a fold of the facts on the backlog's thread, changed in one commit with them."""

    def decide(self, selection: CardSelection, decision: Decision) -> BacklogProjection:
        """Read a selection, write the facts that `decision` returns for it, and return the cards after that.

        No other fact about these cards comes in between.

        Raises:
            SquidError: whatever the decision raises; nothing is written then.
        """

    def claim(self, request: ClaimRequest) -> Card | None:
        """Claim the first claimable card, or the named one; return None if there is none.

        Claims that ran out are released first, with facts. Never raises a conflict.

        Raises:
            NotFound: no card of that id.
        """

    def release_expired(self) -> list[Card]:
        """Release all claims that ran out; return these cards, ready or dead-lettered."""

    def find(self, card_id: str) -> Card | None:
        """Return a card, or None."""

    def select(self, wanted: CardFilter) -> list[Card]:
        """Return cards in claim order."""

    def stats(self) -> Stats:
        """Count cards by status, claimable cards and expired claims."""

    def history(self, card_id: str) -> list[Entry]:
        """Return all facts about a card, in order."""

    def rebuild(self) -> CardRebuild:
        """Rebuild the cards from the facts."""

    def differences(self) -> list[str]:
        """Return the differences between the cards and a fold of their facts."""
