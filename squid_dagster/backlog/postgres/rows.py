"""Cards to rows and back: how a card stands in the table of the backlog, column by column. Pure."""

from collections.abc import Iterable
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from pydantic_core import to_json

from squid_dagster.protocol.backlog.card import Card, CardStatus

Row = dict[str, Any]

_COLUMNS = tuple(field.name for field in fields(Card) if field.name != "claim_token")
_TIMES = ("claimed_at", "created_at", "updated_at", "not_before")


def card_row(card: Card) -> Row:
    """Give the card's row: what it has, and what claims are ordered by."""
    row: Row = {name: getattr(card, name) for name in _COLUMNS}
    return {**row, "queued_at": card.queued_at, "claim_expires_at": card.claim_expires_at}


def card_from_row(row: Row) -> Card:
    """Read a card from its row."""
    values = {name: row[name] for name in _COLUMNS}
    values |= {name: _time(row[name]) for name in _TIMES}
    values |= {"status": CardStatus(row["status"]), "depends_on": tuple(row["depends_on"])}
    return Card(**values)


def cards_json(cards: Iterable[Card]) -> str | None:
    """Write cards as the JSON that the database takes; None for none."""
    found = [card_row(card) for card in cards]
    return to_json(found).decode() if found else None


def normalized_row(row: Row) -> Row:
    """Give a row as it is read, in the form in which `card_row` makes one, so that both can be compared."""
    times = {name: _time(row[name]) for name in (*_TIMES, "queued_at", "claim_expires_at")}
    return {**row, **times, "status": CardStatus(row["status"]), "depends_on": tuple(row["depends_on"])}


def _time(value: str | None) -> datetime | None:
    return datetime.fromisoformat(value).astimezone(UTC) if value is not None else None
