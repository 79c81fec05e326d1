"""`Backlog`: the public API to create, claim, complete and list cards.

Checks arguments and hands decisions to a card store; owns no state.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from pydantic import JsonValue, ValidationError

from squid_dagster.backlog import card_decisions
from squid_dagster.backlog.card_store import (
    CardFilter,
    CardRebuild,
    CardSelection,
    CardStore,
    ClaimRequest,
    Decision,
    Stats,
)
from squid_dagster.backlog.fold_store import FoldCardStore
from squid_dagster.backlog.postgres.store import PostgresCardStore
from squid_dagster.journal.contract.dispatch_store import check_text, hash_token, new_claims
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.argument_checks import checks_arguments, name_problem
from squid_dagster.protocol.backlog.card import Card, CardStatus
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.errors import InvalidArgument, explain
from squid_dagster.protocol.facts.backlog import (
    CARD_ID_MAX_LENGTH,
    CARD_ID_PATTERN,
    CARD_NAME_MAX_LENGTH,
    MAX_TTL_SECONDS,
    CardCreated,
)
from squid_dagster.redaction import redacted_error

DEFAULT_TTL = timedelta(seconds=900)
# In the class, `list` is a method.
_Cards: TypeAlias = list[Card]
_Entries: TypeAlias = list[Entry]
_Texts: TypeAlias = list[str]
_BIGINT = 2**63 - 1  # the largest one of Postgres
_DRAFT_TIME = datetime(1970, 1, 1, tzinfo=UTC)  # replaced when the fact is written


@checks_arguments
class Backlog:
    """Cards on a storage. Safe between threads, processes and machines: the storage decides.

    Commands on a claimed card take the claim's `token`: with one, only the holder's command succeeds. Without one they
    act on the card as it is, and the fact is marked `unfenced`; with `strict`, they are refused.
    """

    def __init__(self, storage: Storage, *, strict: bool = False) -> None:
        """Bind to a storage."""
        self._store: CardStore = (
            PostgresCardStore(storage) if isinstance(storage, PostgresStorage) else FoldCardStore(storage)
        )
        self.strict = strict

    # --- creation ---------------------------------------------------------------------------------------------------

    def create(
        self,
        card_id: str,
        title: str,
        *,
        body: str | None = None,
        phase: str | None = None,
        priority: int = 0,
        depends_on: Iterable[str] = (),
        acceptance: JsonValue = None,
        idempotency_key: str | None = None,
        not_before: datetime | None = None,
        max_attempts: int | None = None,
    ) -> Card:
        """Create and return a card. If it exists, return it; if it was blocked, it becomes ready.

        A card exists if one has the same `idempotency_key`, or the same id and the same content.

        >>> backlog.create("a-1", "write it down").status.value
        'ready'

        Raises:
            InvalidArgument: a value that a card cannot have; it is named.
            ConflictingCommand: the id belongs to a card with another content.
            NotFound: it depends on a card that does not exist.
        """
        values: dict[str, Any] = {
            "card_id": card_id,
            "title": title,
            "body": body,
            "phase": phase,
            "priority": priority,
            "depends_on": _ids(depends_on),
            "acceptance": acceptance,
            "idempotency_key": idempotency_key,
            "not_before": not_before,
            "max_attempts": max_attempts,
        }
        _check_new_id(card_id)
        if card_id in values["depends_on"]:
            raise InvalidArgument(f"card {card_id!r} cannot depend on itself")
        with _explained("not a card"):
            draft = CardCreated(**values, occurred_at=_DRAFT_TIME)
        if idempotency_key is not None:
            check_text(idempotency_key, "idempotency_key", CARD_NAME_MAX_LENGTH)
        selection = CardSelection((card_id, *draft.depends_on), idempotency_key, links=bool(draft.depends_on))
        card = card_decisions.known_card(self._store.decide(selection, card_decisions.create(draft)), draft)
        assert card is not None  # noqa: S101  it existed, or was created
        return card

    def link(self, card_id: str, depends_on: str) -> Card:
        """Add a dependency to a card, and return the card. Repeating it is no error.

        >>> _ = backlog.create("a-1", "first"), backlog.create("a-2", "second")
        >>> backlog.link("a-2", "a-1").depends_on
        ('a-1',)

        Raises:
            InvalidArgument: both are the same card.
            NotFound: one of them does not exist.
            InvalidTransition: it would close a cycle, or the card is done.
        """
        selection = CardSelection((_id(card_id), _id(depends_on)), closure_of=depends_on, links=True)
        return self._store.decide(selection, card_decisions.link(card_id, depends_on)).cards[card_id]

    # --- claims and outcomes ----------------------------------------------------------------------------------------

    def claim(
        self, owner: str, *, ttl: timedelta = DEFAULT_TTL, card_id: str | None = None, phase: str | None = None
    ) -> Card | None:
        """Claim the first ready card, of that phase, or the card of that id; return None if there is none.

        The first is the oldest one of the highest priority. Cards whose claim ran out count as ready. The returned card
        has the claim's token, `claim_token`, which is stored nowhere.

        >>> _ = backlog.create("a-1", "write it down")
        >>> backlog.claim("ada").id
        'a-1'

        Raises:
            InvalidArgument: a bad owner, time or phase.
            NotFound: there is no card of that id.
        """
        check_text(owner, "owner", 1000)
        if (problem := name_problem(owner)) is not None:
            raise InvalidArgument(f"owner {owner!r:.80} is no name: {problem}")
        if phase is not None:
            check_text(phase, "phase", CARD_NAME_MAX_LENGTH)
        ((_, token),) = new_claims(1)
        wanted_id = None if card_id is None else _id(card_id)
        card = self._store.claim(ClaimRequest(owner, _seconds(ttl), hash_token(token), wanted_id, phase))
        return None if card is None else replace(card, claim_token=token)

    def renew(self, card_id: str, *, ttl: timedelta = DEFAULT_TTL, token: str | None = None) -> Card:
        """Extend a claim to `ttl` from now; never shortens one.

        >>> _ = backlog.create("a-1", "write it down"), backlog.claim("ada")
        >>> backlog.renew("a-1", ttl=timedelta(hours=2)).claim_ttl_seconds
        7200

        Raises:
            StaleClaim, ExpiredClaim: the token's claim is over: stop working.
            NotFound, InvalidTransition, InvalidArgument: no such card; it is not claimed; a bad time or token.
        """
        seconds = timedelta(seconds=_seconds(ttl))
        return self._change(card_id, card_decisions.renew(card_id, self._fence(token), seconds))

    def complete(self, card_id: str, *, token: str | None = None) -> Card:
        """Set a card to done, which ends its claim. Repeating it is no error.

        >>> _ = backlog.create("a-1", "write it down"), backlog.claim("ada")
        >>> backlog.complete("a-1").status.value
        'done'

        Raises:
            StaleClaim, ExpiredClaim: the token's claim is over: drop the work.
            NotFound, InvalidArgument: no such card; a bad token.
        """
        return self._change(card_id, card_decisions.complete(card_id, self._fence(token)), frees=True)

    def fail(
        self,
        card_id: str,
        *,
        error: dict[str, JsonValue] | str | None = None,
        retry_after: timedelta | None = timedelta(0),
        token: str | None = None,
    ) -> Card:
        """Record a failure and end the claim; the card is ready again `retry_after` from now.

        If that is None, or the card was claimed `max_attempts` times, it is dead-lettered: its status says which.

        >>> _ = backlog.create("a-1", "write it down"), backlog.claim("ada")
        >>> backlog.fail("a-1", error="no ink").attempts
        1

        Raises:
            StaleClaim, ExpiredClaim: the token's claim is over: nothing was written.
            NotFound, InvalidTransition, InvalidArgument: no such card; it is not claimed; a bad time, error or token.
        """
        known = retry_after is None or isinstance(retry_after, timedelta)
        if not known or not timedelta(0) <= (retry_after or timedelta(0)) <= timedelta(days=3650):
            raise InvalidArgument(f"retry_after must be a timedelta from zero to ten years, not {retry_after!r}")
        redacted = redacted_error({"message": error} if isinstance(error, str) else error)
        return self._change(card_id, card_decisions.fail(card_id, self._fence(token), redacted, retry_after))

    def block(self, card_id: str, *, reason: str | None = None, token: str | None = None) -> Card:
        """Block a card, which ends its claim. Repeating it is no error.

        >>> _ = backlog.create("a-1", "write it down")
        >>> backlog.block("a-1", reason="no ink").status.value
        'blocked'

        Raises:
            StaleClaim, ExpiredClaim: the token's claim is over: nothing was written.
            NotFound, InvalidTransition, InvalidArgument: no such card; it is done or dead; a bad reason or token.
        """
        if reason is not None:
            check_text(reason, "reason", 10_000)
            reason = redacted_error(reason)
        return self._change(card_id, card_decisions.block(card_id, self._fence(token), reason))

    def unblock(self, card_id: str) -> Card:
        """Set a blocked card to ready. Raises `NotFound`, or `InvalidTransition` when it is claimed, done or dead.

        >>> _ = backlog.create("a-1", "write it down"), backlog.block("a-1")
        >>> backlog.unblock("a-1").status.value
        'ready'
        """
        return self._change(card_id, card_decisions.unblock(card_id))

    def reclaim(self, card_id: str | None = None) -> _Cards:
        """Release all claims that ran out; or free the card of that id, whether it is claimed, blocked or dead.

        Returns the freed cards; one with an expired claim and no attempts left is dead-lettered.

        >>> _ = backlog.create("a-1", "write it down"), backlog.claim("ada")
        >>> [card.id for card in backlog.reclaim("a-1")]
        ['a-1']

        Raises:
            NotFound: there is no card of that id.
            InvalidTransition: it is done.
        """
        if card_id is None:
            return self._store.release_expired()
        return [self._change(card_id, card_decisions.reclaim(card_id))]

    # --- reads ------------------------------------------------------------------------------------------------------

    def get(self, card_id: str) -> Card:
        """Return a card. Raises `NotFound`.

        >>> _ = backlog.create("a-1", "write it down")
        >>> backlog.get("a-1").title
        'write it down'
        """
        card = self._store.find(_id(card_id))
        if card is None:
            raise card_decisions.no_card(card_id)
        return card

    def stats(self) -> Stats:
        """Count cards by status, claimable cards and expired claims; measure the age of the oldest ready card.

        >>> backlog.stats().expired_claims
        0
        """
        return self._store.stats()

    def history(self, card_id: str) -> _Entries:
        """Return all facts about a card, in order. Raises `NotFound` if there is none.

        >>> _ = backlog.create("a-1", "write it down")
        >>> [entry.fact.type for entry in backlog.history("a-1")]
        ['card_created']
        """
        entries = self._store.history(_id(card_id))
        if not entries:
            raise card_decisions.no_card(card_id)
        return entries

    def rebuild(self) -> CardRebuild:
        """Rebuild the cards from the facts while writers continue. Raises `StorageUnavailable` as `rebuild_views`.

        >>> _ = backlog.create("a-1", "write it down")
        >>> backlog.rebuild().cards
        1
        """
        return self._store.rebuild()

    def differences(self) -> _Texts:
        """Return which cards differ from a fold of their facts, and in what; an empty list if none does.

        >>> backlog.differences()
        []
        """
        return self._store.differences()

    def list(
        self,
        *,
        status: CardStatus | str | None = None,
        phase: str | None = None,
        ready_only: bool = False,
        limit: int | None = None,
    ) -> _Cards:
        """List cards in claim order; with `ready_only` only those that are ready and have no open dependency.

        >>> _ = backlog.create("a-1", "write it down", phase="ink")
        >>> [card.id for card in backlog.list(phase="ink")]
        ['a-1']

        Raises:
            InvalidArgument: no such status, or a bad phase or limit.
        """
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= _BIGINT):
            raise InvalidArgument(f"limit must be a whole number from 1 on, not {limit!r:.80}")
        if phase is not None:
            check_text(phase, "phase", CARD_NAME_MAX_LENGTH)
        try:
            card_status = None if status is None else CardStatus(status)
        except ValueError:
            known = ", ".join(known.value for known in CardStatus)
            raise InvalidArgument(f"{status!r} is no status of a card: take one of {known}") from None
        return self._store.select(CardFilter(card_status, phase, ready_only, limit))

    def _change(self, card_id: str, decision: Decision, *, frees: bool = False) -> Card:
        with _explained(f"card {_id(card_id)!r}"):
            return self._store.decide(CardSelection((card_id,), frees=frees), decision).cards[card_id]

    def _fence(self, token: str | None) -> str | None:
        if token is None:
            if self.strict:
                raise InvalidArgument("this backlog is strict: give the token of the claim")
            return None
        check_text(token, "token", 1000)
        return hash_token(token)


def _id(card_id: str) -> str:
    """Return the id, or raise `InvalidArgument` for one that no card can have."""
    check_text(card_id, "a card's id", CARD_ID_MAX_LENGTH)
    return card_id


def _check_new_id(card_id: str) -> None:
    """Raise `InvalidArgument` for an id that a new card cannot have."""
    known = isinstance(card_id, str) and len(card_id) <= CARD_ID_MAX_LENGTH
    if not known or not re.fullmatch(CARD_ID_PATTERN.strip("^$"), card_id):
        raise InvalidArgument(
            f"a card's id must be 1 to {CARD_ID_MAX_LENGTH} letters, digits or any of _.:/#@+-, "
            f"beginning with a letter or a digit, not {card_id!r:.80}"
        )


def _ids(given: Iterable[str]) -> _Texts:
    """Return each id once, in order. Raises `InvalidArgument` unless they are a list of texts."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidArgument(f"depends_on must be a list of ids, not {given!r:.80}")
    ids = list(given)
    if not all(isinstance(card_id, str) for card_id in ids):
        raise InvalidArgument(f"depends_on must be a list of ids, which are texts, not {ids!r:.80}")
    return list(dict.fromkeys(ids))


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Translate validation errors of a fact to `InvalidArgument`."""
    try:
        try:
            yield
        except ValidationError as error:
            raise InvalidArgument(f"{what}: {explain(error)}") from None
    except RecursionError:  # also while the value is formatted
        raise InvalidArgument(f"{what}: a value is nested too deeply") from None


def _seconds(ttl: timedelta) -> int:
    """Return a time to live in whole seconds; raise `InvalidArgument` for any other value."""
    whole = isinstance(ttl, timedelta) and not ttl % timedelta(seconds=1)
    if not whole or not timedelta(seconds=1) <= ttl <= timedelta(seconds=MAX_TTL_SECONDS):
        raise InvalidArgument(f"ttl must be a timedelta of whole seconds, from one second to 30 days, not {ttl!r}")
    return int(ttl.total_seconds())
