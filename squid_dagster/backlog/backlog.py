"""`Backlog`: the one object to create, claim, finish and look at cards with."""

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
# Inside of the class, `list` is a method.
_Cards: TypeAlias = list[Card]
_Entries: TypeAlias = list[Entry]
_Texts: TypeAlias = list[str]
_MOST = 2**63 - 1  # a limit that Postgres can read
_SOMETIME = datetime(1970, 1, 1, tzinfo=UTC)  # a draft has no time yet


@checks_arguments
class Backlog:
    """Cards on a storage. Safe between threads, processes and machines: the storage decides.

    Commands on a claimed card take the claim's `token`: with one, only its holder is let through. Without one they act
    on the card as it is, and the fact reads `unfenced`; with `strict`, they are refused.
    """

    def __init__(self, storage: Storage, *, strict: bool = False) -> None:
        """Bind to a storage."""
        self._store: CardStore = (
            PostgresCardStore(storage) if isinstance(storage, PostgresStorage) else FoldCardStore(storage)
        )
        self.strict = strict

    # --- making -----------------------------------------------------------------------------------------------------

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
        """Create a card, and give it. One that is there already is given as it is; if it was blocked, it is ready then.

        That is the card of the same `idempotency_key`, or the one of the same id and the same content.

        Raises:
            InvalidArgument: something that a card cannot have; it is named.
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
            draft = CardCreated(**values, occurred_at=_SOMETIME)
        if idempotency_key is not None:
            check_text(idempotency_key, "idempotency_key", CARD_NAME_MAX_LENGTH)
        wanted = CardSelection((card_id, *draft.depends_on), idempotency_key, links=bool(draft.depends_on))
        found = card_decisions.known_card(self._store.decide(wanted, card_decisions.create(draft)), draft)
        assert found is not None  # noqa: S101  it was there, or was made
        return found

    def link(self, card_id: str, depends_on: str) -> Card:
        """Let a card depend on another one, too; give the card. Repeating it is no error.

        Raises:
            InvalidArgument: both are the same card.
            NotFound: one of them does not exist.
            InvalidTransition: it would close a cycle, or the card is done.
        """
        wanted = CardSelection((_id(card_id), _id(depends_on)), closure_of=depends_on, links=True)
        return self._store.decide(wanted, card_decisions.link(card_id, depends_on)).cards[card_id]

    # --- working ----------------------------------------------------------------------------------------------------

    def claim(
        self, owner: str, *, ttl: timedelta = DEFAULT_TTL, card_id: str | None = None, phase: str | None = None
    ) -> Card | None:
        """Claim the best card that is ready, of that phase, or the one of that id; None when there is none.

        The best is of the highest priority, and the oldest of these. Claims that ran out count as ready. The card that
        is given has the claim's token, `claim_token`, which is written down nowhere.

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
        wanted = None if card_id is None else _id(card_id)
        card = self._store.claim(ClaimRequest(owner, _seconds(ttl), hash_token(token), wanted, phase))
        return None if card is None else _with_token(card, token)

    def renew(self, card_id: str, *, ttl: timedelta = DEFAULT_TTL, token: str | None = None) -> Card:
        """Let a claim last until `ttl` from now; it never gets shorter.

        Raises:
            StaleClaim, ExpiredClaim: the token's claim is over: stop working.
            NotFound, InvalidTransition, InvalidArgument: no such card; nobody holds it; a bad time or token.
        """
        seconds = timedelta(seconds=_seconds(ttl))
        return self._change(card_id, card_decisions.renew(card_id, self._fence(token), seconds))

    def complete(self, card_id: str, *, token: str | None = None) -> Card:
        """Set a card to done, which ends its claim. Repeating it is no error.

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
        """Give a claimed card back after a failure, ready again `retry_after` from now.

        When that is None, or the card was claimed `max_attempts` times, it is dead-lettered: its status says which.

        Raises:
            StaleClaim, ExpiredClaim: the token's claim is over: nothing was written.
            NotFound, InvalidTransition, InvalidArgument: no such card; nobody holds it; a bad time, error or token.
        """
        known = retry_after is None or isinstance(retry_after, timedelta)
        if not known or not timedelta(0) <= (retry_after or timedelta(0)) <= timedelta(days=3650):
            raise InvalidArgument(f"retry_after must be a timedelta from zero to ten years, not {retry_after!r}")
        told = redacted_error({"message": error} if isinstance(error, str) else error)
        return self._change(card_id, card_decisions.fail(card_id, self._fence(token), told, retry_after))

    def block(self, card_id: str, *, reason: str | None = None, token: str | None = None) -> Card:
        """Park a card, which ends its claim. Repeating it is no error.

        Raises:
            StaleClaim, ExpiredClaim: the token's claim is over: nothing was written.
            NotFound, InvalidTransition, InvalidArgument: no such card; it is done or dead; a bad reason or token.
        """
        if reason is not None:
            check_text(reason, "reason", 10_000)
            reason = redacted_error(reason)
        return self._change(card_id, card_decisions.block(card_id, self._fence(token), reason))

    def unblock(self, card_id: str) -> Card:
        """Make a parked card ready. Raises `NotFound`, or `InvalidTransition` when it is claimed, done or dead."""
        return self._change(card_id, card_decisions.unblock(card_id))

    def reclaim(self, card_id: str | None = None) -> _Cards:
        """Release all claims that ran out; or free the card of that id, whoever holds it, and if it is blocked or dead.

        Gives the cards that were freed; one whose attempts are spent is dead-lettered when its claim ran out.

        Raises:
            NotFound: there is no card of that id.
            InvalidTransition: it is done.
        """
        if card_id is None:
            return self._store.release_expired()
        return [self._change(card_id, card_decisions.reclaim(card_id))]

    # --- looking ----------------------------------------------------------------------------------------------------

    def get(self, card_id: str) -> Card:
        """Give a card. Raises `NotFound`."""
        found = self._store.find(_id(card_id))
        if found is None:
            raise card_decisions.no_card(card_id)
        return found

    def stats(self) -> Stats:
        """Count cards by status, those that could be claimed, and claims that ran out; tell how old the oldest is."""
        return self._store.stats()

    def history(self, card_id: str) -> _Entries:
        """Give all facts about a card, in order. Raises `NotFound` when there is none."""
        found = self._store.history(_id(card_id))
        if not found:
            raise card_decisions.no_card(card_id)
        return found

    def rebuild(self) -> CardRebuild:
        """Make the cards anew from the facts, while others go on. Raises `StorageUnavailable` as `rebuild_views`."""
        return self._store.rebuild()

    def differences(self) -> _Texts:
        """Say which cards differ from what the facts tell of them, and in what; nothing, if all is well."""
        return self._store.differences()

    def list(
        self,
        *,
        status: CardStatus | str | None = None,
        phase: str | None = None,
        ready_only: bool = False,
        limit: int | None = None,
    ) -> _Cards:
        """List cards in the order of claims; with `ready_only` those that are ready and wait for no other card.

        Raises:
            InvalidArgument: no such status, or a bad phase or limit.
        """
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= _MOST):
            raise InvalidArgument(f"limit must be a whole number from 1 on, not {limit!r:.80}")
        if phase is not None:
            check_text(phase, "phase", CARD_NAME_MAX_LENGTH)
        try:
            wanted = None if status is None else CardStatus(status)
        except ValueError:
            known = ", ".join(each.value for each in CardStatus)
            raise InvalidArgument(f"{status!r} is no status of a card: take one of {known}") from None
        return self._store.select(CardFilter(wanted, phase, ready_only, limit))

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
    """Give the id if a card may have it: what no card can have, no card has."""
    check_text(card_id, "a card's id", CARD_ID_MAX_LENGTH)
    return card_id


def _check_new_id(card_id: str) -> None:
    """Raise `InvalidArgument` for an id that no card may be given."""
    known = isinstance(card_id, str) and len(card_id) <= CARD_ID_MAX_LENGTH
    if not known or not re.fullmatch(CARD_ID_PATTERN.strip("^$"), card_id):
        raise InvalidArgument(
            f"a card's id must be 1 to {CARD_ID_MAX_LENGTH} letters, digits or any of _.:/#@+-, "
            f"beginning with a letter or a digit, not {card_id!r:.80}"
        )


def _ids(given: Iterable[str]) -> _Texts:
    """Give each id once, in order. Raises `InvalidArgument` for what is no list of texts."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidArgument(f"depends_on must be a list of ids, not {given!r:.80}")
    found = list(given)
    if not all(isinstance(each, str) for each in found):
        raise InvalidArgument(f"depends_on must be a list of ids, which are texts, not {found!r:.80}")
    return list(dict.fromkeys(found))


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Say what a fact cannot have. Raises `InvalidArgument`."""
    try:
        try:
            yield
        except ValidationError as error:
            raise InvalidArgument(f"{what}: {explain(error)}") from None
    except RecursionError:  # also where the value is to be shown
        raise InvalidArgument(f"{what}: a value is nested too deeply") from None


def _seconds(ttl: timedelta) -> int:
    """Give a time to live in whole seconds; raise `InvalidArgument` for one that is none."""
    whole = isinstance(ttl, timedelta) and not ttl % timedelta(seconds=1)
    if not whole or not timedelta(seconds=1) <= ttl <= timedelta(seconds=MAX_TTL_SECONDS):
        raise InvalidArgument(f"ttl must be a timedelta of whole seconds, from one second to 30 days, not {ttl!r}")
    return int(ttl.total_seconds())


def _with_token(card: Card, token: str) -> Card:
    return replace(card, claim_token=token)
