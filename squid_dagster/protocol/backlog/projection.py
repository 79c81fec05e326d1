"""The fold of the backlog's thread: from facts to cards. Pure; it never raises and never changes its arguments."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, Self

from squid_dagster.protocol.backlog.card import Card, CardStatus, claim_order, new_card
from squid_dagster.protocol.backlog.rules import CardReason, follow, judge
from squid_dagster.protocol.entries import Entry, MalformedFact, UnknownFact
from squid_dagster.protocol.facts.backlog import CardCompleted, CardCreated, CardLinked
from squid_dagster.protocol.threads import BACKLOG_THREAD


class CardAnomaly(NamedTuple):
    """One problem with one entry of the backlog's thread."""

    reason: CardReason
    entry_type: str
    card_id: str | None
    seq: int
    position: int


@dataclass(slots=True)
class BacklogProjection:
    """Cards folded from facts. `changed` holds the ids of those that facts have changed since it was created.

    It may hold only some cards, with all `edges` that a cycle through them could use: rules then read no others.
    """

    cards: dict[str, Card] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    edges: dict[str, Sequence[str]] = field(default_factory=dict)
    dependents: dict[str, list[str]] = field(default_factory=dict)
    anomalies: list[CardAnomaly] = field(default_factory=list)
    changed: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, cards: Iterable[Card], edges: Mapping[str, Sequence[str]] | None = None) -> Self:
        """Create a projection of these cards."""
        projection = cls(edges=dict(edges or {}))
        for card in cards:
            projection._add(card)
        return projection

    @classmethod
    def fold(cls, entries: Iterable[Entry], onto: "BacklogProjection | None" = None) -> "BacklogProjection":
        """Fold entries of the thread in order, onto an earlier projection if given; neither is changed. Never raises.

        `changed` starts empty.
        """
        projection = onto.copy() if onto is not None else cls()
        projection.changed = set()
        for entry in entries:
            if entry.thread == BACKLOG_THREAD:
                projection.apply(entry)
        return projection

    def copy(self) -> "BacklogProjection":
        """Return an independent copy."""
        dependents = {card_id: list(dependent_ids) for card_id, dependent_ids in self.dependents.items()}
        return BacklogProjection(
            dict(self.cards), dict(self.keys), dict(self.edges), dependents, list(self.anomalies), set(self.changed)
        )

    def apply(self, entry: Entry) -> None:
        """Fold one entry, in place."""
        fact: Any = entry.fact
        if isinstance(fact, MalformedFact | UnknownFact):
            malformed = isinstance(fact, MalformedFact)
            reason: CardReason | None = CardReason.MALFORMED_ENTRY if malformed else CardReason.UNKNOWN_FACT_TYPE
        else:
            reason = judge(self, fact)
        if reason is not None:
            subject = getattr(fact, "card_id", None)
            self.anomalies.append(CardAnomaly(reason, fact.type, subject, entry.seq, entry.position))
            return
        self.follow(fact)

    def follow(self, fact: Any) -> None:
        """Fold a fact that the rules accept, in place."""
        self.changed.add(fact.card_id)
        if isinstance(fact, CardCreated):
            self._add(new_card(fact, sum(map(self._is_open, fact.depends_on))))
            return
        card = self.cards[fact.card_id]
        if isinstance(fact, CardLinked):
            self._link(card, fact)
            return
        self.cards[card.id] = follow(card, fact)
        if isinstance(fact, CardCompleted):
            for card_id in self.dependents.get(card.id, ()):
                waiting = self.cards[card_id]
                self.cards[card_id] = replace(waiting, open_dependencies=waiting.open_dependencies - 1)
                self.changed.add(card_id)

    def _add(self, card: Card) -> None:
        self.cards[card.id] = card
        self.edges[card.id] = card.depends_on
        if card.idempotency_key is not None:
            self.keys[card.idempotency_key] = card.id
        for dependency in card.depends_on:
            self.dependents.setdefault(dependency, []).append(card.id)

    def _link(self, card: Card, fact: CardLinked) -> None:
        depends_on = (*card.depends_on, fact.depends_on)
        still_open = card.open_dependencies + self._is_open(fact.depends_on)
        self.cards[card.id] = replace(
            card, depends_on=depends_on, open_dependencies=still_open, updated_at=fact.occurred_at
        )
        self.edges[card.id] = depends_on
        self.dependents.setdefault(fact.depends_on, []).append(card.id)

    def _is_open(self, card_id: str) -> bool:
        return self.cards[card_id].status is not CardStatus.DONE

    def claimable(self, at: datetime, phase: str | None = None) -> list[Card]:
        """Return the cards that could be claimed at that time, in claim order."""
        cards = (card for card in self.cards.values() if card.claimable(at) and phase in (None, card.phase))
        return sorted(cards, key=claim_order)

    def expired(self, at: datetime) -> list[Card]:
        """Return the cards whose claim has run out, longest ago first."""
        cards = (card for card in self.cards.values() if card.status is CardStatus.CLAIMED and card.expired(at))
        return sorted(cards, key=lambda card: (card.claim_expires_at or at, card.id))
