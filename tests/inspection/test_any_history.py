"""Whatever a journal holds, inspection answers: it never raises, is plain JSON, and tells no more than the facts."""

import json
from itertools import groupby
from typing import Any
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from squid_dagster.inspection.explain.case import Case, QueueState, make_case
from squid_dagster.inspection.explain.explanation import explain
from squid_dagster.inspection.graph.run_graph import graph
from squid_dagster.inspection.run_record import make_record
from squid_dagster.inspection.snapshot.snapshot import snapshot
from squid_dagster.inspection.timeline import timeline
from squid_dagster.protocol import Entry, MalformedFact, RunUnit, UnknownFact, run_thread
from squid_dagster.protocol.entries import by_run
from squid_dagster.workflow import Workflow
from squid_dagster.workflow.registry import Registry
from tests.facts import STEPS, WORKFLOW, signal, t, with_fields
from tests.histories import journals
from tests.inspection.run_histories import LiveWorker, nothing


def _billing() -> Workflow:
    """Return a workflow with the names that random histories use."""
    workflow = Workflow(WORKFLOW)
    for name, following in zip(STEPS, [*STEPS[1:], "review"], strict=True):
        workflow.step(name=name)(nothing)
        workflow.route(name, to=following)
    workflow.approval("review")
    workflow.route("review", to="complete")
    workflow.route("review", on="error", to="fail")
    return workflow


BILLING = _billing().freeze()


FINGERPRINTS = (None, BILLING.fingerprint, BILLING.fingerprint, "changed")
TRANSITIONS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"from": "charge", "on": "ok", "to": "ship"},
    {"from": "charge", "on": "error", "to": "fail", "error": {"message": "declined"}},
    {"from": "ship", "on": "ok", "to": "review", "condition": {"path": ["a"], "operator": "==", "value": 1}},
    {"from": 7, "on": ["x"], "to": None, "error": "none"},
    {"from": "nowhere", "on": "ok", "to": "elsewhere", "condition": "never"},
    {},
)
DEADLINES: tuple[dict[str, Any] | None, ...] = (
    None,
    {"due_at": t(30).isoformat(), "due_soon_at": t(20).isoformat(), "escalate_at": t(400).isoformat()},
    {"due_at": "tomorrow", "due_soon_at": 7},
    {"due_at": "2026-01-01T00:00:00"},
)


def _dressed(draw: st.DrawFn, entry: Entry) -> Entry:
    """Return the entry with what the runtime adds to facts: fingerprints, decisions and deadlines, good and bad."""
    fact: Any = entry.fact
    if isinstance(fact, MalformedFact | UnknownFact):
        return entry
    match fact.type:
        case "run_started" | "attempt_scheduled":
            fact = with_fields(fact, definition_fingerprint=draw(st.sampled_from(FINGERPRINTS)))
        case "runnable_applied" | "manual_step_resolved":
            fact = with_fields(fact, transition=draw(st.sampled_from(TRANSITIONS)))
        case "runnables_planned":
            deadline = draw(st.sampled_from(DEADLINES))
            fact = with_fields(
                fact, runnables=[runnable.model_copy(update={"deadline": deadline}) for runnable in fact.runnables]
            )
        case "manual_step_paused":
            fact = with_fields(fact, metadata={"deadline": draw(st.sampled_from(DEADLINES))})
        case "attempt_released":
            fact = with_fields(fact, visible_at=draw(st.sampled_from((None, t(90)))))
    return entry._replace(fact=fact)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Return any run of any journal, looked at with any knowledge of definitions, workers and queues."""
    journal = draw(journals())
    runs = {run: entries for run, entries in by_run(journal).items() if run is not None}
    run_id = draw(st.sampled_from(sorted(runs))) if runs else "nobody"
    entries = runs.get(run_id) or [Entry(run_thread(run_id), 1, 1, signal(run_id))]
    queue = draw(st.sampled_from((None, QueueState("default", True), QueueState("default", False))))
    workers = draw(st.sampled_from((None, [], [LiveWorker("w")], [LiveWorker("w", ("slow",), ("a/b",))])))
    registry = draw(st.sampled_from((None, Registry(), Registry([BILLING]))))
    now = t(draw(st.sampled_from((0, 25, 60, 500))))
    dressed = [_dressed(draw, entry) for entry in entries]
    return make_case(make_record(run_id, dressed), now, registry=registry, queue_state=queue, workers=workers)


@given(cases())
def test_any_run_is_explained_by_facts_that_are_there(case: Case) -> None:
    explanation = explain(case)

    json.dumps(explanation.to_dict(), allow_nan=False)
    assert explanation.summary.endswith(".")
    assert {(proof.thread, proof.revision) for proof in explanation.evidence} <= {
        (e.thread, e.seq) for e in case.record.entries
    }
    assert explanation.next_actions or case.run.terminal_status == "completed"


@given(cases())
def test_any_run_is_shown_as_its_facts_fold(case: Case) -> None:
    shown = snapshot(case, include_history=True)

    json.dumps(shown.to_dict(), allow_nan=False)
    unit = RunUnit.fold(case.record.entries)
    assert shown.terminal_status == unit.run.terminal_status
    assert len(shown.anomalies) == len(unit.anomalies)
    assert {attempt.runnable_key for attempt in shown.attempts} == set(unit.dispatch.attempts)
    assert shown.reason == explain(case).reason
    assert shown.status == explain(case).status
    assert shown.history is not None
    assert [entry["position"] for entry in shown.history] == [entry.position for entry in case.record.entries]
    if case.run.stopped:
        lists = (shown.visible_attempts, shown.scheduled_attempts, shown.expired_claims, shown.dead_letters)
        assert not any(lists)


@given(cases())
def test_any_run_is_drawn(case: Case) -> None:
    drawn = graph(case, include_history=True)

    json.dumps(drawn.to_dict(), allow_nan=False)
    ids = [node.id for node in drawn.nodes]
    assert len(ids) == len(set(ids))
    assert set(drawn.current_node_ids) <= set(ids)
    assert {end for edge in drawn.edges for end in (edge.source, edge.target)} <= set(ids)
    assert len({edge.id for edge in drawn.edges}) == len(drawn.edges)
    ElementTree.fromstring(drawn.to_svg())  # noqa: S314  our own
    assert drawn.to_mermaid().count("\n") >= len(ids) + len(drawn.edges)


@given(cases())
def test_any_run_has_a_timeline_of_all_its_facts(case: Case) -> None:
    events = timeline(case.record)

    for event in events:
        json.dumps(event.to_dict(), allow_nan=False)
        assert event.summary.endswith(".")
    instants = enumerate(groupby(case.record.entries, key=lambda entry: entry.fact.occurred_at))
    places = {entry.position: place for place, (_, group) in instants for entry in group}
    assert [places[event.position] for event in events] == sorted(places[event.position] for event in events)
    beats = [event for event in events if event.kind == "attempt_heartbeat" and event.refused is None]
    together = sum(event.details.get("count", 1) - 1 for event in beats)
    assert len(events) + together == len(case.record.entries)
