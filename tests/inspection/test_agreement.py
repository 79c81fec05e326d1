"""Snapshot, explanation, graph, timeline and listing agree about a run, whatever its reason and the situation is."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest

from squid_dagster.api import Squid
from squid_dagster.inspection import Explanation, RunGraph, RunReason, RunSnapshot, TimelineEvent
from squid_dagster.inspection.hold import HOLDABLE
from squid_dagster.protocol import RunUnit
from squid_dagster.protocol.errors import InvalidArgument, NotFound
from squid_dagster.workflow import Workflow
from tests.facts import t
from tests.inspection.reason_histories import HISTORIES
from tests.inspection.run_histories import RUN, LiveWorker, RunHistory, changed_order, nothing, order, start_history

_PAST_SITUATIONS = (
    ("none given", "none alive"),
    ("none given", "one of its version"),
    ("its own", "one of another version"),
    ("another version", "none alive"),
)  # of the past neither matters, but for the definition's names of steps


class Answers(NamedTuple):
    """What each call says of the run at one moment."""

    snapshot: RunSnapshot
    explanation: Explanation
    graph: RunGraph
    timeline: list[TimelineEvent]


def ask(squid: Squid, **moment: Any) -> Answers:
    return Answers(
        squid.inspect_run(RUN, include_history=True, **moment),
        squid.explain_run(RUN, **moment),
        squid.inspect_run_graph(RUN, include_history=True, **moment),
        squid.inspect_run_timeline(RUN, **moment),
    )


def other_version(history: RunHistory) -> Workflow:
    """Return another version of the history's workflow."""
    workflow = Workflow(history.definition.name, version="another")
    workflow.step(name="only")(nothing)
    return workflow


def unrelated() -> Workflow:
    workflow = Workflow("unrelated")
    workflow.step(name="only")(nothing)
    return workflow


DEFINITIONS: dict[str, Any] = {
    "none given": lambda _: None,
    "none": lambda _: [],
    "its own": lambda history: [history.definition],
    "its own and another version": lambda history: [history.definition, other_version(history)],
    "another version": lambda history: [other_version(history)],
    "another workflow": lambda _: [unrelated()],
}
WORKERS: dict[str, Any] = {
    "none alive": lambda _: [],
    "one of its version": lambda history: [LiveWorker("old", definitions=(history.definition.key,))],
    "one of another version": lambda history: [LiveWorker("new", definitions=(other_version(history).freeze().key,))],
    "one that takes anything": lambda _: [LiveWorker("any")],
}


def situations(history: RunHistory) -> Iterator[tuple[str, str, Squid]]:
    """Yield a squid in every situation, with its name: which definitions it has, and which workers are alive."""
    squids = {name: Squid(history.storage, choose(history)) for name, choose in DEFINITIONS.items()}
    for alive, announce in WORKERS.items():
        history.inspection(workers=announce(history))
        for definitions, squid in squids.items():
            yield definitions, alive, squid


def assert_agreement(answers: Answers) -> None:
    """Assert that four answers are about the same facts at the same moment, and say the same of them."""
    snapshot, explanation, graph, timeline = answers
    assert snapshot.as_of == explanation.as_of == graph.as_of
    assert snapshot.status == explanation.status == graph.status
    assert snapshot.reason == explanation.reason
    assert snapshot.history is not None
    shown = {(entry["thread"], entry["revision"]) for entry in snapshot.history}
    events = {(event.thread, event.revision) for event in timeline}
    beats = {(e["thread"], e["revision"]) for e in snapshot.history if e["type"] == "attempt_heartbeat"}
    assert shown - beats <= events <= shown
    assert snapshot.queue is None or explanation.queue == snapshot.queue
    about = {(proof.thread, proof.revision) for proof in explanation.evidence if proof.type != "queue_paused"}
    assert about <= shown
    nodes = {node.id: {attempt.runnable_key: attempt for attempt in node.attempts} for node in graph.nodes}
    assert {key for attempts in nodes.values() for key in attempts} == {
        attempt.runnable_key for attempt in snapshot.attempts
    }
    for attempt in snapshot.attempts:
        assert nodes[attempt.step][attempt.runnable_key] == attempt


@pytest.mark.parametrize("reason", RunReason)
def test_all_answers_agree_in_every_situation(reason: RunReason) -> None:
    history, _ = HISTORIES[reason]()
    by_facts = RunUnit.fold(history.storage.read_run(RUN)).run.status

    for definitions, alive, squid in situations(history):
        answers = ask(squid)

        assert_agreement(answers)
        known_here = definitions in ("its own", "its own and another version")
        known_there = alive in ("one of its version", "one that takes anything")
        goes_on = definitions == "none given" or known_here or known_there
        pinned = answers.snapshot.definition_fingerprint is not None
        held = pinned and not goes_on and by_facts in HOLDABLE
        assert answers.snapshot.status == ("held" if held else by_facts), (definitions, alive)
        (line,) = [run for run in squid.list_runs().runs if run.run_id == RUN]
        assert line.status == answers.snapshot.status, (definitions, alive)
        assert [run.run_id for run in squid.list_runs(status=line.status).runs if run.run_id == RUN] == [RUN]


@pytest.mark.parametrize("reason", RunReason)
def test_all_answers_agree_about_every_moment_in_the_past(reason: RunReason) -> None:
    history, _ = HISTORIES[reason]()
    last = ask(Squid(history.storage)).snapshot.thread_revisions["run"]
    times = sorted({entry.fact.occurred_at for entry in history.storage.read_run(RUN)})
    history.advance(days=400)
    moments: list[dict[str, Any]] = [{"at_revision": revision} for revision in range(1, last + 1)]
    moments += [{"at": time + after} for time in times for after in (timedelta(0), timedelta(seconds=7))]

    answers: dict[tuple[str, int], Answers] = {}
    for definitions, alive, squid in situations(history):
        if (definitions, alive) not in _PAST_SITUATIONS:
            continue
        for number, moment in enumerate(moments):
            answers_then = ask(squid, **moment)
            assert_agreement(answers_then)
            assert answers_then.snapshot.as_of == moment.get("at", answers_then.snapshot.as_of)
            assert answers_then.snapshot.status != "held"
            assert answers_then.explanation.next_actions == ()
            is_open = not answers_then.snapshot.terminal and answers_then.snapshot.status != "quarantined"
            assert ("unknown" in answers_then.explanation.details) == is_open
            # Workers of now say nothing about then.
            assert answers.setdefault((definitions, number), answers_then) == answers_then


def test_who_held_the_claim_at_a_time_can_be_asked() -> None:
    history = start_history(order()).advance(minutes=3).claim("charge", lease=60, owner="worker-a").advance(seconds=50)
    history.beat("charge").advance(minutes=5).claim("charge", owner="worker-b").advance(days=2)
    squid = history.inspection()

    def explained(at: datetime) -> tuple[str, str]:
        explanation = squid.explain_run(RUN, at=at)
        return explanation.reason, explanation.summary

    assert explained(t(60))[0] == "attempt_visible"
    assert explained(t(180 + 30)) == (
        "attempt_claimed",
        "Worker 'worker-a' works on step 'charge' for 30 s (lease until 2026-01-01T00:04:00Z).",
    )
    assert explained(t(180 + 70))[1].endswith("for 1 min 10 s (lease until 2026-01-01T00:04:50Z).")
    assert explained(t(180 + 120))[0] == "expired_claim"
    assert explained(t(180 + 350 + 1))[1].startswith("Worker 'worker-b' works on")
    then = squid.inspect_run(RUN, at=t(180 + 30))
    assert [(attempt.owner_id, attempt.status) for attempt in then.attempts] == [("worker-a", "claimed")]
    assert squid.inspect_run_graph(RUN, at=t(180 + 120)).nodes[0].status == "expired"
    assert [event.kind for event in squid.inspect_run_timeline(RUN, at=t(180 + 30))][-1] == "attempt_claimed"


def test_a_time_to_come_is_answered_as_now() -> None:
    history = start_history(order())
    squid = history.inspection(changed_order().freeze(), workers=[])

    for at in (history.now, history.now + timedelta(days=1)):
        assert ask_again(squid, at=at) == ask_again(squid)
    assert squid.inspect_run(RUN).status == "held"


def ask_again(squid: Any, **moment: Any) -> Answers:
    return ask(squid, **moment)


def test_a_moment_that_makes_no_sense_is_refused() -> None:
    history = start_history(order()).advance(days=1)
    squid = history.inspection()

    for look in (squid.inspect_run, squid.explain_run, squid.inspect_run_graph, squid.inspect_run_timeline):
        with pytest.raises(InvalidArgument, match="at and at_revision both name a moment: give one of them"):
            look(RUN, at_revision=1, at=t(5))
        with pytest.raises(InvalidArgument, match="at must be a datetime with a zone or None, not"):
            look(RUN, at=t(5).replace(tzinfo=None))
        with pytest.raises(
            NotFound, match=r"there was no run 'run-1' at 2025-12-31T.*: its first fact is of 2026-01-01T"
        ):
            look(RUN, at=t(-60))
        with pytest.raises(InvalidArgument, match="from 1 to 3"):
            look(RUN, at_revision=4)


def test_facts_after_a_later_one_are_not_of_then() -> None:
    """Set the clock back, which leaves facts out of order: what is shown is always how the journal begins."""
    history = start_history(order()).advance(hours=2).claim("charge")
    early = history.completion("charge").model_copy(update={"occurred_at": t(60)})
    history.write(early)
    history.advance(days=1)

    shown = history.inspection().inspect_run(RUN, at=t(3600))

    assert [attempt.status for attempt in shown.attempts] == ["available"]
