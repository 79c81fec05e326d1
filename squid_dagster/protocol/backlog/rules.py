"""What a fact may do to a card: one table of rules, for commands before they write, and for the fold."""

import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from squid_dagster.protocol.backlog.card import Card, CardStatus, find_path
from squid_dagster.protocol.facts.backlog import (
    CardBlocked,
    CardClaimed,
    CardCompleted,
    CardCreated,
    CardDeadLettered,
    CardFactType,
    CardFailed,
    CardLinked,
    CardReleased,
    CardRenewed,
    CardUnblocked,
    FencedCardFact,
)


class CardReason(StrEnum):
    """Why a fact about a card is not followed."""

    MALFORMED_ENTRY = "malformed_entry"
    UNKNOWN_FACT_TYPE = "unknown_fact_type"
    OUT_OF_ORDER = "out_of_order"
    UNKNOWN_CARD = "unknown_card"
    UNKNOWN_DEPENDENCY = "unknown_dependency"
    CONFLICTING_CARD = "conflicting_card"
    CONFLICTING_KEY = "conflicting_key"
    CYCLE = "cycle"
    UNFIT_STATUS = "unfit_status"
    OPEN_DEPENDENCY = "open_dependency"
    NOT_DUE = "not_due"
    WRONG_ATTEMPT = "wrong_attempt"
    STALE_CLAIM = "stale_claim"
    EXPIRED_CLAIM = "expired_claim"
    NOT_EXPIRED = "not_expired"
    ATTEMPTS_LEFT = "attempts_left"


class Cards(Protocol):
    """The cards that rules read: all of them, or those that a command has loaded."""

    @property
    def cards(self) -> Mapping[str, Card]:
        """Cards by id."""

    @property
    def keys(self) -> Mapping[str, str]:
        """Ids of cards by idempotency key."""

    @property
    def edges(self) -> Mapping[str, Sequence[str]]:
        """What cards depend on, by id; also of cards that are not loaded, if a cycle could go through them."""


def judge(at_hand: Cards, fact: CardFactType) -> CardReason | None:
    """Return why a fact is refused, None if it is accepted."""
    if isinstance(fact, CardCreated):
        return _judge_creation(at_hand, fact)
    card = at_hand.cards.get(fact.card_id)
    if card is None:
        return CardReason.UNKNOWN_CARD
    if fact.occurred_at < card.updated_at:
        return CardReason.OUT_OF_ORDER
    if isinstance(fact, CardLinked):
        return _judge_link(at_hand, card, fact)
    if isinstance(fact, FencedCardFact) and (reason := fence_problem(card, fact.claim_token_hash, fact.occurred_at)):
        return reason
    return _RULES[type(fact)](card, fact)


def fence_problem(card: Card, token_hash: str | None, at: datetime) -> CardReason | None:
    """Return why a token may not act on a card at that time; None if it may, or if there is no token to check."""
    if token_hash is None:
        return None
    if card.status is not CardStatus.CLAIMED or not hmac.compare_digest(card.claim_token_hash or "", token_hash):
        return CardReason.STALE_CLAIM
    return CardReason.EXPIRED_CLAIM if card.expired(at) else None


def _judge_creation(at_hand: Cards, fact: CardCreated) -> CardReason | None:
    if fact.card_id in at_hand.cards:
        return CardReason.CONFLICTING_CARD
    if fact.idempotency_key is not None and fact.idempotency_key in at_hand.keys:
        return CardReason.CONFLICTING_KEY
    known = all(dependency in at_hand.cards for dependency in fact.depends_on)
    return None if known else CardReason.UNKNOWN_DEPENDENCY


def _judge_link(at_hand: Cards, card: Card, fact: CardLinked) -> CardReason | None:
    if fact.depends_on not in at_hand.cards:
        return CardReason.UNKNOWN_DEPENDENCY
    if card.status is CardStatus.DONE or fact.depends_on in card.depends_on:
        return CardReason.UNFIT_STATUS
    return CardReason.CYCLE if find_path(at_hand.edges, fact.depends_on, card.id) else None


def _claim(card: Card, fact: Any) -> CardReason | None:
    if card.status is not CardStatus.READY:
        return CardReason.UNFIT_STATUS
    if card.open_dependencies:
        return CardReason.OPEN_DEPENDENCY
    if card.queued_at > fact.occurred_at:
        return CardReason.NOT_DUE
    return None if fact.attempt == card.attempts + 1 else CardReason.WRONG_ATTEMPT


def _renewal(card: Card, fact: Any) -> CardReason | None:
    if card.status is not CardStatus.CLAIMED:
        return CardReason.UNFIT_STATUS
    return CardReason.EXPIRED_CLAIM if card.expired(fact.occurred_at) else None


def _release(card: Card, fact: Any) -> CardReason | None:
    if fact.cause == "forced":
        return _among(card, CardStatus.CLAIMED, CardStatus.BLOCKED, CardStatus.DEAD_LETTERED)
    if card.status is not CardStatus.CLAIMED:
        return CardReason.UNFIT_STATUS
    return None if card.expired(fact.occurred_at) else CardReason.NOT_EXPIRED


def _dead_letter(card: Card, fact: Any) -> CardReason | None:
    if card.status is not CardStatus.CLAIMED:
        return CardReason.UNFIT_STATUS
    if fact.attempts != card.attempts:
        return CardReason.WRONG_ATTEMPT
    return None if card.spent() or fact.cause == "given_up" else CardReason.ATTEMPTS_LEFT


def _among(card: Card, *statuses: CardStatus) -> CardReason | None:
    return None if card.status in statuses else CardReason.UNFIT_STATUS


_RULES: dict[type, Callable[[Card, Any], CardReason | None]] = {
    CardClaimed: _claim,
    CardRenewed: _renewal,
    CardReleased: _release,
    CardBlocked: lambda card, _: _among(card, CardStatus.READY, CardStatus.CLAIMED),
    CardUnblocked: lambda card, _: _among(card, CardStatus.BLOCKED),
    CardCompleted: lambda card, _: None if card.status is not CardStatus.DONE else CardReason.UNFIT_STATUS,
    CardFailed: lambda card, _: _among(card, CardStatus.CLAIMED),
    CardDeadLettered: _dead_letter,
}


def _freed(card: Card, status: CardStatus, at: datetime, **changes: Any) -> Card:
    """Return the card without its claim, with other changes."""
    unclaimed = dict.fromkeys(("claim_owner", "claim_ttl_seconds", "claimed_at", "claim_token_hash"))
    return replace(card, status=status, updated_at=at, **{**unclaimed, **changes})


def follow(card: Card, fact: CardFactType) -> Card:
    """Return the card after a fact that the rules accept; the projection itself folds creations and links."""
    at = fact.occurred_at
    match fact:
        case CardClaimed():
            return replace(
                card,
                status=CardStatus.CLAIMED,
                claim_owner=fact.claim_owner,
                claim_ttl_seconds=fact.claim_ttl_seconds,
                claimed_at=at,
                claim_token_hash=fact.claim_token_hash,
                attempts=fact.attempt,
                updated_at=at,
            )
        case CardRenewed():
            ttl_seconds = max(fact.claim_ttl_seconds, card.claim_ttl_seconds or 0)  # never shortens
            return replace(card, claim_ttl_seconds=ttl_seconds, updated_at=at)
        case CardReleased() | CardUnblocked():
            return _freed(card, CardStatus.READY, at)
        case CardBlocked():
            return _freed(card, CardStatus.BLOCKED, at)
        case CardCompleted():
            # The token's hash stays, so that a repeat by the same holder is recognized.
            return _freed(card, CardStatus.DONE, at, claim_token_hash=fact.claim_token_hash, error=None)
        case CardFailed():
            return _freed(card, CardStatus.READY, at, error=fact.error, not_before=fact.not_before)
        case CardDeadLettered():
            return _freed(card, CardStatus.DEAD_LETTERED, at, error=fact.error or card.error)
        case _:
            raise AssertionError(f"{fact.type} is no change of one card")
