"""Facts to stored columns and back: the identity for every fact, a refusal for every bad one, no error on reading."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squid_dagster.protocol import (
    FACT_TYPES,
    AttemptScheduled,
    Fact,
    MalformedFact,
    RunQueued,
    UnknownFact,
    decode,
    dispatch_thread,
    encode,
    parse_fact,
    run_thread,
    to_json,
)
from squid_dagster.protocol.codec import EncodedFact
from squid_dagster.protocol.entries import StoredFact
from squid_dagster.protocol.errors import InvalidFact
from tests.facts import (
    EXAMPLES,
    T0,
    completed,
    planned,
    queue_paused,
    queued,
    runnable,
    scheduled,
    signal,
    started,
    t,
    with_fields,
)
from tests.histories import facts, json_objects, json_values, texts

QUEUE_THREAD = dispatch_thread("default")
NAIVE = T0.replace(tzinfo=None)
OUTCOME = f'"runnable_key":"k","claim_id":"a","claim_token_hash":"{"0" * 64}"'


def there_and_back(fact: Fact) -> StoredFact:
    return decode(fact.thread, *encode(fact))


def read_result(text: str) -> StoredFact:
    """Read an attempt_completed whose result is this JSON text."""
    return decode(QUEUE_THREAD, "attempt_completed", "run-1", T0, f'{{{OUTCOME},"result":{text}}}')


# --- round trips ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fact", EXAMPLES, ids=lambda fact: fact.type)
def test_every_type_of_fact_comes_back_as_it_was(fact: Fact) -> None:
    assert there_and_back(fact) == fact
    assert parse_fact(to_json(fact)) == fact
    assert parse_fact(to_json(fact).encode()) == fact


@pytest.mark.parametrize("fact", EXAMPLES, ids=lambda fact: fact.type)
def test_what_every_fact_has_is_a_column_and_not_in_the_data(fact: Fact) -> None:
    stored = encode(fact)

    assert (stored.type, stored.run_id, stored.occurred_at) == (
        fact.type,
        getattr(fact, "run_id", None),
        fact.occurred_at,
    )
    assert not {"type", "run_id", "occurred_at"} & set(json.loads(stored.data))


def test_optional_fields_that_are_none_take_no_room_and_come_back_as_none() -> None:
    fact = started(trigger=None, queue=None)

    assert "trigger" not in encode(fact).data
    assert there_and_back(fact) == fact


def test_a_null_result_is_a_result() -> None:
    fact = completed(result=None)

    assert json.loads(encode(fact).data)["result"] is None
    assert there_and_back(fact) == fact


@settings(max_examples=150)
@given(facts(), json_objects())
def test_any_fact_comes_back_as_it_was_with_the_fields_that_it_does_not_know(fact: Fact, strange: Any) -> None:
    names = {f"x{name}": value for name, value in strange.items()}
    fact = with_fields(fact, **names)

    back = there_and_back(fact)

    assert back == fact
    assert back.__pydantic_extra__ == fact.__pydantic_extra__
    assert parse_fact(to_json(fact)) == fact


@settings(max_examples=200)
@given(json_values(), json_objects(), json_objects())
def test_any_json_value_comes_back_with_its_types(result: Any, payload: Any, metadata: Any) -> None:
    for fact in (completed(result=result), signal(payload=payload, metadata=metadata), scheduled(input=payload)):
        back = there_and_back(fact)
        assert back == fact
        # 1 == 1.0 == True and 0.0 == -0.0 in Python, but not in a journal.
        assert repr(back) == repr(fact)


@settings(max_examples=100)
@given(texts, texts, st.datetimes(timezones=st.timezones(), min_value=NAIVE.replace(1900), max_value=NAIVE))
def test_texts_and_times_come_back_as_they_were(step: str, comment: str, at: Any) -> None:
    fact = signal(signal_type=step or "x", comment=comment or None, occurred_at=at)

    assert there_and_back(fact) == fact


@pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", "\\\\\\u0000", "\\", "\\\\", 'a"b', "\x01", "\u2028", "🦑"])
def test_a_text_that_only_looks_like_an_escape_is_kept(text: str) -> None:
    fact = scheduled(input={text: [text]})

    assert there_and_back(fact) == fact


@pytest.mark.parametrize("number", [2**63, -(2**63), 10**30, 1e300, 5e-324, 1.7976931348623157e308, -0.0, 0.1])
def test_a_number_comes_back_to_the_last_bit(number: float) -> None:
    back = there_and_back(completed(result=number))

    assert repr(back) == repr(completed(result=number))


# --- what encode refuses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 5, {}, "run_queued", UnknownFact("x", None, T0, {}), RunQueued])
def test_what_is_no_fact_cannot_be_stored(value: Any) -> None:
    with pytest.raises(InvalidFact, match="is not a fact"):
        encode(value)


def test_a_home_made_kind_of_fact_cannot_be_stored() -> None:
    class Teleported(RunQueued):
        pass

    with pytest.raises(InvalidFact, match="Teleported is not a fact"):
        encode(Teleported(run_id="run-1", occurred_at=T0))


@pytest.mark.parametrize("text", ["\0", "a\0b", "\\\0", "\\\\\0"])
def test_a_nul_character_cannot_be_stored(text: str) -> None:
    for fact in (scheduled(input={"a": text}), scheduled(input={text: 1}), queued(added_later=text)):
        with pytest.raises(InvalidFact, match="NUL"):
            encode(fact)


@pytest.mark.parametrize("value", [{"a": "\ud800"}, {"\ud800": 1}, {"a": [{"b": "x\udfff"}]}])
def test_a_lone_surrogate_cannot_be_stored(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidFact, match="attempt_scheduled"):
        encode(scheduled(input=value))


def test_a_fact_that_is_too_large_is_refused_with_its_size() -> None:
    large = completed(result="x" * 2000)

    with pytest.raises(InvalidFact, match=r"attempt_completed takes 2,\d\d\d bytes, more than the 1,000 allowed"):
        encode(large, max_bytes=1000)
    with pytest.raises(InvalidFact, match="more than the 16,777,216 allowed"):
        encode(completed(result="x" * 16 * 1024 * 1024))
    assert encode(large, max_bytes=3000)


def test_the_size_of_a_fact_counts_bytes_and_not_characters() -> None:
    with pytest.raises(InvalidFact, match="bytes"):
        encode(completed(result="🦑" * 300), max_bytes=1000)


def test_nesting_beyond_what_can_be_read_back_is_refused() -> None:
    deep: Any = 1
    for _ in range(220):
        deep = [deep]

    with pytest.raises(InvalidFact, match="attempt_completed"):
        encode(completed(result=deep))


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"attempt_number": "x"}, "attempt_number"),
        ({"attempt_number": 0}, "attempt_number"),
        ({"run_id": 5}, "run_id"),
        ({"run_id": None}, "run_id"),
        ({"run_id": "a b"}, "run_id"),
        ({"run_id": 'a"b'}, "run_id"),
        ({"queue": "a b"}, "queue"),
        ({"occurred_at": "2026-01-01T00:00:00Z"}, "attempt_scheduled"),
        ({"occurred_at": NAIVE}, "occurred_at"),
        ({"occurred_at": None}, "attempt_scheduled"),
        ({"visible_at": "2026-01-01T00:00:00Z"}, "attempt_scheduled"),
        ({"visible_at": NAIVE}, "visible_at"),
        ({"input": {"a": float("nan")}}, "attempt_scheduled"),
        ({"input": {"a": [float("inf")]}}, "attempt_scheduled"),
        ({"input": {1: 2}}, "attempt_scheduled"),
        ({"input": {"a": (1, 2)}}, "attempt_scheduled"),
        ({"input": {"a": {1, 2}}}, "attempt_scheduled"),
        ({"input": {"a": LOOP}}, "attempt_scheduled"),
        ({"input": [1]}, "input"),
        ({"type": "run_queued"}, "run_queued"),
        ({"added_later": object()}, "attempt_scheduled"),
        ({"added_later": T0}, "attempt_scheduled"),
        ({"added_later": float("-inf")}, "attempt_scheduled"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_fact_that_was_bent_after_it_was_made_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidFact, match=said):
        encode(scheduled().model_copy(update=wrong))


def test_a_fact_that_was_made_without_validation_is_refused() -> None:
    unchecked: Any = AttemptScheduled.model_construct

    with pytest.raises(InvalidFact, match="occurred_at"):
        encode(unchecked())
    with pytest.raises(InvalidFact, match="runnable_key: Field required"):
        encode(unchecked(run_id="run-1", occurred_at=T0))


def test_a_bent_part_of_a_fact_is_refused_too() -> None:
    with pytest.raises(InvalidFact, match="attempt_number"):
        runnable().model_copy(update={"attempt_number": 0})
    with pytest.raises(InvalidFact, match="runnables_planned"):
        encode(planned().model_copy(update={"runnables": [runnable().model_dump() | {"attempt_number": 0}]}))


@pytest.mark.parametrize("value", [float("nan"), {"deep": [float("inf")]}, object(), "\ud800", {"\ud800": 1}])
def test_a_payload_that_was_bent_after_the_fact_was_made_is_refused(value: Any) -> None:
    fact = scheduled(input={"amount": 5})
    fact.input["amount"] = value

    with pytest.raises(InvalidFact, match="attempt_scheduled"):
        encode(fact)


def test_metadata_that_comes_by_a_copy_is_redacted_as_well() -> None:
    assert "s3cret" not in encode(signal().model_copy(update={"metadata": {"token": "s3cret"}})).data


def test_metadata_that_slipped_by_the_redaction_is_refused() -> None:
    fact = signal(metadata={"source": "api"})
    fact.metadata["token"] = "s3cret"

    with pytest.raises(InvalidFact, match="run_signal_received"):
        encode(fact)


# --- decode never raises --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    ["", "null", "5", "[]", '"x"', "{", "{}}", '{"a":', "not json", " ", '{"queue": 5}', "{'a': 1}", '{"a":1,}', "\0"],
)
def test_what_cannot_be_read_comes_back_as_a_malformed_fact(data: str) -> None:
    decoded = decode(QUEUE_THREAD, "run_queued", "run-1", T0, data)

    assert isinstance(decoded, MalformedFact)
    assert (decoded.type, decoded.run_id, decoded.occurred_at, decoded.data) == ("run_queued", "run-1", T0, data)
    assert decoded.reason


def test_a_malformed_fact_names_the_field_that_is_missing() -> None:
    decoded = decode(QUEUE_THREAD, "attempt_claimed", "run-1", T0, '{"queue":"default"}')

    assert isinstance(decoded, MalformedFact)
    assert "runnable_key: Field required" in decoded.reason


def test_a_fact_on_a_thread_where_it_does_not_belong_is_malformed() -> None:
    decoded = decode(run_thread("run-1"), *encode(queued()))

    assert isinstance(decoded, MalformedFact)
    assert "squid:dispatch:default" in decoded.reason


@pytest.mark.parametrize(
    "text", ["NaN", "Infinity", "-Infinity", "1e999", "[-1e999]", '{"a": 1e400}', "1" * 400 + ".0"]
)
def test_a_number_that_is_not_finite_is_malformed_lest_a_fold_stumble_over_it(text: str) -> None:
    assert isinstance(read_result(text), MalformedFact)


@pytest.mark.parametrize("text", ["1" * 5000, "[" * 5000 + "]" * 5000, r'"\ud800"', '"\x01"'])
def test_json_that_python_cannot_hold_is_malformed(text: str) -> None:
    assert isinstance(read_result(text), MalformedFact)


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:00:00-12:00", "2026-01-01T00:00:00", "x"])
def test_a_time_that_utc_cannot_express_is_malformed(time: str) -> None:
    data = json.loads(encode(scheduled()).data) | {"visible_at": time}

    assert isinstance(decode(QUEUE_THREAD, "attempt_scheduled", "run-1", T0, json.dumps(data)), MalformedFact)


def test_a_fact_of_a_later_version_is_kept_whole() -> None:
    decoded = decode(QUEUE_THREAD, "attempt_teleported", "run-1", T0, '{"to": "mars", "n": [1]}')

    assert decoded == UnknownFact("attempt_teleported", "run-1", T0, {"to": "mars", "n": [1]})
    assert json.loads(to_json(decoded)) == {
        "type": "attempt_teleported",
        "run_id": "run-1",
        "occurred_at": "2026-01-01T00:00:00+00:00",
        "to": "mars",
        "n": [1],
    }


@pytest.mark.parametrize("data", ["", "[]", "{", "[" * 100_000, '{"a":' + "[" * 100_000, '{"n": ' + "1" * 5000 + "}"])
def test_a_fact_of_a_later_version_that_cannot_be_read_is_malformed(data: str) -> None:
    assert isinstance(decode(QUEUE_THREAD, "attempt_teleported", "run-1", T0, data), MalformedFact)


def test_a_run_column_and_data_that_disagree_never_move_a_fact_to_another_run() -> None:
    decoded = decode(QUEUE_THREAD, "run_queued", "run-1", T0, '{"queue":"default","run_id":"run-2"}')

    assert decoded.run_id == "run-1"  # type: ignore[union-attr]


def test_a_run_column_is_data_and_never_syntax() -> None:
    for odd in ('a","run_id":"b', "a\\", "a\n", "a\\u0062", ""):
        decoded = decode(QUEUE_THREAD, "run_queued", odd, T0, '{"queue":"default"}')
        assert isinstance(decoded, MalformedFact), odd


def test_a_missing_run_column_is_malformed_where_a_run_is_needed() -> None:
    assert isinstance(decode(QUEUE_THREAD, "run_queued", None, T0, "{}"), MalformedFact)
    assert decode(QUEUE_THREAD, "queue_paused", None, t(5), "{}") == queue_paused(at=5)


@settings(max_examples=200)
@given(
    st.sampled_from([*sorted(FACT_TYPES), "attempt_teleported"]),
    st.none() | st.text(max_size=5) | st.just("run-1"),
    st.text(max_size=30) | json_objects().map(json.dumps) | json_values().map(json.dumps),
)
def test_reading_never_raises(type_name: str, run_id: str | None, data: str) -> None:
    decoded = decode(QUEUE_THREAD, type_name, run_id, T0, data)

    assert decoded.type == type_name


@settings(max_examples=100)
@given(facts(), st.data())
def test_a_stored_fact_with_a_value_bent_is_read_or_surfaced_but_never_raises(fact: Fact, data: st.DataObject) -> None:
    stored = encode(fact)
    values = json.loads(stored.data)
    name = data.draw(st.sampled_from(sorted(values) or ["queue"]))
    values[name] = data.draw(json_values())

    decoded = decode(fact.thread, *EncodedFact(fact.type, stored.run_id, stored.occurred_at, json.dumps(values)))

    assert isinstance(decoded, MalformedFact) or there_and_back(decoded) == decoded  # type: ignore[arg-type]
