"""A run as Dagster metadata: its graph as a picture, its timeline, its explanation, its attempts. All is redacted.

It is bounded, because Dagster stores it: of a long list the end is shown, with the call that reads the rest.
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
    explanation = squid.explain_run(run_id)
    return {
        "run_id": dg.MetadataValue.text(run_id),
        "status": dg.MetadataValue.text(explanation.status),
        "summary": dg.MetadataValue.text(explanation.summary),
        "graph": dg.MetadataValue.md(graph_markdown(squid.inspect_run_graph(run_id))),
        "timeline": dg.MetadataValue.md(timeline_markdown(squid.inspect_run_timeline(run_id), run_id)),
        "explanation": dg.MetadataValue.md(explanation_markdown(explanation)),
        "snapshot": dg.MetadataValue.md(snapshot_markdown(squid.inspect_run(run_id))),
    }


def explanation_markdown(explanation: Explanation) -> str:
    """Render why the run is where it is, what can be done, and which facts show that. Pure."""
    parts = [
        f"**{text(explanation.reason.replace('_', ' '))}**",
        text(explanation.summary, 1000),
        "**What can be done**",
        "\n".join(_action(action) for action in explanation.next_actions) or "- nothing: there is nothing left to do",
    ]
    if explanation.evidence:
        rows = [(fact.type, fact.thread, fact.revision, when(fact.occurred_at)) for fact in explanation.evidence]
        parts += ["**Facts that show it**", table(("fact", "thread", "revision", "at"), rows)]
    return "\n\n".join(parts)


def _action(action: Any) -> str:
    call = f": {code(action.call)}" if action.call else ""
    note = f" ({text(action.note)})" if action.note else ""
    return f"- {text(action.action.replace('_', ' '))}{call}{note}"


def graph_markdown(graph: RunGraph) -> str:
    """Render the graph as a picture; one that is too large, as a table of its steps. Pure."""
    drawn = picture(graph.title, graph.to_svg())
    if len(drawn) <= MAX_PICTURE_CHARACTERS:
        return drawn
    rows = [(node.id, node.kind, node.status.value.replace("_", " ")) for node in graph.nodes]
    shown = table(("step", "kind", "status"), rows[:500])
    return f"{text(graph.title)}\n\nThe graph has {len(rows)} steps, too many for a picture here.\n\n{shown}"


def timeline_markdown(events: Sequence[TimelineEvent], run_id: str) -> str:
    """Render the latest events, oldest first. Pure."""
    latest = events[-MAX_EVENTS:]
    rows = [(when(row.at), row.summary, row.step, _actor(row), row.kind, row.revision) for row in latest]
    shown = table(("at", "what happened", "step", "by", "fact", "revision"), rows)
    if len(events) == len(latest):
        return shown
    call = code(f"squid.inspect_run_timeline({run_id!r})")
    return f"{len(events) - len(latest)} earlier events are left out: {call} tells them all.\n\n{shown}"


def _actor(event: TimelineEvent) -> str:
    return "" if event.actor is None else who(event.actor)


def snapshot_markdown(snapshot: RunSnapshot) -> str:
    """Render the input of the run, the outputs of its steps, its attempts and its commands. Pure."""
    parts = [_fields(snapshot), "**Input**", json_block(snapshot.input)]
    if snapshot.outputs:
        parts += ["**Outputs**", json_block(snapshot.outputs)]
    if snapshot.attempts:
        parts += ["**Attempts**", _attempts(snapshot)]
    if snapshot.command_history:
        rows = [
            (
                when(command.at),
                command.signal_type,
                "" if command.actor is None else who(command.actor),
                command.metadata.get("actor_source"),
                command.comment,
            )
            for command in snapshot.command_history[-MAX_ATTEMPTS:]
        ]
        parts += ["**Commands**", table(("at", "command", "actor", "actor source", "comment"), rows)]
    if snapshot.anomalies:
        anomalies = [(row.reason, row.type, row.thread, row.revision) for row in snapshot.anomalies[-MAX_ATTEMPTS:]]
        parts += ["**Anomalies**", table(("reason", "fact", "thread", "revision"), anomalies)]
    return "\n\n".join(parts)


def _fields(snapshot: RunSnapshot) -> str:
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
    latest = snapshot.attempts[-MAX_ATTEMPTS:]
    rows = [
        (
            attempt.step,
            attempt.attempt_number,
            attempt.status,
            attempt.owner_id,
            None if attempt.lease_until is None else when(attempt.lease_until),
            f"{attempt.deliveries} of {attempt.max_deliveries}",
            None if attempt.error is None else message_of(attempt.error),
        )
        for attempt in latest
    ]
    shown = table(("step", "attempt", "status", "held by", "lease until", "deliveries", "error"), rows)
    left = len(snapshot.attempts) - len(latest)
    return shown if not left else f"{left} earlier attempts are left out.\n\n{shown}"
