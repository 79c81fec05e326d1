"""A run as Dagster metadata: its graph as a picture, its timeline, its explanation, its attempts. All is redacted.

What is shown is bounded, because Dagster keeps it: a long story is told from its end, and says how to read the rest.
"""

from collections.abc import Sequence
from typing import Any

import dagster as dg

from squid_dagster.api import Squid
from squid_dagster.inspection import Explanation, RunGraph, RunSnapshot, TimelineEvent
from squid_dagster.inspection.display import message_of, when, who
from squid_dagster.plugin.markdown import code, json_block, picture, table, text

MAX_EVENTS = 100  # of a timeline
MAX_ATTEMPTS = 50  # of a snapshot
MAX_PICTURE_CHARACTERS = 200_000  # some 100 steps; a larger graph is shown as a table


def run_metadata(squid: Squid, run_id: str) -> dict[str, dg.MetadataValue]:
    """Show a run as it is now, for the output of an op or a tick.

    The keys are `run_id`, `status`, `summary`, `graph`, `timeline`, `explanation` and `snapshot`: Dagster's list of
    events shows the first seven without a click.

    Raises:
        NotFound: no fact names this run.
        StorageUnavailable: the database cannot be reached.
    """
    found = squid.explain_run(run_id)
    return {
        "run_id": dg.MetadataValue.text(run_id),
        "status": dg.MetadataValue.text(found.status),
        "summary": dg.MetadataValue.text(found.summary),
        "graph": dg.MetadataValue.md(graph_markdown(squid.inspect_run_graph(run_id))),
        "timeline": dg.MetadataValue.md(timeline_markdown(squid.inspect_run_timeline(run_id), run_id)),
        "explanation": dg.MetadataValue.md(explanation_markdown(found)),
        "snapshot": dg.MetadataValue.md(snapshot_markdown(squid.inspect_run(run_id))),
    }


def explanation_markdown(found: Explanation) -> str:
    """Say why the run is where it is, what can be done, and by which facts that is known. Pure."""
    parts = [
        f"**{text(found.reason.replace('_', ' '))}**",
        text(found.summary, 1000),
        "**What can be done**",
        "\n".join(_action(each) for each in found.next_actions) or "- nothing: there is nothing left to do",
    ]
    if found.evidence:
        rows = [(each.type, each.thread, each.revision, when(each.occurred_at)) for each in found.evidence]
        parts += ["**Facts that show it**", table(("fact", "thread", "revision", "at"), rows)]
    return "\n\n".join(parts)


def _action(action: Any) -> str:
    call = f": {code(action.call)}" if action.call else ""
    note = f" ({text(action.note)})" if action.note else ""
    return f"- {text(action.action.replace('_', ' '))}{call}{note}"


def graph_markdown(graph: RunGraph) -> str:
    """Show the graph as a picture; one that is too large for that, as a table of its steps. Pure."""
    drawn = picture(graph.title, graph.to_svg())
    if len(drawn) <= MAX_PICTURE_CHARACTERS:
        return drawn
    rows = [(node.id, node.kind, node.status.value.replace("_", " ")) for node in graph.nodes]
    shown = table(("step", "kind", "status"), rows[:500])
    return f"{text(graph.title)}\n\nThe graph has {len(rows)} steps, too many for a picture here.\n\n{shown}"


def timeline_markdown(events: Sequence[TimelineEvent], run_id: str) -> str:
    """Tell what happened, oldest first; of a long story, the end. Pure."""
    told = events[-MAX_EVENTS:]
    rows = [(when(each.at), each.summary, each.step, _actor(each), each.kind, each.revision) for each in told]
    shown = table(("at", "what happened", "step", "by", "fact", "revision"), rows)
    if len(events) == len(told):
        return shown
    call = code(f"squid.inspect_run_timeline({run_id!r})")
    return f"{len(events) - len(told)} earlier events are left out: {call} tells them all.\n\n{shown}"


def _actor(event: TimelineEvent) -> str:
    return "" if event.actor is None else who(event.actor)


def snapshot_markdown(snapshot: RunSnapshot) -> str:
    """Show what the run was started with, what its steps gave, its attempts and who asked what of it. Pure."""
    parts = [_facts(snapshot), "**Input**", json_block(snapshot.input)]
    if snapshot.outputs:
        parts += ["**Outputs**", json_block(snapshot.outputs)]
    if snapshot.attempts:
        parts += ["**Attempts**", _attempts(snapshot)]
    if snapshot.command_history:
        rows = [
            (
                when(each.at),
                each.signal_type,
                "" if each.actor is None else who(each.actor),
                _source(each),
                each.comment,
            )
            for each in snapshot.command_history[-MAX_ATTEMPTS:]
        ]
        parts += ["**Commands**", table(("at", "command", "actor", "actor source", "comment"), rows)]
    if snapshot.anomalies:
        rows_of = [(each.reason, each.type, each.thread, each.revision) for each in snapshot.anomalies[-MAX_ATTEMPTS:]]
        parts += ["**Anomalies**", table(("reason", "fact", "thread", "revision"), rows_of)]
    return "\n\n".join(parts)


def _facts(snapshot: RunSnapshot) -> str:
    waits = snapshot.manual_state
    rows: list[tuple[str, object]] = [
        ("run", snapshot.run_id),
        ("workflow", f"{snapshot.workflow or 'unknown'} {snapshot.definition_version or ''}".strip()),
        ("trigger", snapshot.trigger),
        ("queue", snapshot.queue),
        ("priority", snapshot.priority),
        ("status", f"{snapshot.status} ({snapshot.reason.replace('_', ' ')})"),
        ("waits for", None if waits is None else f"{waits.kind} of step {waits.step!r} since {when(waits.paused_at)}"),
        ("started", None if snapshot.started_at is None else when(snapshot.started_at)),
        ("ended", None if snapshot.ended_at is None else when(snapshot.ended_at)),
        ("error", None if snapshot.error is None else message_of(snapshot.error)),
        ("parent run", None if snapshot.parent_run is None else snapshot.parent_run.get("run_id")),
        ("child runs", ", ".join(child.child_run_id for child in snapshot.child_runs[:20]) or None),
        ("replay of", snapshot.replayed_from_run_id),
        ("revisions", ", ".join(f"{name} {number}" for name, number in snapshot.thread_revisions.items())),
    ]
    return table(("", ""), [row for row in rows if row[1] is not None])


def _attempts(snapshot: RunSnapshot) -> str:
    told = snapshot.attempts[-MAX_ATTEMPTS:]
    rows = [
        (
            each.step,
            each.attempt_number,
            each.status,
            each.owner_id,
            None if each.lease_until is None else when(each.lease_until),
            f"{each.deliveries} of {each.max_deliveries}",
            None if each.error is None else message_of(each.error),
        )
        for each in told
    ]
    shown = table(("step", "attempt", "status", "held by", "lease until", "deliveries", "error"), rows)
    left = len(snapshot.attempts) - len(told)
    return shown if not left else f"{left} earlier attempts are left out.\n\n{shown}"


def _source(command: Any) -> object:
    return command.metadata.get("actor_source")
