"""No secret that facts hold is ever shown: not by a view, not by its JSON, not in a picture, not in a sentence."""

import json
from typing import Any

import pytest

from squid_dagster.inspection import RunReason, list_runs
from squid_dagster.inspection.explain.case import Case, make_case
from squid_dagster.inspection.explain.explanation import explain
from squid_dagster.inspection.graph.run_graph import graph
from squid_dagster.inspection.run_record import make_record
from squid_dagster.inspection.snapshot.snapshot import snapshot
from squid_dagster.inspection.timeline import timeline
from squid_dagster.journal.fold_store.queries import FoldQueries
from squid_dagster.protocol import Entry, Fact, MalformedFact, UnknownFact, run_thread
from squid_dagster.protocol.entries import StoredFact
from squid_dagster.protocol.facts.base import FactBase
from squid_dagster.workflow import Workflow, path
from tests.facts import EXAMPLES, quarantined, t, token_hash, with_fields
from tests.inspection.reason_histories import HISTORIES
from tests.inspection.run_histories import RUN, RunHistory, nothing

SECRET = "hunter2"
HIDDEN: dict[str, Any] = {"password": SECRET, "deep": [{"x-api-key": SECRET, "clientSecret": {"a": SECRET}}]}
_OBJECTS = ("input", "result", "payload", "context", "transition", "metadata", "error", "recovery", "deadline")
_MORE_OBJECTS = ("execution_opts", "child_input", "actor")


def _planted(fact: Fact) -> Fact:
    """Return the fact with secrets wherever it can hold any, and in unknown fields."""
    known = type(fact).model_fields
    objects: dict[str, Any] = {name: HIDDEN for name in (*_OBJECTS, *_MORE_OBJECTS) if name in known}
    if fact.type == "runnables_planned":
        # Planned and scheduled intents must agree, or nothing else of the run is followed.
        objects["runnables"] = [
            runnable.model_copy(update={"input": HIDDEN, "recovery": HIDDEN, "deadline": HIDDEN})
            for runnable in fact.runnables
        ]
    if fact.type in ("runnable_applied", "manual_step_resolved"):
        old = fact.transition or {}
        objects["transition"] = {**old, **HIDDEN, "condition": _asked(), "error": HIDDEN}
    if fact.type == "run_started":
        objects["context"] = {"parent": HIDDEN, "schedule": HIDDEN}
    return with_fields(fact, **objects, unknown=HIDDEN, token=SECRET)


def _asked() -> dict[str, Any]:
    return {"path": ["user", "password"], "operator": "==", "value": SECRET}


def _replanted(history: RunHistory) -> RunHistory:
    """Return the same history with secrets in every fact."""
    again = RunHistory(history.definition, history.clock)
    whole = sorted(
        (entry for thread in ("squid:run:run-1", "squid:dispatch:default") for entry in history.storage.read(thread)),
        key=lambda entry: entry.position,
    )
    for entry in whole:
        assert isinstance(entry.fact, FactBase)
        again.write(_planted(entry.fact))
    return again


def _everything(case: Case) -> str:
    """Return all that inspection can say about a run, in every form."""
    views = [snapshot(case, include_history=True), explain(case), graph(case, include_history=True)]
    events = timeline(case.record)
    drawn = graph(case)
    parts = [repr(views), repr(events), str(views), drawn.to_svg(), drawn.to_mermaid()]
    parts += [json.dumps(shown.to_dict()) for shown in (*views, *events)]  # type: ignore[attr-defined]
    return "\n".join(parts)


def test_there_is_a_place_for_a_secret_in_every_fact() -> None:
    for fact in EXAMPLES:
        assert SECRET in repr(_planted(fact))


@pytest.mark.parametrize("reason", [reason for reason in RunReason if reason is not RunReason.UNREADABLE_ENTRY])
def test_no_secret_is_shown_whatever_the_run_waits_for(reason: RunReason) -> None:
    history, known = HISTORIES[reason]()
    history = _replanted(history)

    text = _everything(history.case(**known))

    assert SECRET not in text
    assert "[REDACTED]" in text
    assert "claim_token_hash" not in text
    for number in range(1, 5):
        assert token_hash(f"claim-{number}") not in text
    assert SECRET not in repr(list_runs(FoldQueries(history.storage)))


def test_no_secret_is_shown_of_what_cannot_be_read() -> None:
    history, known = HISTORIES[RunReason.UNREADABLE_ENTRY]()

    assert SECRET not in _everything(history.case(**known))


def test_no_secret_is_shown_of_a_fact_from_a_later_version() -> None:
    facts: list[StoredFact] = [
        UnknownFact("teleported", RUN, t(0), HIDDEN),
        MalformedFact("x", RUN, t(0), "a (got 1)", SECRET),
    ]
    entries = [Entry(run_thread(RUN), i, i, fact) for i, fact in enumerate(facts, 1)]

    text = _everything(make_case(make_record(RUN, entries), t(1)))

    assert SECRET not in text
    assert "teleported" in text


def test_the_reason_of_a_quarantine_quotes_no_value() -> None:
    history, _ = HISTORIES[RunReason.ATTEMPT_VISIBLE]()
    history.write(
        quarantined(reason=f"metadata: Input should be an object (got '{SECRET}'); b: wrong (got '{SECRET}')")
    )

    text = _everything(history.case())

    assert SECRET not in text
    assert "Input should be an object" in text


def test_an_output_whose_name_is_a_secret_is_one() -> None:
    workflow = Workflow("signing")
    workflow.step(name="login", output="session_token")(nothing)
    workflow.step(name="use")(nothing)
    workflow.route("login", to="use", when=path("session_token.value") == SECRET)
    workflow.route("login", to="complete")
    workflow.route("use", to="complete")
    history = RunHistory(workflow.freeze()).start().do("login", {"harmless": 1})

    shown = snapshot(history.case())

    assert shown.outputs == {"session_token": "[REDACTED]"}
    assert SECRET not in _everything(history.case())
