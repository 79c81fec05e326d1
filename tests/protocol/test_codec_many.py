"""Reading many facts at once is reading each of them; and whatever is written can be read, wherever it stands."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from squid_dagster.protocol import Fact, MalformedFact, UnknownFact, decode, encode
from squid_dagster.protocol.codec import StoredColumns, decode_many
from squid_dagster.protocol.errors import InvalidFact
from tests.facts import EXAMPLES, applied, child, dead_lettered, planned, quarantined, scheduled, with_fields
from tests.histories import facts, json_objects

DIGITS = "9" * 250
# Numbers as JSON can spell them: too large for a float in every way, and as large as one may be.
SPELLINGS = ["1e400", "-1E+999", "[1e400]", '{"a":[-1e999]}', DIGITS + "e99", "9" * 400 + ".0", "9" * 5000]
SPELLINGS += ["NaN", "-Infinity", "1e308", "9" * 400, "1e-999", "0e999"]


def columns(fact: Fact) -> StoredColumns:
    return StoredColumns(fact.thread, *encode(fact))


def spelled(fact: Fact, name: str, number: str) -> StoredColumns:
    """Return the columns of a fact that holds a number in this spelling under that name."""
    good = columns(fact)
    return good._replace(data=json.dumps({**json.loads(good.data), name: "<here>"}).replace('"<here>"', number))


def _awkward(draw: st.DrawFn, good: StoredColumns) -> StoredColumns:
    """Generate columns with something wrong, or unusual, in one of them."""
    body = json.loads(good.data)
    match draw(st.integers(0, 7)):
        case 0 | 1:
            name = draw(st.sampled_from(["unheard_of", *body]))
            text = json.dumps({**body, name: "<here>"}).replace('"<here>"', draw(st.sampled_from(SPELLINGS)))
            return good._replace(data=text)
        case 2:
            return good._replace(thread=draw(st.sampled_from(["squid:run:other", "squid:dispatch:other", "", "x"])))
        case 3:
            return good._replace(type=draw(st.sampled_from(["unheard_of", "", *(fact.type for fact in EXAMPLES)])))
        case 4:
            return good._replace(run_id=draw(st.sampled_from([None, "other", "", 'quoted"', "ü", "\n"])))
        case 5:
            texts = st.sampled_from(["{}", "[]", "null", "1", '"{}"', "{ }", "\t{}\n"])
            return good._replace(data=draw(texts | json_objects().map(json.dumps)))
        case 6:
            deep = draw(st.sampled_from([90, 120, 190, 200, 300, 5000]))
            return good._replace(data=f'{good.data[:-1]},"deep":{"[" * deep}{"]" * deep}}}')
    again = draw(st.sampled_from(['"run_id":"other"', '"occurred_at":"x"', '"type":"x"', '"queue":"q"']))
    return good._replace(data=f"{good.data[:-1]},{again}}}")


@st.composite
def stored(draw: st.DrawFn) -> list[StoredColumns]:
    """Generate columns of few types, most of them good."""
    some = draw(st.lists(st.sampled_from(EXAMPLES) | facts(), min_size=1, max_size=3))
    good = [columns(draw(st.sampled_from(some))) for _ in range(draw(st.integers(2, 10)))]
    return [_awkward(draw, row) if draw(st.integers(0, 3)) == 0 else row for row in good]


@settings(max_examples=300)
@given(stored())
def test_many_are_read_as_each_of_them_is(some: list[StoredColumns]) -> None:
    one_by_one = [decode(*row) for row in some]
    together = decode_many(some)
    assert together == one_by_one
    assert [type(fact) for fact in together] == [type(fact) for fact in one_by_one]


@pytest.mark.parametrize("number", ["1e400", "[-1e999]", DIGITS + "e99", "NaN"], ids=lambda number: number[:8])
@pytest.mark.parametrize("name", ["result", "transition", "unheard_of"])
def test_a_number_that_is_not_finite_makes_one_of_many_unreadable(name: str, number: str) -> None:
    good, bad = columns(applied()), spelled(applied(), name, f'{{"a":{number}}}')
    decoded = decode_many([good, bad, good])
    assert [type(fact) is MalformedFact for fact in decoded] == [False, True, False]
    assert isinstance(decode(*bad), MalformedFact)


@pytest.mark.parametrize("number", ["1e400", DIGITS + "e99", "NaN"], ids=lambda number: number[:8])
def test_a_number_that_is_not_finite_is_found_in_a_part_and_in_a_fact_of_an_unknown_type(number: str) -> None:
    origin = f'{{"runnable_key":"k","step":"s","attempt":1,"unheard_of":{number}}}'
    for bad in (spelled(child(), "origin", origin), spelled(child(), "x", number)._replace(type="unheard_of")):
        assert isinstance(decode(*bad), MalformedFact)
        assert all(isinstance(fact, MalformedFact) for fact in decode_many([bad, bad]))
    fine = spelled(child(), "x", "1e300")._replace(type="unheard_of")
    assert isinstance(decode(*fine), UnknownFact)


# --- writing --------------------------------------------------------------------------------------------------------


def containers(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every mutable object and list within a fact, and where it stands."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from containers(getattr(value, name), f"{where}.{name}")
        yield f"{where}.*", value.__pydantic_extra__
    elif isinstance(value, dict):
        yield where, value
        for name, item in value.items():
            yield from containers(item, f"{where}.{name}")
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from containers(item, f"{where}.{i}")


def _full(fact: Fact) -> Fact:
    """Return the fact with an object in every field that may hold one."""
    for name, field in type(fact).model_fields.items():
        if "dict[str, JsonValue]" in str(field.annotation).replace("pydantic.types.", ""):
            fact = with_fields(fact, **{name: {"filled": 1}})
    return fact


PLACES = [
    pytest.param(fact, where, id=f"{'full' if fact is full else 'bare'} {fact.type}{where}")
    for bare, full in ((fact, _full(fact)) for fact in EXAMPLES)
    for fact in (bare, full)
    for where, _ in containers(fact)
]


@pytest.mark.parametrize(("fact", "where"), PLACES)
@pytest.mark.parametrize(
    "bent",
    [float("nan"), {"a": [float("-inf")]}, "nul \0", "\ud800", 10**5000, object()],
    ids=["nan", "infinity", "nul", "surrogate", "long", "no json"],
)
def test_what_cannot_be_read_is_never_written_wherever_it_was_put(fact: Fact, where: str, bent: Any) -> None:
    made = type(fact).model_validate_json(fact.model_dump_json())
    dict(containers(made))[where]["bent"] = bent
    with pytest.raises(InvalidFact):
        encode(made)


@pytest.mark.parametrize(
    "fact",
    [
        with_fields(dead_lettered(), deliveries=10**5000),
        with_fields(quarantined(), entry_seq=10**5000),
        with_fields(scheduled(), input={}, max_deliveries=10**5000),
    ],
    ids=lambda fact: fact.type,
)
def test_a_number_that_is_too_long_to_be_read_is_not_written_by_a_fact_without_payload_either(fact: Fact) -> None:
    with pytest.raises(InvalidFact):
        encode(fact)


@pytest.mark.parametrize("fact", EXAMPLES, ids=lambda fact: fact.type)
def test_every_example_is_read_among_its_like(fact: Fact) -> None:
    assert decode_many([columns(fact)] * 3) == [fact] * 3


def test_nothing_is_read_as_nothing() -> None:
    assert decode_many([]) == []


def test_places_are_found_in_parts_too() -> None:
    places = {where for where, _ in containers(_full(planned()))} | {where for where, _ in containers(_full(child()))}
    assert {".runnables.0.input", ".runnables.0.*", ".*", ".origin.*", ".metadata", ".child_input"} <= places
