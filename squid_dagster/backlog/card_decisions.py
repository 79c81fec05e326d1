"""The facts that commands on cards write: pure functions from loaded cards and a time to facts, or to an error."""

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from squid_dagster.backlog.card_store import Decision
from squid_dagster.protocol.backlog.card import Card, CardStatus, content_digest, find_path
from squid_dagster.protocol.backlog.projection import BacklogProjection
from squid_dagster.protocol.backlog.rules import CardReason, judge
from squid_dagster.protocol.errors import (
    ConflictingCommand,
    ExpiredClaim,
    InvalidArgument,
    InvalidTransition,
    NotFound,
    SquidError,
    StaleClaim,
)
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
)


def create(draft: CardCreated) -> Decision:
    """Create a card, unless it exists: an existing one becomes ready if it was blocked.

    The decision raises:
        ConflictingCommand: the id belongs to a card with another content.
        NotFound: it depends on a card that does not exist.
    """

    def decision(at_hand: BacklogProjection, now: datetime) -> list[CardFactType]:
        known = known_card(at_hand, draft)
        if known is None:
            missing = [dependency for dependency in draft.depends_on if dependency not in at_hand.cards]
            if missing:
                raise NotFound(
                    f"card {draft.card_id!r} cannot depend on {missing[0]!r}, which does not exist: create it"
                )
            return [_allowed(at_hand, draft.model_copy(update={"occurred_at": now}))]
        if known.idempotency_key is None or known.idempotency_key != draft.idempotency_key:
            _check_same(known, draft)
        if known.status is not CardStatus.BLOCKED:
            return []
        return [CardUnblocked(card_id=known.id, cause="created_again", occurred_at=_at(known, now))]

    return decision


def known_card(at_hand: BacklogProjection, draft: CardCreated) -> Card | None:
    """Return the card that a creation is a repeat of: the one of its key, else the one of its id."""
    keyed = at_hand.keys.get(draft.idempotency_key) if draft.idempotency_key is not None else None
    return at_hand.cards.get(keyed or draft.card_id)


def _check_same(known: Card, draft: CardCreated) -> None:
    if known.content_digest == content_digest(draft):
        return
    names = ("title", "body", "phase", "priority", "acceptance", "idempotency_key", "not_before", "max_attempts")
    other = [name for name in names if getattr(known, name) != getattr(draft, name)]
    differs = ", ".join(other or ["depends_on"])
    raise ConflictingCommand(f"card {known.id!r} exists with another {differs}: choose another id, or use that card")


def link(card_id: str, depends_on: str) -> Decision:
    """Link a card to another one that it depends on.

    The decision raises:
        NotFound: one of them does not exist.
        InvalidArgument: both are the same.
        InvalidTransition: it would close a cycle, or the card is done.
    """

    def decision(at_hand: BacklogProjection, now: datetime) -> list[CardFactType]:
        if card_id == depends_on:
            raise InvalidArgument(f"card {card_id!r} cannot depend on itself: name another card")
        card, other = _card(at_hand, card_id), _card(at_hand, depends_on)
        if other.id in card.depends_on:
            return []
        if card.status is CardStatus.DONE:
            raise InvalidTransition(f"card {card_id!r} is done: what it depends on changes nothing any more")
        path = find_path(at_hand.edges, other.id, card.id)
        if path is not None:
            cycle = " -> ".join([card.id, *path])
            raise InvalidTransition(f"card {card_id!r} cannot depend on {depends_on!r}: that closes the cycle {cycle}")
        return [_allowed(at_hand, CardLinked(card_id=card_id, depends_on=depends_on, occurred_at=_at(card, now)))]

    return decision


def complete(card_id: str, token_hash: str | None) -> Decision:
    """Set a card to done; repeating it is no error. The decision raises `NotFound`, `StaleClaim`, `ExpiredClaim`."""

    def decision(at_hand: BacklogProjection, now: datetime) -> list[CardFactType]:
        card = _card(at_hand, card_id)
        if card.status is CardStatus.DONE and token_hash in (None, card.claim_token_hash):
            return []
        return [_allowed(at_hand, CardCompleted(**_fenced(card, token_hash, now)))]

    return decision


def renew(card_id: str, token_hash: str | None, ttl: timedelta) -> Decision:
    """Extend a claim to at least `ttl` from now.

    The decision raises `NotFound`, `StaleClaim`, `ExpiredClaim`, or `InvalidTransition` when the card is not claimed.
    """

    def decision(at_hand: BacklogProjection, now: datetime) -> list[CardFactType]:
        card = _card(at_hand, card_id)
        fence = _fenced(card, token_hash, now)
        held = fence["occurred_at"] - card.claimed_at if card.claimed_at is not None else timedelta(0)
        seconds = math.ceil((held + ttl).total_seconds())
        return [_allowed(at_hand, CardRenewed(**fence, claim_ttl_seconds=max(seconds, card.claim_ttl_seconds or 1)))]

    return decision


def fail(card_id: str, token_hash: str | None, error: dict[str, Any] | None, retry_after: timedelta | None) -> Decision:
    """Release a claimed card after a failure; or dead-letter it, if it may not be tried again.

    The decision raises `NotFound`, `StaleClaim`, `ExpiredClaim`, or `InvalidTransition` when the card is not claimed.
    """

    def decision(at_hand: BacklogProjection, now: datetime) -> list[CardFactType]:
        card = _card(at_hand, card_id)
        fence = _fenced(card, token_hash, now)
        fact: CardFactType
        if card.status is CardStatus.CLAIMED and card.spent():
            fact = CardDeadLettered(**fence, cause="spent", attempts=card.attempts, error=error)
        elif card.status is CardStatus.CLAIMED and retry_after is None:
            fact = CardDeadLettered(**fence, cause="given_up", attempts=card.attempts, error=error)
        else:
            not_before = fence["occurred_at"] + retry_after if retry_after else None
            fact = CardFailed(**fence, error=error, not_before=not_before)
        return [_allowed(at_hand, fact)]

    return decision


def block(card_id: str, token_hash: str | None, reason: str | None) -> Decision:
    """Block a card, and end its claim; repeating it is no error.

    The decision raises `NotFound`, `StaleClaim`, `ExpiredClaim`, or `InvalidTransition` when it is done or dead.
    """

    def decision(at_hand: BacklogProjection, now: datetime) -> list[CardFactType]:
        card = _card(at_hand, card_id)
        if card.status is CardStatus.BLOCKED and token_hash is None:
            return []
        return [_allowed(at_hand, CardBlocked(**_fenced(card, token_hash, now), reason=reason))]

    return decision


def unblock(card_id: str) -> Decision:
    """Set a blocked card to ready; a ready one stays so. The decision raises `NotFound` or `InvalidTransition`."""

    def decision(at_hand: BacklogProjection, now: datetime) -> list[CardFactType]:
        card = _card(at_hand, card_id)
        if card.status is CardStatus.READY:
            return []
        return [_allowed(at_hand, CardUnblocked(card_id=card_id, cause="unblocked", occurred_at=_at(card, now)))]

    return decision


def reclaim(card_id: str) -> Decision:
    """Free a claimed, blocked or dead card, whether its claim ran out or not; a ready one stays so.

    The decision raises `NotFound`, or `InvalidTransition` when it is done.
    """

    def decision(at_hand: BacklogProjection, now: datetime) -> list[CardFactType]:
        card = _card(at_hand, card_id)
        if card.status is CardStatus.READY:
            return []
        return [_allowed(at_hand, CardReleased(card_id=card_id, cause="forced", occurred_at=_at(card, now)))]

    return decision


def expiry(card: Card, now: datetime) -> CardFactType:
    """Return the fact about a claim that ran out: the card is ready again, or dead if it has no attempt left."""
    at = _at(card, now)
    if card.spent():
        fence: dict[str, Any] = {"card_id": card.id, "fence": "unfenced", "occurred_at": at}
        return CardDeadLettered(**fence, cause="spent", attempts=card.attempts)
    return CardReleased(card_id=card.id, cause="expired", occurred_at=at)


def claim(card: Card, owner: str, ttl_seconds: int, token_hash: str, now: datetime) -> CardClaimed:
    """Return the fact of a claim."""
    return CardClaimed(
        card_id=card.id,
        claim_owner=owner,
        claim_ttl_seconds=ttl_seconds,
        claim_token_hash=token_hash,
        attempt=card.attempts + 1,
        occurred_at=_at(card, now),
    )


def _card(at_hand: BacklogProjection, card_id: str) -> Card:
    card = at_hand.cards.get(card_id)
    if card is None:
        raise no_card(card_id)
    return card


def no_card(card_id: str) -> NotFound:
    """Return the error for a card that does not exist."""
    return NotFound(f"there is no card {card_id!r}: list cards to find its id")


def _at(card: Card, now: datetime) -> datetime:
    return max(now, card.updated_at)


def _fenced(card: Card, token_hash: str | None, now: datetime) -> dict[str, Any]:
    fence = "unfenced" if token_hash is None else "token"
    return {"card_id": card.id, "fence": fence, "claim_token_hash": token_hash, "occurred_at": _at(card, now)}


def _allowed(at_hand: BacklogProjection, fact: CardFactType) -> CardFactType:
    """Return the fact if the rules accept it; raise the error that says why they do not."""
    reason = judge(at_hand, fact)
    if reason is not None:
        raise _REFUSALS.get(reason, _unfit)(at_hand.cards[fact.card_id], fact)
    return fact


def _stale(card: Card, _: CardFactType) -> SquidError:
    now = f"{card.status.value} by {card.claim_owner!r}" if card.claim_owner is not None else card.status.value
    return StaleClaim(f"the token is not that of a claim on card {card.id!r}, which is {now}: drop the work")


def _expired(card: Card, _: CardFactType) -> SquidError:
    return ExpiredClaim(f"the claim on card {card.id!r} ran out at {card.claim_expires_at}: claim it again")


def _unfit(card: Card, fact: CardFactType) -> SquidError:
    return InvalidTransition(f"card {card.id!r} is {card.status.value}: {_REMEDIES[fact.type]}")


_REFUSALS: dict[CardReason, Callable[[Card, CardFactType], SquidError]] = {
    CardReason.STALE_CLAIM: _stale,
    CardReason.EXPIRED_CLAIM: _expired,
}
_REMEDIES = {
    "card_renewed": "only a claimed card has a claim to renew; claim it first",
    "card_failed": "only a claimed card can fail; claim it first",
    "card_blocked": "only a ready or claimed card can be blocked",
    "card_unblocked": "only a blocked card can be unblocked",
    "card_released": "there is nothing to free",
}
