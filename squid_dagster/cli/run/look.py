"""`squid run list|inspect|explain|graph|timeline`: looking at runs, and changing nothing."""

from contextlib import nullcontext
from datetime import datetime
from typing import Any

import click

from squid_dagster.cli.place import Place, on_journal, with_workflows
from squid_dagster.cli.run.display import (
    explanation_facts,
    explanation_shown,
    graph_shown,
    page_shown,
    snapshot_shown,
    timeline_shown,
)
from squid_dagster.cli.run.options import status_option, time_option
from squid_dagster.cli.run.session import looking
from squid_dagster.cli.terminal.output import emit, say
from squid_dagster.cli.terminal.streams import own_stdout, stdout

_STATUS = (
    "One status, or several with commas: new, started, running, idle, paused, quarantined, completed, failed, "
    "cancelled; or held, by the workflows of -m."
)
_revision = click.option("--at-revision", type=click.IntRange(1), help="As it was at this revision of its thread.")


@click.command("list")
@click.option("--workflow")
@click.option("--status", metavar="STATUS", callback=status_option, help=_STATUS)
@click.option("--queue")
@click.option("--trigger")
@click.option("--parent", metavar="RUN_ID", help="Children of this run.")
@click.option("--version", help="Of the workflow.")
@click.option("--started-after", metavar="TIME", callback=time_option, help="Such as 2026-11-16T18:00:00Z.")
@click.option("--started-before", metavar="TIME", callback=time_option)
@click.option("--open", "open_only", is_flag=True, help="Only runs that have not ended.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True)
@click.option("--cursor", help="Where the next page begins, as the last page told.")
@with_workflows
def list_(
    place: Place,
    as_json: bool,
    status: tuple[str, ...] | None,
    parent: str | None,
    version: str | None,
    started_after: datetime | None,
    started_before: datetime | None,
    **wanted: Any,
) -> None:
    """List runs, newest first. Every filter that is given must fit; which runs are held is told by -m."""
    with looking(place) as journal:
        page = journal.list_runs(
            status=status,
            parent_run_id=parent,
            definition_version=version,
            started_after=started_after,
            started_before=started_before,
            **wanted,
        )
    emit(as_json, page.to_dict(), *page_shown(page))


@click.command()
@click.argument("run_id")
@_revision
@click.option("--history", is_flag=True, help="With every fact of the run.")
@with_workflows
def inspect(place: Place, as_json: bool, run_id: str, at_revision: int | None, history: bool) -> None:
    """Show a run, now or as it was at a revision. What it took and gave is redacted."""
    with looking(place) as journal:
        found = journal.inspect(run_id, at_revision, history)
    emit(as_json, found.to_dict(), *snapshot_shown(found))


@click.command()
@click.argument("run_id")
@with_workflows
def explain(place: Place, as_json: bool, run_id: str) -> None:
    """Say why a run is where it is, which facts show that, and what can be done."""
    with looking(place) as journal:
        found = journal.explain(run_id)
    emit(as_json, explanation_facts(found, place), *explanation_shown(found, place))


@click.command()
@click.argument("run_id")
@_revision
@click.option("--format", "form", type=click.Choice(["tree", "mermaid", "svg", "json"]), help="A tree if not given.")
@with_workflows
def graph(place: Place, as_json: bool, run_id: str, at_revision: int | None, form: str | None) -> None:
    """Show a run's steps, and which way it went; with -m also the ways that it did not go."""
    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json and --format {form} do not go together: choose one")
    # A picture or a document is for programs, too, whatever modules print when they are loaded.
    with own_stdout() if form is not None else nullcontext(), looking(place) as journal:
        found = journal.graph(run_id, at_revision)
    match "json" if as_json else form:
        case "json":
            emit(True, found.to_dict())
        case "mermaid":
            click.echo(found.to_mermaid(), nl=False, file=stdout())
        case "svg":
            click.echo(found.to_svg(), file=stdout())
        case _:
            say(graph_shown(found))


@click.command()
@click.argument("run_id")
@_revision
@on_journal
def timeline(place: Place, as_json: bool, run_id: str, at_revision: int | None) -> None:
    """Tell what happened to a run, in order, refused facts too."""
    with looking(place) as journal:
        events = journal.timeline(run_id, at_revision)
    emit(as_json, {"run_id": run_id, "events": [each.to_dict() for each in events]}, *timeline_shown(events))
