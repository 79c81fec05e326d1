"""Cards to rows of the backlog's table, and back. Pure."""

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
    """Return the card's row: its fields, and the times that claims are ordered by."""
    row: Row = {name: getattr(card, name) for name in _COLUMNS}
    return {**row, "queued_at": card.queued_at, "claim_expires_at": card.claim_expires_at}


def card_from_row(row: Row) -> Card:
    """Read a card from its row."""
    values = {name: row[name] for name in _COLUMNS}
    values |= {name: _time(row[name]) for name in _TIMES}
    values |= {"status": CardStatus(row["status"]), "depends_on": tuple(row["depends_on"])}
    return Card(**values)


def cards_json(cards: Iterable[Card]) -> str | None:
    """Return the rows of cards as JSON for the database; None if there is no card."""
    rows = [card_row(card) for card in cards]
    return to_json(rows).decode() if rows else None


def normalized_row(row: Row) -> Row:
    """Convert a row from the database to the form of `card_row`, to compare both."""
    times = {name: _time(row[name]) for name in (*_TIMES, "queued_at", "claim_expires_at")}
    return {**row, **times, "status": CardStatus(row["status"]), "depends_on": tuple(row["depends_on"])}


def _time(value: str | None) -> datetime | None:
    return datetime.fromisoformat(value).astimezone(UTC) if value is not None else None
