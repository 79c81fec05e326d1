"""`squid run list|inspect|explain|graph|timeline`: show runs, and change nothing."""

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
from squid_dagster.cli.run.session import open_squid
from squid_dagster.cli.terminal.output import emit, say
from squid_dagster.cli.terminal.streams import own_stdout, stdout

_STATUS = (
    "One status, or several with commas: new, started, running, idle, paused, quarantined, completed, failed, "
    "cancelled; or held, by the workflows of -m."
)


def _at_a_moment(command: Any) -> Any:
    """Add `--at-revision` and `--at`."""
    at_time, at_revision = (
        "As it was at this time, such as 2026-11-16T18:00:00Z.",
        "As it was at this revision of its thread.",
    )
    placed = click.option("--at", metavar="TIME", callback=time_option, help=at_time)(command)
    return click.option("--at-revision", type=click.IntRange(1), help=at_revision)(placed)


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
    with open_squid(place) as squid:
        page = squid.list_runs(
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
@_at_a_moment
@click.option("--history", is_flag=True, help="With every fact of the run.")
@with_workflows
def inspect(place: Place, as_json: bool, run_id: str, history: bool, **moment: Any) -> None:
    """Show a run, now or as it was at a revision or a time. What it took and gave is redacted."""
    with open_squid(place) as squid:
        snapshot = squid.inspect_run(run_id, include_history=history, **moment)
    emit(as_json, snapshot.to_dict(), *snapshot_shown(snapshot))


@click.command()
@click.argument("run_id")
@_at_a_moment
@with_workflows
def explain(place: Place, as_json: bool, run_id: str, **moment: Any) -> None:
    """Explain why a run is where it is, which facts show that, and what can be done; or why it was there.

    Of the past, no worker and no pause of a queue is known, and nothing can be done.
    """
    with open_squid(place) as squid:
        explanation = squid.explain_run(run_id, **moment)
    emit(as_json, explanation_facts(explanation, place), *explanation_shown(explanation, place))


@click.command()
@click.argument("run_id")
@_at_a_moment
@click.option("--format", "form", type=click.Choice(["tree", "mermaid", "svg", "json"]), help="A tree if not given.")
@with_workflows
def graph(place: Place, as_json: bool, run_id: str, form: str | None, **moment: Any) -> None:
    """Show a run's steps, and which way it went; with -m also the ways that it did not go."""
    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json and --format {form} do not go together: choose one")
    # A picture or a document is for programs, too, whatever modules print when they are loaded.
    with own_stdout() if form is not None else nullcontext(), open_squid(place) as squid:
        drawn = squid.inspect_run_graph(run_id, **moment)
    match "json" if as_json else form:
        case "json":
            emit(True, drawn.to_dict())
        case "mermaid":
            click.echo(drawn.to_mermaid(), nl=False, file=stdout())
        case "svg":
            click.echo(drawn.to_svg(), file=stdout())
        case _:
            say(graph_shown(drawn))


@click.command()
@click.argument("run_id")
@_at_a_moment
@on_journal
def timeline(place: Place, as_json: bool, run_id: str, **moment: Any) -> None:
    """Show what happened to a run, in order, refused facts too."""
    with open_squid(place) as squid:
        events = squid.inspect_run_timeline(run_id, **moment)
    emit(as_json, {"run_id": run_id, "events": [event.to_dict() for event in events]}, *timeline_shown(events))
