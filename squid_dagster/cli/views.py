"""`squid views`: compare the live views with the facts, or rebuild them."""

import click

from squid_dagster.cli.app import REFUSED
from squid_dagster.cli.place import Place, on_journal
from squid_dagster.cli.terminal.output import emit, progress, table


@click.group()
def views() -> None:
    """Check the live views, or rebuild them from the facts."""


@views.command()
@on_journal
def check(place: Place, as_json: bool) -> int:
    """Compare every row of the live views with the facts. Exit code 1 if any differs."""
    from squid_dagster.backlog.postgres.rebuild import differences
    from squid_dagster.journal.postgres.views.verification import check_views

    with place.storage() as storage, progress("comparing") as report:
        rows = [{"run_id": row.run_id, "detail": row.detail} for row in check_views(storage, report)]
        rows += [{"run_id": None, "detail": f"backlog: {difference}"} for difference in differences(storage)]
    document = {"equal": not rows, "differences": rows}
    if not rows:
        emit(as_json, document, "The views say what the facts say.")
        return 0
    shown = table(("run", "what differs"), ((row["run_id"], row["detail"]) for row in rows))
    command = place.command_line("squid views rebuild")
    emit(as_json, document, shown, f"{len(rows)} rows differ: `{command}` makes them anew.")
    return REFUSED


@views.command()
@on_journal
def rebuild(place: Place, as_json: bool) -> None:
    """Rebuild all live views from the facts, while others write."""
    from squid_dagster.backlog.postgres.rebuild import rebuild as rebuild_cards
    from squid_dagster.journal import rebuild_views

    with place.storage() as storage, progress("folding") as report:
        done, cards = rebuild_views(storage, report), rebuild_cards(storage)
    document = {
        "cut": done.cut,
        "runs": done.runs,
        "entries": done.entries,
        "tail_runs": done.tail_runs,
        "cards": cards.cards,
    }
    emit(as_json, document, f"rebuilt from {done.entries} facts: {done.runs} runs, {cards.cards} cards")
