"""Cards and facts in the output of `squid backlog`: JSON with stable keys, or lines and tables for people."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from squid_dagster.cli.terminal.output import emit, show, table

if TYPE_CHECKING:
    from squid_dagster.backlog import Card, Stats
    from squid_dagster.cli.terminal.tables import TerminalTable
    from squid_dagster.protocol.entries import Entry


def show_card(card: "Card", as_json: bool) -> None:
    """Print one card."""
    emit(as_json, card.to_dict(), card_line(card))


def show_cards(cards: "Sequence[Card]", as_json: bool, none: str) -> None:
    """Print cards as a table, or the text `none` if there are none."""
    emit(as_json, [card.to_dict() for card in cards], _table(cards) if cards else none)


def card_line(card: "Card") -> str:
    """Describe a card in one line."""
    held = f", held by {card.claim_owner} until {show(card.claim_expires_at)}" if card.claim_owner is not None else ""
    waits = f", waits for {card.open_dependencies} of {', '.join(card.depends_on)}" if card.open_dependencies else ""
    return f"{card.id}: {card.title} ({card.status.value}, priority {card.priority}{held}{waits})"


def refusal(card: "Card", phase: str | None) -> str:
    """Explain why a card could not be claimed."""
    if phase is not None and card.phase != phase:
        return f"{card.id} is of {'no phase' if card.phase is None else f'phase {card.phase}'}"
    match card.status.value:
        case "ready" if card.open_dependencies:
            return f"{card.id} waits for {card.open_dependencies} of {', '.join(card.depends_on)}"
        case "ready" if card.not_before is not None:
            return f"{card.id} is not to be claimed before {show(card.not_before)}"
        case "ready":
            return f"{card.id} has become ready only now: try again"
        case "claimed":
            return f"{card.id} is held by {card.claim_owner} until {show(card.claim_expires_at)}"
        case "dead_lettered":
            return f"{card.id} is a dead letter: `squid backlog reclaim --id {card.id}` makes it ready"
        case "blocked":
            return f"{card.id} is blocked: `squid backlog unblock --id {card.id}` makes it ready"
        case status:
            return f"{card.id} is {status}"


def _table(cards: "Sequence[Card]") -> "TerminalTable":
    rows = [
        (
            card.id,
            card.status.value,
            card.priority,
            card.phase,
            card.attempts,
            card.claim_owner,
            card.open_dependencies or None,
            card.title,
        )
        for card in cards
    ]
    headings = ("id", "status", "priority", "phase", "attempts", "owner", "waits for", "title")
    return table(headings, rows, first_to_go=("attempts", "priority", "phase", "waits for"))


def stats_lines(stats: "Stats") -> Iterator[str]:
    """Format the numbers in a few lines."""
    yield ", ".join(f"{count} {status}" for status, count in stats.counts.items())
    yield f"claimable: {stats.claimable}"
    if stats.oldest_ready_age_seconds is not None:
        yield f"oldest ready: {timedelta(seconds=round(stats.oldest_ready_age_seconds))} ago"
    yield f"expired claims: {stats.expired_claims}"


def fact_values(entry: "Entry") -> dict[str, Any]:
    """Return an entry as JSON values, without the hash of a token, and without secrets."""
    from squid_dagster.inspection.display import shown
    from squid_dagster.protocol.entries import MalformedFact, UnknownFact

    fact: Any = entry.fact
    if isinstance(fact, MalformedFact | UnknownFact):
        data: Any = {"reason": fact.reason} if isinstance(fact, MalformedFact) else fact.data
    else:
        data = fact.model_dump(mode="json", exclude={"type", "occurred_at", "claim_token_hash"}, exclude_none=True)
    return {
        "seq": entry.seq,
        "position": entry.position,
        "type": fact.type,
        "occurred_at": fact.occurred_at.isoformat(),
        "data": shown(data),
    }


def facts_table(facts: "Sequence[dict[str, Any]]") -> "TerminalTable":
    """Return facts, as `fact_values` returns them, as a table."""

    def fields(data: dict[str, Any]) -> str:
        return ", ".join(f"{name}={value}" for name, value in data.items() if name != "card_id")

    rows = [
        (fact["seq"], datetime.fromisoformat(fact["occurred_at"]), fact["type"], fields(fact["data"])) for fact in facts
    ]
    return table(("seq", "at", "fact", "said"), rows)
