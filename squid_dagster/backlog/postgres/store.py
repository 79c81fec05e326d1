"""Cards on Postgres: a table that is changed in the transaction that appends the facts. A claim is one round trip."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, LiteralString
from uuid import uuid4

from squid_dagster.backlog import card_decisions
from squid_dagster.backlog.card_store import CardFilter, CardRebuild, CardSelection, ClaimRequest, Decision, Stats
from squid_dagster.backlog.postgres.rebuild import differences, rebuild
from squid_dagster.backlog.postgres.rows import card_from_row, cards_json
from squid_dagster.journal.contract.storage import Append, check_appends
from squid_dagster.journal.postgres.connection.failures import retry_if_safe
from squid_dagster.journal.postgres.connection.message import Value, execute, json_of
from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.connection.session_settings import BEGIN
from squid_dagster.journal.postgres.entry_reader import ENTRY, read_entries
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.transaction import OneCommit
from squid_dagster.journal.postgres.views.row_changes import RowChanges
from squid_dagster.protocol.backlog.card import Card, CardStatus
from squid_dagster.protocol.backlog.projection import BacklogProjection
from squid_dagster.protocol.entries import Entry
from squid_dagster.protocol.facts.backlog import CardFactType
from squid_dagster.protocol.threads import BACKLOG_THREAD

_BEGIN_AND_LOCK: LiteralString = (
    BEGIN
    + """
    SELECT {schema}.lock_cards(%s::int, %s::text[], %s::text, %s::text, %s::boolean, %s::boolean)"""
)
_PUT: LiteralString = "SELECT {schema}.put_cards(%s::json, %s::json, %s::text[])"
_CLAIM: LiteralString = """SELECT {schema}.claim_card(%s::uuid, %s::text, %s::int, %s::text, %s::text, %s::text,
    %s::timestamptz)"""
_RELEASE: LiteralString = "SELECT {schema}.release_cards(%s::uuid, %s::int, %s::timestamptz)"
_RELEASED_AT_ONCE = 500
# backlog_pkey
_FIND: LiteralString = "SELECT to_json(b) FROM {schema}.backlog b WHERE id = %s"
# backlog_claimable or backlog_phase, backlog_status; without a filter, everything
_SELECT: LiteralString = """SELECT to_json(b) FROM {schema}.backlog b
    WHERE (%(status)s::text IS NULL OR status = %(status)s) AND (%(phase)s::text IS NULL OR phase = %(phase)s)
    ORDER BY priority DESC, queued_at, id LIMIT %(limit)s"""
_SELECT_READY: LiteralString = """SELECT to_json(b) FROM {schema}.backlog b
    WHERE status = 'ready' AND open_dependencies = 0 AND (%(phase)s::text IS NULL OR phase = %(phase)s)
      AND (%(status)s::text IS NULL OR status = %(status)s)
    ORDER BY priority DESC, queued_at, id LIMIT %(limit)s"""
# backlog_status, backlog_claimable, backlog_leases
_STATS: LiteralString = """WITH moment AS (SELECT coalesce(%(now)s::timestamptz, clock_timestamp()) AS now)
    SELECT (SELECT json_object_agg(status, n) FROM (
                SELECT status, count(*) AS n FROM {schema}.backlog GROUP BY status) s),
           (SELECT count(*) FROM {schema}.backlog
             WHERE status = 'ready' AND open_dependencies = 0 AND queued_at <= (SELECT now FROM moment)),
           (SELECT extract(epoch FROM (SELECT now FROM moment) - min(created_at))::float8 FROM {schema}.backlog
             WHERE status = 'ready'),
           (SELECT count(*) FROM {schema}.backlog
             WHERE status = 'claimed' AND claim_expires_at <= (SELECT now FROM moment))"""
# journal_entries_card
_HISTORY: LiteralString = ENTRY + "WHERE thread = 'squid:backlog:cards' AND data->>'card_id' = %s ORDER BY seq"


class PostgresCardStore:
    """`CardStore` on a `PostgresStorage`."""

    def __init__(self, storage: PostgresStorage) -> None:
        """Bind to a storage."""
        self._storage = storage

    def decide(self, selection: CardSelection, decision: Decision) -> BacklogProjection:
        """Lock cards and write the facts of a decision, as the contract says."""
        commit = OneCommit[BacklogProjection]()
        return retry_if_safe(lambda: self._decide_once(selection, decision, commit))

    def _decide_once(
        self, selection: CardSelection, decision: Decision, commit: OneCommit[BacklogProjection]
    ) -> BacklogProjection:
        storage = self._storage
        with storage.connection() as connection:
            answer = self._lock(connection, selection)
            transaction = storage.join_transaction(connection)
            if commit.is_made(transaction):
                return commit.answer
            now = storage.observe_db_time(answer["now"])
            at_hand = BacklogProjection.of(map(card_from_row, answer["cards"] or ()), answer["edges"])
            known = set(at_hand.cards)
            facts = list(decision(at_hand, now))
            if not facts:
                return at_hand
            verified = check_appends([Append(BACKLOG_THREAD, facts)], storage.max_fact_bytes)
            for fact in facts:
                at_hand.follow(fact)
            connection.execute(storage.sql(_PUT), _changes(at_hand, known, facts))
            commit.note(at_hand)  # not before: only here does a new card wait for an earlier try that still commits
            transaction.write(verified, RowChanges(), commit.id)
            return at_hand

    def _lock(self, connection: PgConnection, selection: CardSelection) -> Any:
        hold = int(self._storage.hold / timedelta(milliseconds=1))
        values = (hold, list(selection.ids), *selection[1:])
        return json_of(execute(connection, self._storage.sql(_BEGIN_AND_LOCK), values)[-1])

    def claim(self, request: ClaimRequest) -> Card | None:
        """Claim one card, as the contract says."""
        values = (uuid4(), *request, self._now())
        answer = self._call(_CLAIM, lambda: values)
        if not answer["known"]:
            raise card_decisions.no_card(request.card_id or "")
        return card_from_row(answer["card"]) if answer["card"] is not None else None

    def release_expired(self) -> list[Card]:
        """Release all claims that ran out, some hundred in one commit."""
        released: list[Card] = []
        # Each call is a commit of its own: it does not return what an earlier one has released.
        while rows := self._call(_RELEASE, lambda: (uuid4(), _RELEASED_AT_ONCE, self._now())):
            released += map(card_from_row, rows)
        return released

    def find(self, card_id: str) -> Card | None:
        """Return a card, or None."""
        return next(iter(self._cards(_FIND, card_id)), None)

    def select(self, wanted: CardFilter) -> list[Card]:
        """Return cards in claim order."""
        status = None if wanted.status is None else wanted.status.value
        values = {"status": status, "phase": wanted.phase, "limit": wanted.limit}
        return self._cards(_SELECT_READY if wanted.ready_only else _SELECT, values)

    def stats(self) -> Stats:
        """Count cards by status, claimable cards and expired claims."""
        by_status, claimable, age, expired = self._rows(_STATS, {"now": self._now()})[0]
        counts: dict[str, int] = dict.fromkeys((status.value for status in CardStatus), 0) | (by_status or {})
        return Stats(counts, claimable, age, expired)

    def history(self, card_id: str) -> list[Entry]:
        """Return all facts about a card, in order."""
        return read_entries(self._rows(_HISTORY, card_id))

    def rebuild(self) -> CardRebuild:
        """Rebuild the table from the facts while writers continue."""
        return rebuild(self._storage)

    def differences(self) -> list[str]:
        """Compare the table with the facts, as of one snapshot."""
        return differences(self._storage)

    def _now(self) -> datetime | None:
        return self._storage.clock.now() if self._storage.clock is not None else None

    def _cards(self, text: LiteralString, *values: object) -> list[Card]:
        return [card_from_row(row[0]) for row in self._rows(text, *values)]

    def _rows(self, text: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        given = values[0] if len(values) == 1 and isinstance(values[0], dict) else values

        def read() -> list[tuple[Any, ...]]:
            with self._storage.connection() as connection:
                return connection.execute(self._storage.sql(text), given).fetchall()

        return retry_if_safe(read)

    def _call(self, text: LiteralString, values: Callable[[], tuple[Value, ...]]) -> Any:
        """Call a function that is safe to repeat, and return its answer."""

        def call() -> Any:
            with self._storage.connection() as connection:
                return json_of(execute(connection, self._storage.sql(BEGIN + text + "; COMMIT"), values())[-2])

        return retry_if_safe(call)


def _changes(at_hand: BacklogProjection, known: set[str], facts: Iterable[CardFactType]) -> tuple[object, ...]:
    """Return the arguments of `put_cards`."""
    changed = sorted(at_hand.changed)
    done = [fact.card_id for fact in facts if fact.type == "card_completed"]
    new = cards_json(at_hand.cards[card_id] for card_id in changed if card_id not in known)
    return new, cards_json(at_hand.cards[card_id] for card_id in changed if card_id in known), done or None
