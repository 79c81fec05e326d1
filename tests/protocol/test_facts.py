"""Facts: which thread each belongs on, and every shape that is refused, with a message that says what is wrong."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from squid_dagster.protocol import (
    BACKLOG_THREAD,
    CATALOG_THREAD,
    DEFAULT_MAX_DELIVERIES,
    FACT_TYPES,
    Fact,
    Origin,
    dispatch_thread,
    parse_fact,
    run_index_thread,
    run_thread,
)
from squid_dagster.protocol.errors import InvalidFact
from tests.facts import (
    CARD_EXAMPLES,
    EXAMPLES,
    child,
    claimed,
    completed,
    failed,
    failed_with_retry,
    heartbeat,
    indexed,
    key,
    planned,
    quarantined,
    queue_paused,
    queue_resumed,
    queued,
    runnable,
    scheduled,
    signal,
    started,
    step_paused,
    step_resolved,
    t,
    terminal,
)

DISPATCH, RUN = dispatch_thread("default"), run_thread("run-1")
THREADS = {
    "run_signal_received": RUN,
    "run_started": RUN,
    "runnables_planned": RUN,
    "runnable_applied": RUN,
    "child_run_started": RUN,
    "manual_step_paused": RUN,
    "manual_step_resolved": RUN,
    "run_terminal": RUN,
    "entry_quarantined": RUN,
    "run_queued": DISPATCH,
    "attempt_scheduled": DISPATCH,
    "attempt_claimed": DISPATCH,
    "attempt_heartbeat": DISPATCH,
    "attempt_released": DISPATCH,
    "attempt_completed": DISPATCH,
    "attempt_failed": DISPATCH,
    "attempt_dead_lettered": DISPATCH,
    "live_wakeup_emitted": DISPATCH,
    "run_fenced": DISPATCH,
    "queue_paused": DISPATCH,
    "queue_resumed": DISPATCH,
    "run_indexed": run_index_thread("billing"),
    "run_cataloged": CATALOG_THREAD,
    **{fact.type: BACKLOG_THREAD for fact in CARD_EXAMPLES},
}
REQUIRED = [(fact, name) for fact in EXAMPLES for name, info in type(fact).model_fields.items() if info.is_required()]


def values(fact: Fact) -> dict[str, Any]:
    return {**dict(fact), "type": fact.type}


# --- all facts ------------------------------------------------------------------------------------------------------


def test_every_type_of_fact_has_its_thread() -> None:
    assert {fact.type: fact.thread for fact in EXAMPLES} == THREADS
    assert set(FACT_TYPES) == set(THREADS)


@pytest.mark.parametrize("fact", EXAMPLES, ids=lambda fact: fact.type)
def test_a_fact_never_changes(fact: Fact) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        setattr(fact, "occurred_at", t(1))  # noqa: B010  a type checker would not let it pass


@pytest.mark.parametrize("fact", EXAMPLES, ids=lambda fact: fact.type)
def test_a_fact_keeps_the_fields_that_it_does_not_know(fact: Fact) -> None:
    parsed = parse_fact({**values(fact), "added_later": {"a": [1, None]}})

    assert parsed.__pydantic_extra__ == {"added_later": {"a": [1, None]}}


@pytest.mark.parametrize(("fact", "name"), REQUIRED, ids=lambda value: getattr(value, "type", value))
def test_a_missing_field_is_named(fact: Fact, name: str) -> None:
    given = values(fact)
    del given[name]

    with pytest.raises(InvalidFact, match=rf"{name}: Field required"):
        parse_fact(given)


@pytest.mark.parametrize(
    ("fact", "name"),
    [(fact, name) for fact, name in REQUIRED if (fact.type, name) != ("attempt_completed", "result")],
    ids=lambda value: getattr(value, "type", value),
)
@pytest.mark.parametrize("wrong", [None, object()], ids=["none", "object"])
def test_a_value_of_a_wrong_type_is_refused_under_the_name_of_its_field(fact: Fact, name: str, wrong: object) -> None:
    with pytest.raises(InvalidFact, match=name):
        parse_fact({**values(fact), name: wrong})


@pytest.mark.parametrize(
    "given",
    [
        {"attempt_number": "1"},
        {"attempt_number": 1.0},
        {"attempt_number": True},
        {"attempt_number": 0},
        {"priority": 11},
        {"priority": -11},
        {"max_deliveries": 0},
        {"run_id": 5},
        {"step": b"charge"},
        {"step": ""},
        {"step": "x" * 1001},
        {"input": []},
        {"input": {1: 2}},
        {"input": {"a": (1, 2)}},
        {"visible_at": "2026-01-01T00:00:00Z"},
        {"visible_at": 0},
        {"workflow": "two words"},
        {"definition_version": ""},
    ],
    ids=str,
)
def test_nothing_is_coerced_or_stretched(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(given))):
        scheduled(**given)


# --- times ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fact", EXAMPLES, ids=lambda fact: fact.type)
def test_a_naive_time_is_refused(fact: Fact) -> None:
    with pytest.raises(InvalidFact, match="occurred_at: Input should have timezone info"):
        parse_fact({**values(fact), "occurred_at": datetime(2026, 1, 1)})  # noqa: DTZ001  that is the point


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (scheduled, "visible_at"),
        (claimed, "lease_until"),
        (heartbeat, "lease_until"),
        (failed_with_retry, "retry_visible_at"),
        (step_paused, "paused_at"),
        (child, "started_at"),
        (runnable, "visible_at"),
    ],
)
def test_every_other_naive_time_is_refused_too(build: Any, name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        build(**{name: datetime(2026, 1, 1)})  # noqa: DTZ001  that is the point


def test_times_are_turned_into_utc() -> None:
    fact = queued(occurred_at=datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))))

    assert fact.occurred_at == t(0)
    assert fact.occurred_at.tzinfo is UTC


@pytest.mark.parametrize(
    "beyond",
    [
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
        datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-12))),
    ],
    ids=["before the first", "after the last"],
)
def test_a_time_that_utc_cannot_express_is_refused_like_any_wrong_value(beyond: datetime) -> None:
    with pytest.raises(ValidationError, match="visible_at"):
        scheduled(visible_at=beyond)
    with pytest.raises(InvalidFact, match="occurred_at"):
        parse_fact({**values(queued()), "occurred_at": beyond})


@pytest.mark.parametrize("build", [claimed, heartbeat])
@pytest.mark.parametrize("until", [t(9), t(10)], ids=["before", "at once"])
def test_a_lease_ends_after_it_begins(build: Any, until: datetime) -> None:
    with pytest.raises(ValidationError, match=rf"lease_until {until.isoformat()[:19]}.* must be after occurred_at"):
        build(at=10, lease_until=until)


# --- what JSON or Postgres cannot hold ------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "place",
    [
        lambda x: scheduled(input={"a": x}),
        lambda x: scheduled(input={"a": [{"b": [x]}]}),
        lambda x: completed(result=x),
        lambda x: failed(error={"a": {"b": x}}),
        lambda x: signal(metadata={"a": x}),
        lambda x: queued(added_later=x),
        lambda x: queued(added_later={"a": [x]}),
        lambda x: planned(runnable(added_later=[x])),
        lambda x: child(origin=Origin(runnable_key="k", step="s", attempt=1, added_later=x)),
    ],
)
def test_a_number_that_is_not_finite_is_refused_wherever_it_stands(place: Any, number: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        place(number)


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-Infinity", "1e999", "[-1e999]", '{"a": 1e400}', "1" * 400 + ".0"]
)
def test_a_number_that_is_not_finite_is_refused_in_json_text_too(text: str) -> None:
    head = '"type":"attempt_completed","run_id":"run-1","runnable_key":"k","claim_id":"a","occurred_at":'
    whole = f'{{{head}"2026-01-01T00:00:00Z","claim_token_hash":"{"0" * 64}","result":{text}}}'

    with pytest.raises(InvalidFact):
        parse_fact(whole)


@pytest.mark.parametrize(
    "odd", [object(), (1, 2), {1, 2}, b"x", datetime(2026, 1, 1, tzinfo=UTC)], ids=lambda odd: type(odd).__name__
)
def test_an_unknown_field_must_be_json_as_well(odd: object) -> None:
    with pytest.raises(ValidationError, match="added_later"):
        queued(added_later=odd)


def test_a_lone_surrogate_in_a_text_field_is_refused() -> None:
    with pytest.raises(ValidationError, match="step"):
        scheduled(step="a\ud800")


def test_a_number_too_large_to_print_is_refused_like_any_wrong_value() -> None:
    with pytest.raises(InvalidFact, match="priority"):
        parse_fact({**values(scheduled()), "priority": 10**5000})


# --- parts of thread ids --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", ["", "a b", "a:b", "-a", "a\n", "\na", "ä", "a" * 201])
@pytest.mark.parametrize(
    ("build", "name"),
    [
        (queued, "run_id"),
        (queued, "queue"),
        (started, "run_id"),
        (started, "workflow"),
        (started, "queue"),
        (started, "replayed_from_run_id"),
        (indexed, "workflow"),
        (indexed, "queue"),
        (child, "child_run_id"),
        (child, "child_workflow"),
        (queue_paused, "queue"),
    ],
)
def test_an_odd_part_of_a_thread_id_is_refused_under_its_name(build: Any, name: str, odd: str) -> None:
    with pytest.raises(ValidationError, match=name):
        build(**{name: odd})


def test_a_queue_that_is_not_named_is_the_default_one_but_none_is_no_queue() -> None:
    given = values(queued())
    del given["queue"]

    assert parse_fact(given).thread == dispatch_thread("default")
    with pytest.raises(InvalidFact, match="queue"):
        parse_fact({**given, "queue": None})


# --- rules of single facts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half", [{"retry_runnable_key": "k"}, {"retry_visible_at": t(40)}])
def test_a_retry_is_given_whole_or_not_at_all(half: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="retry_runnable_key and retry_visible_at must be given together"):
        failed(**half)


def test_a_retry_has_a_key_of_its_own() -> None:
    with pytest.raises(ValidationError, match=rf"'{key()}' must differ"):
        failed_with_retry(retry_runnable_key=key())


@pytest.mark.parametrize("odd", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 64 + "\n"])
def test_a_token_hash_is_a_sha256_in_lower_case_hex(odd: str) -> None:
    with pytest.raises(ValidationError, match="claim_token_hash"):
        completed(claim_token_hash=odd)


@pytest.mark.parametrize("token", [0, -1, True, "1"])
def test_a_fencing_token_counts_from_one(token: object) -> None:
    with pytest.raises(ValidationError, match="fencing_token"):
        claimed(fencing_token=token)


@pytest.mark.parametrize(
    ("build", "name", "odd"),
    [
        (terminal, "status", "done"),
        (step_paused, "kind", "wait"),
        (step_resolved, "action", "ignored"),
        (quarantined, "entry_seq", 0),
        (signal, "signal_type", ""),
        (signal, "actor", 5),
        (signal, "metadata", []),
    ],
)
def test_a_value_that_is_not_among_the_allowed_ones_is_refused(build: Any, name: str, odd: object) -> None:
    with pytest.raises(ValidationError, match=name):
        build(**{name: odd})


def test_a_plan_names_no_runnable_of_another_run() -> None:
    with pytest.raises(ValidationError, match="run-2"):
        planned(runnable("run-2"), run="run-1")


@pytest.mark.parametrize("build", [queue_paused, queue_resumed])
@pytest.mark.parametrize("run_id", ["run-1", 5, None])
def test_a_fact_about_a_queue_names_no_run(build: Any, run_id: object) -> None:
    with pytest.raises(ValidationError, match="run_id"):
        build(run_id=run_id)


def test_defaults_are_those_of_the_design() -> None:
    fact = scheduled()

    assert (fact.priority, fact.max_deliveries, fact.queue) == (0, DEFAULT_MAX_DELIVERIES, "default")
    assert DEFAULT_MAX_DELIVERIES == 5


# --- parse_fact -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "5"),
        (None, "None"),
        ({}, "type"),
        ({"type": "attempt_teleported"}, "attempt_teleported"),
        ("{", "JSON"),
        (b"\xff", "JSON"),
        ("[]", "value"),
    ],
)
def test_what_is_no_fact_is_refused_with_the_reason(given: object, said: str) -> None:
    with pytest.raises(InvalidFact, match=said):
        parse_fact(given)


def test_a_message_names_a_short_value_and_only_the_type_of_a_long_one() -> None:
    with pytest.raises(InvalidFact, match=r"priority: .*\(got 77\)"):
        parse_fact({**values(scheduled()), "priority": 77})
    with pytest.raises(InvalidFact, match=r"step: .*\(got str\)"):
        parse_fact({**values(scheduled()), "step": "x" * 1001})
