"""Random operations: memory and Postgres answer alike, and the cards are what a fold of the facts tells."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from squid_dagster.backlog import Backlog, Card
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import BACKLOG_THREAD, BacklogProjection, Entry
from squid_dagster.protocol.errors import SquidError
from tests.facts import CARD_EXAMPLES, T0, t, with_fields

IDS, KEYS, PHASES = ("a", "b", "c", "d"), ("k", "l"), ("M1", "M2")
ids = st.sampled_from(IDS)
ttls = st.integers(1, 5).map(lambda seconds: timedelta(seconds=seconds))
delays = st.none() | st.integers(0, 3).map(lambda seconds: timedelta(seconds=seconds))
tokens = st.sampled_from((0, 0, 0, 1, 2, 3))  # the latest claim's, an earlier one's, an unknown one, or none

Operation = tuple[str, dict[str, Any]]


def _operation(name: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Operation]:
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))


creations = _operation(
    "create",
    card_id=ids,
    title=st.sampled_from(("one", "two")),
    priority=st.integers(-1, 1),
    phase=st.none() | st.sampled_from(PHASES),
    depends_on=st.lists(ids, max_size=2),
    idempotency_key=st.none() | st.sampled_from(KEYS),
    not_before=st.none() | st.integers(-5, 30).map(t),
    max_attempts=st.none() | st.integers(1, 2),
    acceptance=st.sampled_from((None, ["x"], {"y": 1.5})),
)
claims = st.one_of(
    _operation("claim", owner=st.just("w"), ttl=ttls),
    _operation("claim", owner=st.just("w"), ttl=ttls, phase=st.sampled_from(PHASES)),
    _operation("claim", owner=st.just("w"), ttl=ttls, card_id=ids),
)
operations = st.one_of(
    creations,
    claims,
    claims,
    claims,
    _operation("link", card_id=ids, depends_on=ids),
    _operation("renew", card_id=ids, ttl=ttls, token=tokens),
    _operation("complete", card_id=ids, token=tokens),
    _operation("fail", card_id=ids, token=tokens, retry_after=delays),
    _operation("block", card_id=ids, token=tokens),
    _operation("unblock", card_id=ids),
    _operation("reclaim", card_id=st.none() | ids),
    _operation("advance", seconds=st.integers(-1, 4)),
)


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    """Generate four cards, each of which may depend on those before it, and then any operations."""
    first = [
        (
            "create",
            {
                "card_id": card_id,
                "title": "one",
                "priority": draw(st.integers(0, 1)),
                "phase": draw(st.sampled_from((None, *PHASES))),
                "depends_on": [other for other in IDS[:place] if draw(st.integers(0, 3)) == 0],
                "max_attempts": draw(st.sampled_from((None, 1, 2))),
            },
        )
        for place, card_id in enumerate(IDS)
    ]
    return [*first, *draw(st.lists(operations, min_size=15, max_size=40))]


class BacklogCaller:
    """A caller of one backlog, which remembers the tokens that it was given."""

    def __init__(self, storage: Storage) -> None:
        """Create an empty backlog."""
        self.backlog = Backlog(storage)
        self.tokens: dict[str, list[str]] = {}

    def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Execute it; return its answer, or the error's type and text. Tokens differ and are left out."""
        given = dict(arguments)
        if "token" in given:
            given["token"] = self._token(given["card_id"], given["token"])
        command: Callable[..., Any] = getattr(self.backlog, name)
        try:
            answer = command(**given)
        except SquidError as error:
            return type(error).__name__, str(error)
        if name == "claim" and answer is not None:
            self.tokens.setdefault(answer.id, []).append(answer.claim_token)
        return [_shown(card) for card in answer] if isinstance(answer, list) else _shown(answer)

    def _token(self, card_id: str, which: int) -> str | None:
        known = self.tokens.get(card_id, [])
        return {0: known[-1] if known else "none", 1: known[0] if known else "none", 2: "made up"}.get(which)


def _shown(card: Card | None) -> Any:
    return None if card is None else card.to_dict()


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(histories())
def test_both_storages_answer_alike_and_cards_are_what_the_facts_tell(
    module_postgres: PostgresStorage, history: list[Operation]
) -> None:
    # given two empty backlogs with one clock
    clock = VirtualClock(T0)
    module_postgres.clock = clock
    module_postgres.delete_thread(BACKLOG_THREAD)
    memory = MemoryStorage(clock)
    callers = (BacklogCaller(memory), BacklogCaller(module_postgres))
    # when the same is done to both, then both say the same
    for name, arguments in history:
        if name == "advance":
            clock.advance(timedelta(seconds=arguments["seconds"]))
            continue
        ours, theirs = (caller.call(name, arguments) for caller in callers)
        assert ours == theirs, name
    # and have the same facts, no rule was broken, and each card is what they tell
    projections = [BacklogProjection.fold(storage.read(BACKLOG_THREAD)) for storage in (memory, module_postgres)]
    assert [projection.anomalies for projection in projections] == [[], []]
    assert list(map(_shown, projections[0].cards.values())) == list(map(_shown, projections[1].cards.values()))
    assert callers[1].backlog.differences() == callers[0].backlog.differences() == []
    assert {card.id: card for card in callers[1].backlog.list()} == projections[1].cards
    assert callers[0].backlog.stats() == callers[1].backlog.stats()


@given(
    st.lists(st.tuples(st.sampled_from(CARD_EXAMPLES), ids, st.integers(0, 5)), max_size=25),
    st.integers(0, 25),
)
def test_folding_any_facts_raises_nothing_and_can_be_split_anywhere(
    changes: list[tuple[Any, str, int]], at: int
) -> None:
    facts = [with_fields(fact, **_fitting(fact, card_id), occurred_at=t(seconds)) for fact, card_id, seconds in changes]
    entries = [Entry(BACKLOG_THREAD, i, i, fact) for i, fact in enumerate(facts, 1)]
    whole = BacklogProjection.fold(entries)
    first = BacklogProjection.fold(entries[:at])
    copy = first.copy()
    split = BacklogProjection.fold(entries[at:], onto=first)
    assert (split.cards, split.anomalies, split.keys) == (whole.cards, whole.anomalies, whole.keys)
    assert first == copy
    for card in whole.cards.values():
        done = [whole.cards[other].status == "done" for other in card.depends_on]
        assert card.open_dependencies == done.count(False)


def _fitting(fact: Any, card_id: str) -> dict[str, Any]:
    """Return changes that make a fact be about one of few cards, which depends on nothing that is not there."""
    others = [other for other in IDS if other != card_id]
    if fact.type == "card_created":
        return {"card_id": card_id, "depends_on": []}
    return {"card_id": card_id, "depends_on": others[0]} if fact.type == "card_linked" else {"card_id": card_id}
