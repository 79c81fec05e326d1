"""`squid backlog`: cards that people and programs claim. `claim` shows the token of a claim, once."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from squid_dagster.cli.backlog.display import (
    card_line,
    fact_values,
    facts_table,
    refusal,
    show_card,
    show_cards,
    stats_lines,
)
from squid_dagster.cli.place import Place, on_journal
from squid_dagster.cli.run.options import LONGEST_SECONDS, json_value, time_option
from squid_dagster.cli.terminal.output import emit
from squid_dagster.limits import CARD_NUMBER, MAX_LEASE

if TYPE_CHECKING:
    from squid_dagster.backlog import Backlog

_Command = TypeVar("_Command", bound=Callable[..., Any])

_NEW_ID = "The card's id: yours to choose, of letters, digits and _.:/#@+-, and never reused."
_STATUSES = ("ready", "claimed", "blocked", "done", "dead_lettered")


@click.group()
def backlog() -> None:
    """Create, claim and complete cards: highest priority first, once all that a card depends on is done."""


def _holder_options(command: _Command) -> _Command:
    """Add the options by which the holder of a claim proves it."""
    text = "The token of the claim. Without one the command is not fenced."
    strict = "Refuse to act without a token."
    command = click.option("--strict", envvar="SQUID_BACKLOG_STRICT", is_flag=True, help=strict, show_envvar=True)(
        command
    )
    return click.option("--token", envvar="SQUID_CLAIM_TOKEN", help=text, show_envvar=True)(command)


_id_option = click.option("--id", "card_id", required=True, help="The card's id.")
_ttl_option = click.option(
    "--ttl",
    type=click.IntRange(1, int(MAX_LEASE.total_seconds())),
    default=900,
    show_default=True,
    help="Seconds that it is held.",
)


@contextmanager
def _opened(place: Place, *, strict: bool = False) -> "Iterator[Backlog]":
    from squid_dagster.backlog import Backlog

    with place.storage() as storage:
        yield Backlog(storage, strict=strict)


# --- creating ---------------------------------------------------------------------------------------------------------


@backlog.command()
@click.option("--id", "card_id", required=True, help=_NEW_ID)
@click.option("--title", required=True)
@click.option("--body")
@click.option("--phase", help="Its board or milestone.")
@click.option(
    "--priority", type=click.IntRange(-CARD_NUMBER, CARD_NUMBER), default=0, show_default=True, help="Higher is sooner."
)
@click.option("--depends-on", multiple=True, help="Cards that must be done first; again and again, or with commas.")
@click.option("--acceptance", metavar="JSON", callback=json_value, help="Criteria: a list of texts, or an object.")
@click.option("--idempotency-key", help="Repeating it gives the first card.")
@click.option("--not-before", metavar="TIME", callback=time_option, help="A time before which it cannot be claimed.")
@click.option("--max-attempts", type=click.IntRange(1, CARD_NUMBER), help="Claims after which it is a dead letter.")
@on_journal
def create(place: Place, as_json: bool, card_id: str, title: str, depends_on: list[str], **fields: Any) -> None:
    """Create a card. One of the same key, or of the same id and content, is given as it is."""
    needed = [name.strip() for names in depends_on for name in names.split(",")]
    with _opened(place) as cards:
        show_card(cards.create(card_id, title, depends_on=needed, **fields), as_json)


@backlog.command()
@click.option("--from", "card_id", required=True, help="The card that depends on the other one.")
@click.option("--to", "depends_on", required=True, help="The card that must be done first.")
@on_journal
def link(place: Place, as_json: bool, card_id: str, depends_on: str) -> None:
    """Link a card to another one that must be done first, unless that closes a cycle."""
    with _opened(place) as cards:
        show_card(cards.link(card_id, depends_on), as_json)


# --- working --------------------------------------------------------------------------------------------------------


@backlog.command()
@click.option("--owner", required=True, help="Who claims.")
@_ttl_option
@click.option("--id", "card_id", help="This card, or none.")
@click.option("--phase", help="A card of this phase, or none.")
@on_journal
def claim(place: Place, as_json: bool, owner: str, ttl: int, card_id: str | None, phase: str | None) -> None:
    """Claim the best card that is ready; null when there is none. The token is shown once."""
    with _opened(place) as cards:
        card = cards.claim(owner, ttl=timedelta(seconds=ttl), card_id=card_id, phase=phase)
        why = "" if card is not None or card_id is None else f": {refusal(cards.get(card_id), phase)}"
    if card is None:
        emit(as_json, None, f"nothing to claim{why}")
    else:
        document = {**card.to_dict(), "claim_token": card.claim_token}
        emit(as_json, document, card_line(card), f"token: {card.claim_token}")


@backlog.command()
@_id_option
@_ttl_option
@_holder_options
@on_journal
def renew(place: Place, as_json: bool, card_id: str, ttl: int, token: str | None, strict: bool) -> None:
    """Renew the claim of a card, from now."""
    with _opened(place, strict=strict) as cards:
        show_card(cards.renew(card_id, ttl=timedelta(seconds=ttl), token=token), as_json)


@backlog.command()
@_id_option
@_holder_options
@on_journal
def complete(place: Place, as_json: bool, card_id: str, token: str | None, strict: bool) -> None:
    """Set a card to done, which ends its claim."""
    with _opened(place, strict=strict) as cards:
        show_card(cards.complete(card_id, token=token), as_json)


@backlog.command()
@_id_option
@click.option("--error", help="What went wrong.")
@click.option(
    "--retry-after", type=click.IntRange(0, LONGEST_SECONDS), default=0, help="Seconds until it is ready again."
)
@click.option("--give-up", is_flag=True, help="Do not try again: make it a dead letter.")
@_holder_options
@on_journal
def fail(
    place: Place,
    as_json: bool,
    card_id: str,
    error: str | None,
    retry_after: int,
    give_up: bool,
    token: str | None,
    strict: bool,
) -> None:
    """Release a claimed card after a failure: ready again, or a dead letter when its attempts are spent."""
    with _opened(place, strict=strict) as cards:
        after = None if give_up else timedelta(seconds=retry_after)
        show_card(cards.fail(card_id, error=error, retry_after=after, token=token), as_json)


@backlog.command()
@_id_option
@click.option("--reason", help="Why it has to wait.")
@_holder_options
@on_journal
def block(place: Place, as_json: bool, card_id: str, reason: str | None, token: str | None, strict: bool) -> None:
    """Block a card: it cannot be claimed."""
    with _opened(place, strict=strict) as cards:
        show_card(cards.block(card_id, reason=reason, token=token), as_json)


@backlog.command()
@_id_option
@on_journal
def unblock(place: Place, as_json: bool, card_id: str) -> None:
    """Reset a blocked card to ready."""
    with _opened(place) as cards:
        show_card(cards.unblock(card_id), as_json)


@backlog.command()
@click.option("--id", "card_id", help="Free this card, also if it is held, blocked or a dead letter.")
@on_journal
def reclaim(place: Place, as_json: bool, card_id: str | None) -> None:
    """Release claims that ran out, or free one card."""
    with _opened(place) as cards:
        show_cards(cards.reclaim(card_id), as_json, "nothing to release")


# --- reading --------------------------------------------------------------------------------------------------------


@backlog.command("list")
@click.option("--status", type=click.Choice(_STATUSES))
@click.option("--phase")
@click.option("--ready-only", is_flag=True, help="Only cards that are ready and wait for no other card.")
@click.option("--limit", type=click.IntRange(1, 10**9))
@on_journal
def list_(place: Place, as_json: bool, **wanted: Any) -> None:
    """List cards in the order of claims."""
    with _opened(place) as cards:
        show_cards(cards.list(**wanted), as_json, "no cards")


@backlog.command()
@on_journal
def stats(place: Place, as_json: bool) -> None:
    """Count cards by status, and claims that ran out."""
    with _opened(place) as cards:
        numbers = cards.stats()
    emit(as_json, numbers.to_dict(), *stats_lines(numbers))


@backlog.command()
@_id_option
@on_journal
def history(place: Place, as_json: bool, card_id: str) -> None:
    """Show all facts about a card."""
    with _opened(place) as cards:
        facts = [fact_values(entry) for entry in cards.history(card_id)]
    emit(as_json, facts, facts_table(facts))


@backlog.command()
@on_journal
def rebuild(place: Place, as_json: bool) -> None:
    """Rebuild the table of cards from the facts."""
    with _opened(place) as cards:
        done = cards.rebuild()
    document = {"facts": done.facts, "cards": done.cards, "anomalies": done.anomalies}
    text = f"{done.cards} cards from {done.facts} facts, {done.anomalies} of which no rule lets through"
    emit(as_json, document, text)
