"""How `squid run` shows runs to people, and receipts to programs. Makes text and values; prints nothing."""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from squid_dagster.cli.terminal.output import show, table
from squid_dagster.cli.terminal.streams import on_terminal

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.tree import Tree

    from squid_dagster.cli.place import Place
    from squid_dagster.inspection import (
        Explanation,
        GraphEdge,
        GraphNode,
        RunGraph,
        RunPage,
        RunSnapshot,
        TimelineEvent,
    )
    from squid_dagster.runtime.commands.signals import Receipt

_COMMANDS = {  # of the actions that an explanation names, as they are typed
    "approve": "squid run approve {run_id} -m MODULE",
    "reject": "squid run reject {run_id} -m MODULE",
    "resume": "squid run resume {run_id} -m MODULE",
    "cancel": "squid run cancel {run_id}",
    "replay": "squid run replay {run_id} -m MODULE",
    "retry_attempt": "squid queue retry {run_id}",
    "resume_queue": "squid queue resume {queue}",
    "start_worker": "squid worker --queue {queue} -m MODULE",
    "recover": "squid recover -m MODULE",
    "inspect_history": "squid run inspect {run_id} --history",
}


def receipt_facts(receipt: "Receipt") -> dict[str, Any]:
    """Return a receipt as JSON values, always with the same keys."""
    return {
        "run_id": receipt.run_id,
        "signal_type": str(receipt.signal_type),
        "received_at": receipt.received_at.isoformat(),
        "idempotency_key": receipt.idempotency_key,
        "repeated": receipt.repeated,
    }


def page_shown(page: "RunPage") -> "list[RenderableType]":
    """Show a page of a listing, and how to get the next one."""
    if not page.runs:
        return ["no runs" if page.next_cursor is None else "no runs on this page", *_next(page.next_cursor)]
    headings = ("run", "workflow", "status", "trigger", "queue", "started", "ended", "waits for")
    rows = [
        (
            summary.run_id,
            summary.workflow,
            summary.status,
            summary.trigger,
            summary.queue,
            summary.started_at,
            summary.ended_at,
            None if summary.manual_step is None else f"{summary.manual_kind} {summary.manual_step!r}",
        )
        for summary in page.runs
    ]
    return [table(headings, rows, first_to_go=("trigger", "queue", "ended", "started")), *_next(page.next_cursor)]


def _next(cursor: str | None) -> list[str]:
    return [] if cursor is None else [f"more: the same command with --cursor {cursor}"]


def snapshot_shown(run: "RunSnapshot") -> "list[RenderableType]":
    """Show a run: what it is, what it took and gave, its attempts, commands and children."""
    about: list[tuple[str, object]] = [
        ("run", run.run_id),
        ("workflow", " ".join(part for part in (run.workflow, run.definition_version) if part)),
        ("status", run.status),
        ("reason", run.reason),
        ("trigger", run.trigger),
        ("queue", run.queue),
        ("started", run.started_at),
        ("ended", run.ended_at),
        ("revision", run.thread_revisions["run"]),
        ("replay of", run.replayed_from_run_id),
        ("parent", (run.parent_run or {}).get("run_id")),
        ("waits for", None if run.manual_state is None else f"{run.manual_state.kind} {run.manual_state.step!r}"),
        ("input", _brief(run.input)),
        ("outputs", _brief(run.outputs)),
        ("error", _brief(run.error)),
    ]
    shown: list[RenderableType] = [_pairs(about)]
    if run.attempts:
        shown += ["", attempts_shown(run)]
    if run.command_history:
        rows = [
            (command.at, command.signal_type, _actor(command.actor), command.comment) for command in run.command_history
        ]
        shown += ["", table(("at", "command", "by", "comment"), rows)]
    if run.child_runs:
        children = [(child.child_run_id, child.child_workflow, child.child_key, child.step) for child in run.child_runs]
        shown += ["", table(("child run", "workflow", "key", "by step"), children)]
    if run.anomalies:
        odd = [(anomaly.reason, anomaly.type, anomaly.thread, anomaly.revision) for anomaly in run.anomalies]
        shown += ["", table(("anomaly", "fact", "thread", "revision"), odd)]
    if run.history is not None:
        facts = [
            (entry["position"], entry["occurred_at"], entry["type"], _brief(entry["data"])) for entry in run.history
        ]
        shown += ["", table(("position", "at", "fact", "data"), facts)]
    return shown


def attempts_shown(run: "RunSnapshot") -> "RenderableType":
    """Show the attempts of a run, one a line."""
    rows = [
        (
            attempt.step,
            attempt.attempt_number,
            attempt.status,
            attempt.owner_id,
            attempt.claimed_at or attempt.visible_at,
            attempt.settled_at,
            _brief(attempt.error),
        )
        for attempt in run.attempts
    ]
    headings = ("step", "attempt", "status", "worker", "since", "settled", "error")
    return table(headings, rows, first_to_go=("worker", "settled"))


def explanation_facts(explanation: "Explanation", place: "Place") -> dict[str, Any]:
    """Return an explanation as JSON values, always with the same keys; of every action the `command` that does it."""
    facts, typed = explanation.to_dict(), _typed(explanation, place)
    facts["next_actions"] = [
        {**action, "command": command} for action, command in zip(facts["next_actions"], typed, strict=True)
    ]
    return facts


def explanation_shown(explanation: "Explanation", place: "Place") -> "list[RenderableType]":
    """Show why a run is where it is: the sentence, what can be done, and the facts that prove it."""
    about: list[tuple[str, object]] = [
        ("run", explanation.run_id),
        ("workflow", " ".join(part for part in (explanation.workflow, explanation.definition_version) if part)),
        ("status", explanation.status),
        ("reason", explanation.reason),
        ("step", explanation.step),
    ]
    shown: list[RenderableType] = [explanation.summary, "", _pairs(about)]
    if explanation.next_actions:
        typed = zip(explanation.next_actions, _typed(explanation, place), strict=True)
        rows = [(action.action, command, action.note) for action, command in typed]
        shown += ["", table(("what to do", "command", "note"), rows)]
    if explanation.evidence:
        facts = [(fact.type, fact.thread, fact.revision, fact.occurred_at) for fact in explanation.evidence]
        shown += ["", table(("because of", "thread", "revision", "at"), facts, first_to_go=("at", "revision"))]
    return shown


def _typed(explanation: "Explanation", place: "Place") -> list[str | None]:
    """Return the commands that do what an explanation names, as they can be pasted; None where there is none."""
    keys = list(explanation.details.get("runnable_keys", ())) if explanation.reason == "dead_letter" else []
    several, typed = len(keys) > 1, list[str | None]()
    for action in explanation.next_actions:
        text = _COMMANDS.get(action.action)
        if text is None or action.call is None:
            typed.append(None)
            continue
        text = text.format(run_id=explanation.run_id, queue=explanation.queue)
        if action.action == "retry_attempt" and several:  # one for each of them
            text += f" {keys.pop(0)}"
        if "allow_irreversible=True" in action.call:
            text += " --allow-irreversible"
        typed.append(place.command_line(text))
    return typed


def timeline_shown(events: "Sequence[TimelineEvent]") -> "list[RenderableType]":
    """Show what happened to a run, one event a line."""
    return [table(("at", "step", "what happened"), [(event.at, event.step, event.summary) for event in events])]


def graph_shown(graph: "RunGraph") -> "Tree":
    """Show a graph as a tree: each step once with what follows it; where ways meet again, only its name."""
    from rich.text import Text
    from rich.tree import Tree

    nodes = {node.id: node for node in graph.nodes}
    ways: dict[str, list[GraphEdge]] = {}
    for edge in graph.edges:
        ways.setdefault(edge.source, []).append(edge)
    tree, seen = Tree(Text(graph.title)), set[str]()
    for root in _roots(graph):
        todo: list[tuple[Tree, GraphNode, GraphEdge | None]] = [(tree, root, None)]
        while todo:
            above, node, by = todo.pop()
            known = node.id in seen
            branch = above.add(_node_text(node, by, known))
            if not known:
                seen.add(node.id)
                todo += [(branch, nodes[edge.target], edge) for edge in reversed(ways.get(node.id, ()))]
    return tree


def _roots(graph: "RunGraph") -> "Iterator[GraphNode]":
    """Yield the nodes where the graph begins, then any that these do not lead to."""
    entered = {edge.target for edge in graph.edges if edge.source != edge.target}
    reached: set[str] = set()
    first = [node for node in graph.nodes if node.id not in entered]
    for node in [*first, *(node for node in graph.nodes if node.id in entered)]:
        if node.id not in reached:
            yield node
            todo = [node.id]
            while todo:
                reached.add(here := todo.pop())
                todo += [edge.target for edge in graph.edges if edge.source == here and edge.target not in reached]


def _node_text(node: "GraphNode", by: "GraphEdge | None", known: bool) -> Any:
    from rich.text import Text

    from squid_dagster.cli.terminal.output import STATUS_STYLES
    from squid_dagster.inspection.graph.palette import edge_label, node_lines

    label = "" if by is None else edge_label(by)
    text = Text(f"[{label}] " if label else "", style="dim")
    if by is not None and by.status.value in ("skipped", "blocked"):
        text.append(f"({by.status.value}) ", style="dim")
    name, *state = node_lines(node)
    text.append(name, style="bold" if node.current else "")
    if known:
        return text.append(" ↩", style="dim")
    for line in state:
        text.append(f"  {line}", style=STATUS_STYLES.get(node.status.value, ""))
    return text.append("  ◀" if node.current else "")


def _pairs(pairs: Sequence[tuple[str, object]]) -> "RenderableType":
    """Show what is there of some named values, one a line."""
    from rich.table import Table
    from rich.text import Text

    from squid_dagster.cli.terminal.output import STATUS_STYLES

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        if (text := show(value)) not in ("", "{}"):
            grid.add_row(Text(name, style="dim"), Text(text, style=STATUS_STYLES.get(text, "")))
    return grid


def _brief(value: Any, limit: int = 400) -> str | None:
    """Write a JSON value on one line; on a terminal not longer than a person reads."""
    if value in (None, {}, []):
        return None
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= limit or not on_terminal() else text[: limit - 1] + "…"


def _actor(actor: Any) -> str | None:
    return actor if actor is None or isinstance(actor, str) else _brief(actor, 80)
