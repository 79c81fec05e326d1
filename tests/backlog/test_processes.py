"""Sixteen claimers, two thousand cards that depend on each other, and kills: judged from the facts alone."""

import random
from datetime import datetime, timedelta
from typing import Any

from squid_dagster.backlog import Backlog
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import BACKLOG_THREAD, CardCreated
from tests.journal.access import plant
from tests.processes import Child, children

CARDS, CLAIMERS, SEED = 2000, 16, 20261116


def _cards(rng: random.Random, at: datetime) -> list[CardCreated]:
    """Return cards of random priority, each of which depends on up to three of those before it."""
    return [
        CardCreated(
            card_id=f"card-{number}",
            title="x",
            priority=rng.randint(-2, 2),
            depends_on=[f"card-{n}" for n in rng.sample(range(number), min(number, rng.choice((0, 0, 1, 2, 3))))],
            occurred_at=at,
        )
        for number in range(CARDS)
    ]


def test_killed_claimers_lose_no_card_hold_none_twice_and_break_no_dependency(
    postgres: PostgresStorage, postgres_url: str
) -> None:
    # given many cards with random dependencies
    backlog = Backlog(postgres)
    plant(postgres, _cards(random.Random(SEED), postgres.now()))
    backlog.rebuild()
    # when many processes work on them, and are killed in the middle of what they do
    with children() as started:
        shepherd = Child("tests.backlog.claimers", postgres_url, postgres.schema, str(CLAIMERS), str(SEED))
        started.append(shepherd)
        assert shepherd.end() == 0, shepherd.errors()
    assert int(shepherd.lines[-1]) >= 5
    # then every card is done, and the facts show that every process kept the rules
    assert backlog.stats().counts == {"ready": 0, "claimed": 0, "blocked": 0, "done": CARDS, "dead_lettered": 0}
    judge([entry.fact for entry in postgres.read(BACKLOG_THREAD)])
    assert backlog.differences() == []


def judge(facts: list[Any]) -> None:
    """Assert by the facts alone: one holder at a time, and no claim before all dependencies were done."""
    depends_on: dict[str, list[str]] = {}
    held: dict[str, tuple[str, datetime]] = {}
    began: dict[str, datetime] = {}
    attempts: dict[str, int] = {}
    done: set[str] = set()
    expired = 0
    for fact in facts:
        card = fact.card_id
        match fact.type:
            case "card_created":
                depends_on[card] = fact.depends_on
            case "card_claimed":
                assert card not in held, f"{card} is held twice"
                assert card not in done
                assert done.issuperset(depends_on[card]), f"{card} was claimed before its turn"
                assert fact.attempt == attempts.get(card, 0) + 1
                attempts[card] = fact.attempt
                began[card] = fact.occurred_at
                held[card] = (fact.claim_token_hash, began[card] + timedelta(seconds=fact.claim_ttl_seconds))
            case "card_released":
                assert held.pop(card)[1] <= fact.occurred_at, f"{card} was taken away from its holder"
                expired += 1
            case "card_renewed" | "card_failed" | "card_completed":
                token, until = held[card]
                assert (fact.claim_token_hash, fact.occurred_at < until) == (token, True), f"{card}: a zombie got in"
                if fact.type == "card_renewed":
                    held[card] = (token, began[card] + timedelta(seconds=fact.claim_ttl_seconds))
                    continue
                del held[card]
                if fact.type == "card_completed":
                    done.add(card)
    assert done == set(depends_on)
    assert expired > 0, "no holder was killed"
