"""Creating and linking cards: what is refused changes nothing, what is repeated happens once."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from squid_dagster.protocol.errors import ConflictingCommand, InvalidArgument, InvalidTransition, NotFound
from tests.backlog.contract import BacklogFixture
from tests.facts import T0, t


def nested(depth: int) -> list[Any]:
    """Return lists nested so deep."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"card_id": ""}, "card's id"),
        ({"card_id": "A 1"}, "card's id"),
        ({"card_id": "A,1"}, "card's id"),
        ({"card_id": "a" * 201}, "card's id"),
        ({"card_id": 7}, "card_id must be a text"),
        ({"title": ""}, "title"),
        ({"title": None}, "title"),
        ({"priority": 1.5}, "priority"),
        ({"priority": 2**31}, "priority"),
        ({"phase": ""}, "phase"),
        ({"depends_on": ["A1"]}, "itself"),
        ({"depends_on": "A0"}, "depends_on"),
        ({"depends_on": [""]}, "depends_on"),
        ({"acceptance": "works"}, "acceptance"),
        ({"acceptance": [1]}, "acceptance"),
        ({"acceptance": {"a": float("nan")}}, "acceptance"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "k" * 401}, "idempotency_key"),
        ({"not_before": datetime(2026, 1, 1)}, "not_before"),  # noqa: DTZ001  that is the point
        ({"max_attempts": 0}, "max_attempts"),
        ({"depends_on": None}, "depends_on"),
        ({"depends_on": 7}, "depends_on"),
        ({"depends_on": [{}]}, "depends_on"),
        ({"depends_on": [["A0"], None]}, "depends_on"),
        ({"depends_on": ["A0\0"]}, "depends_on"),
        ({"idempotency_key": "k\0"}, "idempotency_key"),
        ({"idempotency_key": "k\ud800"}, "idempotency_key"),
        ({"acceptance": {"a": nested(300)}}, "acceptance"),
        ({"acceptance": {"a": nested(5_000)}}, "nested too deep"),
    ],
)
def test_what_a_card_cannot_have_is_named_and_nothing_is_made(
    fixture: BacklogFixture, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidArgument, match=named):
        fixture.backlog.create(**{"card_id": "A1", "title": "schema", **options})
    assert fixture.revision() == 0


def test_a_text_that_postgres_cannot_hold_is_refused(fixture: BacklogFixture) -> None:
    with pytest.raises(Exception, match="NUL") as refused:
        fixture.backlog.create("A1", "a\0b")
    assert type(refused.value).__module__ == "squid_dagster.protocol.errors"
    assert fixture.revision() == 0


@pytest.mark.parametrize("phase", ["x\0", "x\ud800", "", 3, "p" * 401])
def test_a_phase_that_no_card_can_have_is_refused_when_it_is_asked_for(fixture: BacklogFixture, phase: Any) -> None:
    with pytest.raises(InvalidArgument, match="phase"):
        fixture.backlog.list(phase=phase)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "1", 2**63, 10**30])
def test_a_limit_that_is_no_number_of_cards_is_refused(fixture: BacklogFixture, limit: Any) -> None:
    with pytest.raises(InvalidArgument, match="limit"):
        fixture.backlog.list(limit=limit)


def test_an_error_that_is_nested_too_deeply_is_refused_and_the_card_stays_claimed(fixture: BacklogFixture) -> None:
    fixture.cards("A1")
    fixture.claim()
    with pytest.raises(InvalidArgument, match="nested too deep"):
        fixture.backlog.fail("A1", error={"a": nested(5_000)})
    assert fixture.types("A1") == ["created", "claimed"]


def test_a_card_cannot_depend_on_one_that_does_not_exist(fixture: BacklogFixture) -> None:
    with pytest.raises(NotFound, match="'A0'"):
        fixture.backlog.create("A1", "schema", depends_on=["A0"])
    assert fixture.revision() == 0


def test_an_id_that_exists_with_another_content_is_refused(fixture: BacklogFixture) -> None:
    # given a card
    fixture.cards("A0")
    first = fixture.backlog.create("A1", "schema", priority=5, phase="M1")
    # when its id is used for another card, then the error says what differs, and nothing changes
    for options, named in (
        ({"title": "another"}, "title"),
        ({"priority": 6}, "priority"),
        ({"phase": None}, "phase"),
        ({"depends_on": ["A0"]}, "depends_on"),
        ({"idempotency_key": "k"}, "idempotency_key"),
    ):
        with pytest.raises(ConflictingCommand, match=named):
            fixture.backlog.create(**{"card_id": "A1", "title": "schema", "priority": 5, "phase": "M1", **options})  # type: ignore[arg-type]
    assert fixture.backlog.get("A1") == first
    assert fixture.revision() == 2


# --- repeating ------------------------------------------------------------------------------------------------------


def test_a_card_has_every_column(fixture: BacklogFixture) -> None:
    fixture.cards("A0")
    fixture.backlog.create(
        "A1",
        "schema",
        body="tables",
        phase="M1",
        priority=5,
        depends_on=["A0", "A0"],
        acceptance={"migrates": True, "rows": [1, 1.0]},
        idempotency_key="first",
        not_before=t(60),
        max_attempts=3,
    )
    assert fixture.backlog.get("A1").to_dict() == {
        "id": "A1",
        "title": "schema",
        "body": "tables",
        "phase": "M1",
        "priority": 5,
        "status": "ready",
        "depends_on": ["A0"],
        "claim_owner": None,
        "claim_ttl_seconds": None,
        "claimed_at": None,
        "attempts": 0,
        "idempotency_key": "first",
        "acceptance": {"migrates": True, "rows": [1, 1.0]},
        "created_at": t(1).isoformat(),
        "updated_at": t(1).isoformat(),
        "claim_expires_at": None,
        "not_before": t(60).isoformat(),
        "max_attempts": 3,
        "open_dependencies": 1,
        "error": None,
    }


def test_creating_the_same_again_gives_the_card_as_it_is(fixture: BacklogFixture) -> None:
    fixture.cards("A0", "A1")
    fixture.backlog.link("A1", "A0")
    fixture.claim("w")
    before = fixture.revision()
    assert fixture.backlog.create("A0", "card A0").claim_owner == "w"
    assert fixture.backlog.create("A1", "card A1").depends_on == ("A0",)
    assert fixture.revision() == before


def test_a_key_gives_the_first_card_whatever_is_asked_for(fixture: BacklogFixture) -> None:
    first = fixture.backlog.create("A1", "schema", idempotency_key="k")
    assert fixture.backlog.create("A2", "another", priority=9, idempotency_key="k") == first
    assert fixture.backlog.create("A1", "another", idempotency_key="k") == first
    assert [card.id for card in fixture.backlog.list()] == ["A1"]
    assert fixture.revision() == 1


@pytest.mark.parametrize("key", [None, "k"])
def test_creating_a_blocked_card_again_makes_it_ready(fixture: BacklogFixture, key: str | None) -> None:
    fixture.backlog.create("A1", "schema", idempotency_key=key)
    fixture.backlog.block("A1", reason="not now")
    assert fixture.backlog.create("A1", "schema", idempotency_key=key).status == "ready"
    assert fixture.types("A1") == ["created", "blocked", "unblocked"]
    assert fixture.facts("A1")[-1].cause == "created_again"


def test_a_blocked_card_stays_blocked_when_its_id_is_used_for_something_else(fixture: BacklogFixture) -> None:
    fixture.cards("A1")
    fixture.backlog.block("A1")
    with pytest.raises(ConflictingCommand):
        fixture.backlog.create("A1", "another")
    assert fixture.backlog.get("A1").status == "blocked"


# --- linking --------------------------------------------------------------------------------------------------------


def test_self_links_unknown_cards_and_cycles_are_refused(fixture: BacklogFixture) -> None:
    # given D -> C -> B -> A
    fixture.cards("A", "B", "C", "D")
    fixture.backlog.link("B", "A")
    fixture.backlog.link("C", "B")
    fixture.backlog.link("D", "C")
    before = fixture.revision()
    # when a link is made that cannot be, then it is refused, and nothing changes
    with pytest.raises(InvalidArgument, match="itself"):
        fixture.backlog.link("A", "A")
    with pytest.raises(NotFound, match="'X'"):
        fixture.backlog.link("A", "X")
    with pytest.raises(NotFound, match="'X'"):
        fixture.backlog.link("X", "A")
    with pytest.raises(InvalidTransition, match="A -> B -> A"):
        fixture.backlog.link("A", "B")
    with pytest.raises(InvalidTransition, match="A -> C -> B -> A"):
        fixture.backlog.link("A", "C")
    with pytest.raises(InvalidTransition, match="A -> D -> C -> B -> A"):
        fixture.backlog.link("A", "D")
    assert fixture.revision() == before


def test_a_link_gates_the_card_and_repeating_it_changes_nothing(fixture: BacklogFixture) -> None:
    fixture.cards("A", "B")
    assert fixture.backlog.link("A", "B").open_dependencies == 1
    before = fixture.revision()
    assert fixture.backlog.link("A", "B").depends_on == ("B",)
    assert fixture.revision() == before
    assert fixture.claimed_in_order() == ["B"]


def test_a_link_to_a_card_that_is_done_gates_nothing(fixture: BacklogFixture) -> None:
    fixture.cards("A", "B")
    fixture.backlog.complete("B")
    assert fixture.backlog.link("A", "B").open_dependencies == 0
    assert fixture.backlog.create("C", "c", depends_on=["B"]).open_dependencies == 0
    assert fixture.claimed_in_order() == ["A", "C"]


def test_what_is_done_takes_no_more_links(fixture: BacklogFixture) -> None:
    fixture.cards("A", "B")
    fixture.backlog.complete("A")
    with pytest.raises(InvalidTransition, match="done"):
        fixture.backlog.link("A", "B")


def test_a_claimed_card_that_is_linked_is_gated_when_it_comes_back(fixture: BacklogFixture) -> None:
    fixture.cards("A", "B")
    held = fixture.claim(ttl=timedelta(seconds=10))
    fixture.backlog.link("A", "B")
    fixture.later(seconds=10)
    assert fixture.claimed_in_order() == ["B"]
    fixture.backlog.complete("B")
    assert fixture.claim().id == held.id == "A"


def test_listing_filters_and_follows_the_order_of_claims(fixture: BacklogFixture) -> None:
    fixture.cards("A", "B", phase="M1")
    fixture.cards("C", priority=3, depends_on=["A"])
    fixture.cards("D", phase="M2", priority=-1)
    fixture.backlog.block("B")

    def ids(**options: Any) -> list[str]:
        return [card.id for card in fixture.backlog.list(**options)]

    assert ids() == ["C", "A", "B", "D"]
    assert ids(status="ready") == ["C", "A", "D"]
    assert ids(status="blocked", phase="M1") == ["B"]
    assert ids(phase="M2") == ["D"]
    assert ids(ready_only=True) == ["A", "D"]
    assert ids(ready_only=True, phase="M2") == ["D"]
    assert ids(ready_only=True, status="blocked") == []
    assert ids(limit=2) == ["C", "A"]
    with pytest.raises(InvalidArgument, match="'open' is no status"):
        ids(status="open")
    with pytest.raises(InvalidArgument, match="limit"):
        ids(limit=0)


def test_stats_count_and_tell_ages(fixture: BacklogFixture) -> None:
    empty = fixture.backlog.stats()
    assert (empty.oldest_ready_age_seconds, sum(empty.counts.values())) == (None, 0)
    fixture.cards("A", "B", "C", "D")
    fixture.backlog.create("E", "gated", depends_on=["B"])
    fixture.backlog.complete("A")
    fixture.backlog.block("B")
    fixture.backlog.create("F", "later", not_before=t(999))
    fixture.cards("G")
    fixture.claim(ttl=timedelta(seconds=5), card_id="C")
    fixture.claim(ttl=timedelta(seconds=500), card_id="G")
    fixture.later(seconds=5)
    assert fixture.backlog.stats().to_dict() == {
        "counts": {"ready": 3, "claimed": 2, "blocked": 1, "done": 1, "dead_lettered": 0},
        "total": 7,
        "claimable": 1,
        "oldest_ready_age_seconds": 7.0,
        "expired_claims": 1,
    }


def test_cards_of_the_same_moment_have_an_order(fixture: BacklogFixture) -> None:
    for card_id in ("b", "a", "B"):
        fixture.backlog.create(card_id, card_id)
    assert fixture.backlog.get("b").created_at == T0
    assert [card.id for card in fixture.backlog.list()] == ["B", "a", "b"]
    assert [card.id for card in fixture.backlog.list(ready_only=True)] == ["B", "a", "b"]
    assert fixture.claimed_in_order() == ["B", "a", "b"]
