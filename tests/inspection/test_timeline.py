"""What happened to a run, in order."""

import pytest

from squid_dagster.inspection.fact_sentences import sentence
from squid_dagster.inspection.timeline import timeline
from squid_dagster.protocol import FACT_TYPES
from squid_dagster.protocol.errors import InvalidArgument, NotFound
from tests.facts import (
    CARD_EXAMPLES,
    EXAMPLES,
    claimed,
    completed,
    fenced,
    malformed,
    planned,
    queued,
    runnable,
    scheduled,
    signal,
    started,
    terminal,
    unknown,
)
from tests.inspection.reason_histories import damaged
from tests.inspection.run_histories import RUN, RunHistory, looping, order, saga, start_history


def _told(history: RunHistory) -> list[str]:
    return [event.summary for event in history.inspection().inspect_run_timeline(RUN)]


def test_a_run_is_told_from_its_start_to_its_end() -> None:
    history = start_history(order()).claim("charge").fail("charge", retry_in=10).advance(seconds=10).do("charge")
    history.advance(hours=1).do("rest").do("check", {"amount": 500}).decide("approved", comment="fine by me")

    assert _told(history) == [
        "ada asked for the run.",
        "The run of workflow 'orders', version '1' started.",
        "The run's work goes through queue 'default'.",
        "The run planned 'charge'.",
        "Step 'charge' was put on queue 'default'.",
        "Step 'charge' was claimed by worker 'worker-a' until 2026-01-01T00:01:00Z.",
        "Step 'charge' failed: ValueError: declined; it is tried again at 2026-01-01T00:00:10Z.",
        "The run planned 'charge' (attempt 2).",
        "Step 'charge' was claimed by worker 'worker-a' until 2026-01-01T00:01:10Z.",
        "Step 'charge' was completed by its worker.",
        "Step 'charge' counts as done; the run goes on to 'rest'.",
        "The run planned 'rest'.",
        "Step 'rest' was put on queue 'default', visible from 2026-01-01T01:00:15Z on.",
        "Step 'rest' was claimed by worker 'worker-a' until 2026-01-01T01:01:15Z.",
        "Step 'rest' was completed by its worker.",
        "Step 'rest' counts as done; the run goes on to 'check'.",
        "The run planned 'check'.",
        "Step 'check' was put on queue 'default'.",
        "Step 'check' was claimed by worker 'worker-a' until 2026-01-01T01:01:20Z.",
        "Step 'check' was completed by its worker.",
        "Step 'check' counts as done; the run goes on to 'review'.",
        "Step 'review' waits for an approval.",
        "grace approved: fine by me.",
        "Step 'review' was approved.",
        "The run completed.",
    ]


def test_undoing_is_told_as_such() -> None:
    history = start_history(saga()).do("book").claim("pay").fail("pay").do("compensate:book")

    assert _told(history)[-7:] == [
        "Step 'pay' counts as failed; with that, the run has failed.",
        "The run planned 'compensate:book'.",
        "The undoing of step 'book' was put on queue 'default'.",
        "The undoing of step 'book' was claimed by worker 'worker-a' until 2026-01-01T00:01:05Z.",
        "The undoing of step 'book' was completed by its worker.",
        "The undoing of step 'book' counts as done.",
        "The run failed: ValueError: declined.",
    ]


def test_deferrals_pauses_and_dead_letters_are_told() -> None:
    history = start_history(saga()).claim("book").defer("book", 60, "not yet").advance(seconds=60).do("book").do("pay")
    history.do("mail").die("ship")

    summaries = _told(history)

    assert "Step 'book' deferred itself until 2026-01-01T00:01:00Z: not yet." in summaries
    assert summaries[-1] == "Step 'ship' was handed out 2 times and never finished: it is a dead letter."
    assert ["was lost, which need not be the step's own fault" in summary for summary in summaries[-3:]] == [
        False,
        True,
        False,
    ]
    history = start_history(looping()).do("poll").do("look", {"tired": True}).decide("resumed")
    assert "Step 'breathe' waits for somebody to resume it." in _told(history)
    assert "Step 'breathe' was resumed." in _told(history)


def test_heartbeats_that_follow_each_other_are_one_event() -> None:
    history = start_history(order()).claim("charge")
    for _ in range(3):
        history.advance(seconds=20).beat("charge")
    history.complete("charge")

    (beat,) = [event for event in history.inspection().inspect_run_timeline(RUN) if event.kind == "attempt_heartbeat"]

    assert beat.summary == (
        "Step 'charge' is still being worked on, until 2026-01-01T00:02:00Z (3 heartbeats since 2026-01-01T00:00:20Z)."
    )
    assert (beat.details["count"], beat.details["lease_until"]) == (3, "2026-01-01T00:02:00Z")


def test_heartbeats_of_the_next_worker_are_another_event() -> None:
    history = start_history(order()).claim("charge", lease=10).advance(seconds=5).beat("charge", lease=10)
    history.advance(seconds=30).claim("charge").advance(seconds=5).beat("charge")

    beats = [event for event in history.inspection().inspect_run_timeline(RUN) if event.kind == "attempt_heartbeat"]

    assert [beat.details["count"] for beat in beats] == [1, 1]


def test_a_refused_fact_is_told_as_refused() -> None:
    history = start_history(order()).claim("charge").advance(seconds=20)
    history.write(claimed(step="charge", claim="thief", at=20), completed(step="charge", claim="thief", at=20))

    events = history.inspection().inspect_run_timeline(RUN)[-2:]

    assert [event.refused for event in events] == ["active_claim", "stale_claim"]
    assert events[0].summary.startswith("Refused (active claim): Step 'charge' was claimed by worker 'worker-thief'")


def test_what_follows_from_a_decision_is_told_after_it_wherever_it_was_written() -> None:
    history = RunHistory(order().freeze())
    history.write(queued(), scheduled(), signal(), started(), planned())
    history.write(fenced(at=50), terminal(), scheduled(step="ship", at=60), queued(at=70))

    kinds = [(event.kind, event.position) for event in history.inspection().inspect_run_timeline(RUN)]

    assert kinds == [
        ("run_signal_received", 3),
        ("run_started", 4),
        ("run_queued", 1),
        ("runnables_planned", 5),
        ("attempt_scheduled", 2),
        ("run_terminal", 7),
        ("run_fenced", 6),
        ("attempt_scheduled", 8),
        ("run_queued", 9),
    ]


def test_events_say_who_where_and_which_step() -> None:
    history = start_history(order()).claim("charge")

    first, *_, last = history.inspection().inspect_run_timeline(RUN)

    assert (first.actor, first.step, first.thread, first.revision) == ("ada", None, "squid:run:run-1", 1)
    assert (last.actor, last.step, last.thread, last.revision) == ("worker-a", "charge", "squid:dispatch:default", 3)
    assert list(last.to_dict()) == [
        "at",
        "thread",
        "revision",
        "position",
        "kind",
        "summary",
        "step",
        "actor",
        "refused",
        "details",
    ]
    assert "claim_token_hash" not in last.details


def test_an_entry_that_cannot_be_read_is_told_without_what_it_holds() -> None:
    (event,) = [event for event in timeline(damaged().case().record) if event.refused is not None]

    assert event.summary == "An entry of type 'attempt_scheduled' cannot be read: step: wrong."
    assert (event.refused, event.details) == ("malformed_entry", {})


@pytest.mark.parametrize("fact", [*EXAMPLES[: -len(CARD_EXAMPLES)]], ids=lambda fact: fact.type)
def test_every_fact_has_a_sentence(fact: object) -> None:
    for step in ("charge", "compensate:charge", None):
        history = sentence(fact, step)  # type: ignore[arg-type]
        assert history[0].isupper() or history.startswith("ada")
        assert history.endswith(".")


def test_all_types_of_facts_are_among_the_examples() -> None:
    assert {fact.type for fact in EXAMPLES} == set(FACT_TYPES)


def test_facts_that_this_version_does_not_know_are_told_too() -> None:
    assert "does not know" in sentence(unknown().fact, None)
    assert "cannot be read" in sentence(malformed().fact, None)


def test_a_plan_of_many_is_cut() -> None:
    many = planned(*(runnable(step=f"s{number}") for number in range(7)))

    assert sentence(many, None) == "The run planned 's0', 's1', 's2', 's3', 's4' and 2 more."
    assert sentence(many.model_copy(update={"runnables": []}), None) == "The run planned nothing."


def test_an_earlier_revision_has_a_shorter_story() -> None:
    history = start_history(order()).do("charge")

    assert len(history.inspection().inspect_run_timeline(RUN, at_revision=1)) == 1
    with pytest.raises(InvalidArgument, match="from 1 to 5"):
        history.inspection().inspect_run_timeline(RUN, at_revision=9)
    with pytest.raises(NotFound):
        history.inspection().inspect_run_timeline("run-9")
