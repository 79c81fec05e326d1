"""What the suite of the backlog shares: a backlog with a clock, on every storage, and readers of its facts."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from squid_dagster.backlog import Backlog, Card
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.protocol import BACKLOG_THREAD, BacklogProjection

MINUTE = timedelta(minutes=1)


@dataclass
class BacklogFixture:
    """A backlog, its storage, and the only clock that there is."""

    storage: Storage
    clock: VirtualClock
    backlog: Backlog = field(init=False)

    def __post_init__(self) -> None:
        """Open the backlog."""
        self.backlog = Backlog(self.storage)

    def cards(self, *ids: str, **options: Any) -> list[Card]:
        """Create cards one second after another."""
        made = []
        for card_id in ids:
            made.append(self.backlog.create(card_id, f"card {card_id}", **options))
            self.later(seconds=1)
        return made

    def later(self, **time: float) -> None:
        """Advance the clock."""
        self.clock.advance(timedelta(**time))

    def claim(self, owner: str = "w", **options: Any) -> Card:
        """Claim a card that must be there."""
        card = self.backlog.claim(owner, **options)
        assert card is not None, "there is nothing to claim"
        return card

    def claimed_in_order(self) -> list[str]:
        """Claim until nothing is left; return the ids."""
        ids = []
        while (card := self.backlog.claim("w")) is not None:
            ids.append(card.id)
            assert len(ids) < 1000, "claims give the same cards again and again"
        return ids

    def facts(self, card_id: str) -> list[Any]:
        """Return all facts about a card."""
        return [entry.fact for entry in self.backlog.history(card_id)]

    def types(self, card_id: str) -> list[str]:
        """Return the types of all facts about a card, without their common prefix."""
        return [fact.type.removeprefix("card_") for fact in self.facts(card_id)]

    def revision(self) -> int:
        """Return the revision of the backlog's thread."""
        return self.storage.revision(BACKLOG_THREAD)

    def check(self) -> None:
        """Assert that the cards equal a fold of the facts, and that no fact breaks a rule."""
        projection = BacklogProjection.fold(self.storage.read(BACKLOG_THREAD))
        assert projection.anomalies == []
        assert {card.id: card for card in self.backlog.list()} == projection.cards
        assert self.backlog.differences() == []


def write_history(fixture: BacklogFixture) -> None:
    """Write cards in every state."""
    fixture.cards("A", "B", idempotency_key=None)
    fixture.cards("C", depends_on=["A", "B"], acceptance={"n": 1e300}, body="ü 🦑")
    fixture.backlog.complete("A", token=fixture.claim(ttl=MINUTE).claim_token)
    fixture.backlog.fail("B", token=fixture.claim().claim_token, retry_after=MINUTE, error="no")
    fixture.backlog.create("D", "d", max_attempts=1)
    fixture.claim(ttl=timedelta(seconds=5))
    fixture.later(seconds=5)
    fixture.backlog.reclaim()
