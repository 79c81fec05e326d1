"""Cards on any storage: read the thread, fold it, append if no other writer did meanwhile, else start again."""

from collections.abc import Callable, Sequence
from datetime import datetime
from threading import RLock
from typing import TypeVar

from squid_dagster.backlog import card_decisions
from squid_dagster.backlog.card_store import CardFilter, CardRebuild, CardSelection, ClaimRequest, Decision, Stats
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol.backlog.card import Card, CardStatus, claim_order
from squid_dagster.protocol.backlog.projection import BacklogProjection
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.errors import Conflict
from squid_dagster.protocol.facts.backlog import CardFactType
from squid_dagster.protocol.threads import BACKLOG_THREAD

T = TypeVar("T")


class FoldCardStore:
    """`CardStore` by fold and compare-and-append. The cost of a claim or a listing grows with the number of cards."""

    def __init__(self, storage: Storage) -> None:
        """Bind to a storage."""
        self._storage = storage
        self._lock = RLock()
        self._revision = 0
        self._projection = BacklogProjection()

    def decide(self, selection: CardSelection, decision: Decision) -> BacklogProjection:
        """Write the facts of a decision, as the contract says."""
        del selection  # all cards are loaded
        return self._write(decision)

    def claim(self, request: ClaimRequest) -> Card | None:
        """Claim one card, as the contract says."""
        claimed: list[str] = []

        def decision(at_hand: BacklogProjection, now: datetime) -> Sequence[CardFactType]:
            claimed.clear()
            if request.card_id is not None and request.card_id not in at_hand.cards:
                raise card_decisions.no_card(request.card_id)
            expired = [card for card in at_hand.expired(now) if request.card_id in (None, card.id)]
            facts: list[CardFactType] = [card_decisions.expiry(card, now) for card in expired]
            after = BacklogProjection.of(at_hand.cards.values())
            for fact in facts:
                after.follow(fact)
            claimable = after.claimable(now, request.phase)
            card = next((card for card in claimable if request.card_id in (None, card.id)), None)
            if card is not None:
                facts.append(card_decisions.claim(card, request.owner, request.ttl_seconds, request.token_hash, now))
                claimed.append(card.id)
            return facts

        cards = self._write(decision).cards
        return cards[claimed[0]] if claimed else None

    def release_expired(self) -> list[Card]:
        """Release all claims that ran out."""
        released: list[str] = []

        def decision(at_hand: BacklogProjection, now: datetime) -> Sequence[CardFactType]:
            expired = at_hand.expired(now)
            released[:] = [card.id for card in expired]
            return [card_decisions.expiry(card, now) for card in expired]

        cards = self._write(decision).cards
        return [cards[card_id] for card_id in released]

    def find(self, card_id: str) -> Card | None:
        """Return a card, or None."""
        return self._read(lambda projection, _: projection.cards.get(card_id))

    def select(self, wanted: CardFilter) -> list[Card]:
        """Return cards in claim order."""

        def fits(card: Card) -> bool:
            gated = wanted.ready_only and (card.status is not CardStatus.READY or card.open_dependencies > 0)
            return not gated and wanted.status in (None, card.status) and wanted.phase in (None, card.phase)

        cards = self._read(lambda projection, _: sorted(filter(fits, projection.cards.values()), key=claim_order))
        return cards[: wanted.limit]

    def stats(self) -> Stats:
        """Count cards by status, claimable cards and expired claims."""

        def count(projection: BacklogProjection, now: datetime) -> Stats:
            counts = dict.fromkeys((status.value for status in CardStatus), 0)
            for card in projection.cards.values():
                counts[card.status.value] += 1
            ready = [card.created_at for card in projection.cards.values() if card.status is CardStatus.READY]
            age = (now - min(ready)).total_seconds() if ready else None
            return Stats(counts, len(projection.claimable(now)), age, len(projection.expired(now)))

        return self._read(count)

    def history(self, card_id: str) -> list[Entry]:
        """Return all facts about a card, in order."""
        entries = self._storage.read(BACKLOG_THREAD)
        return [entry for entry in entries if getattr(entry.fact, "card_id", None) == card_id]

    def rebuild(self) -> CardRebuild:
        """Fold the whole thread again."""
        with self._lock:
            self._revision, self._projection = 0, BacklogProjection()
            projection = self._fold()
            return CardRebuild(self._revision, len(projection.cards), len(projection.anomalies))

    def differences(self) -> list[str]:
        """Compare the cached cards with a fold of the whole thread."""
        with self._lock:
            expected = BacklogProjection.fold(self._storage.read(BACKLOG_THREAD)).cards
            actual = self._fold().cards
            return [card_id for card_id in sorted({*expected, *actual}) if expected.get(card_id) != actual.get(card_id)]

    def _fold(self) -> BacklogProjection:
        """Fold what was appended since the last time."""
        for entry in self._storage.read(BACKLOG_THREAD, after=self._revision):
            self._projection.apply(entry)
            self._revision = entry.seq
        return self._projection

    def _read(self, query: Callable[[BacklogProjection, datetime], T]) -> T:
        with self._lock:
            return query(self._fold(), self._storage.now())

    def _write(self, decision: Decision) -> BacklogProjection:
        with self._lock:
            while True:
                facts = list(decision(self._fold(), self._storage.now()))
                if not facts:
                    return self._projection
                try:
                    self._storage.append(BACKLOG_THREAD, facts, expected_rev=self._revision)
                except Conflict:
                    continue
                return self._fold()
