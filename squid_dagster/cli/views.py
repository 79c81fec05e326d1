"""`squid views`: the live views, which are caches of the facts. Compare them, or make them anew."""

import click

from squid_dagster.cli.app import REFUSED
from squid_dagster.cli.place import Place, on_journal
from squid_dagster.cli.terminal.output import emit, progress, table
from squid_dagster.cli.terminal.pasted_command import pasted


@click.group()
def views() -> None:
    """Check the live views, or make them anew from the facts."""


@views.command()
@on_journal
def check(place: Place, as_json: bool) -> int:
    """Compare every row of the live views with the facts. Exit code 1 if any differs."""
    from squid_dagster.backlog.postgres.rebuild import differences
    from squid_dagster.journal.postgres.views.verification import check_views

    with place.storage() as storage, progress("comparing") as tell:
        found = [{"run_id": each.run_id, "detail": each.detail} for each in check_views(storage, tell)]
        found += [{"run_id": None, "detail": f"backlog: {each}"} for each in differences(storage)]
    facts = {"equal": not found, "differences": found}
    if not found:
        emit(as_json, facts, "The views say what the facts say.")
        return 0
    rows = table(("run", "what differs"), ((each["run_id"], each["detail"]) for each in found))
    emit(as_json, facts, rows, f"{len(found)} rows differ: `{pasted('squid views rebuild', place)}` makes them anew.")
    return REFUSED


@views.command()
@on_journal
def rebuild(place: Place, as_json: bool) -> None:
    """Make all live views anew from the facts, while others write."""
    from squid_dagster.backlog.postgres.rebuild import rebuild as rebuild_cards
    from squid_dagster.journal import rebuild_views

    with place.storage() as storage, progress("folding") as tell:
        done, cards = rebuild_views(storage, tell), rebuild_cards(storage)
    facts = {
        "cut": done.cut,
        "runs": done.runs,
        "entries": done.entries,
        "tail_runs": done.tail_runs,
        "cards": cards.cards,
    }
    emit(as_json, facts, f"rebuilt from {done.entries} facts: {done.runs} runs, {cards.cards} cards")
