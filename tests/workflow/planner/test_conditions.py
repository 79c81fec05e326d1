"""Conditions: what they refuse, what a missing path means, and how JSON values compare."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.workflow import Condition, Operator, path
from squid_dagster.workflow.values import canonical

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)
orders = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()


def questions(value: Any, order: Any) -> list[Condition]:
    place = path("a.b")
    asked = [place == value, place != value, place.exists()]
    return [*asked, place < order, place <= order, place > order, place >= order]


@pytest.mark.parametrize(
    "use",
    [
        lambda: bool(path("a") > 3),
        lambda: not path("a").exists(),
        lambda: (path("a") > 3) and (path("b") < 3),
        lambda: 3 < path("a") < 5,
        lambda: 5 if path("a") == 5 else 6,
    ],
)
def test_a_condition_used_as_a_bool_raises_and_says_what_to_do(use: Any) -> None:
    with pytest.raises(TypeError, match=r"neither true nor false before a run reaches it: hand it to route"):
        use()


def test_a_path_used_as_a_bool_raises() -> None:
    with pytest.raises(TypeError, match=r"path\('a\.b'\) is a place in a run's state"):
        bool(path("a.b"))


def test_a_path_cannot_be_hashed() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        {path("a")}


@pytest.mark.parametrize("place", ["", ".", "a.", ".a", "a..b", None, 5])
def test_a_path_is_names_divided_by_dots(place: Any) -> None:
    with pytest.raises(InvalidArgument, match="is not a path"):
        path(place)


@pytest.mark.parametrize("value", [object(), {1: "a"}, {"a"}, float("nan"), float("inf"), b"x", path("b"), (1, 2)])
def test_a_value_that_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"compared with path\('a'\) must be a JSON value"):
        _ = path("a") == value
    with pytest.raises(InvalidArgument, match=r"compared with path\('a'\) must be a JSON value"):
        _ = path("a") != value


@pytest.mark.parametrize("value", [None, True, [1], {"a": 1}, float("nan"), float("inf")])
def test_only_finite_numbers_and_texts_have_an_order(value: Any) -> None:
    for compare in (path("a").__lt__, path("a").__le__, path("a").__gt__, path("a").__ge__):
        with pytest.raises(InvalidArgument):
            compare(value)


@given(values, orders, st.sampled_from([{}, {"a": None}, {"a": {}}, {"a": []}, {"a": "b"}, {"b": 1}, {"a": {"B": 1}}]))
def test_a_missing_path_makes_every_condition_false(value: Any, order: Any, state: dict[str, Any]) -> None:
    assert not any(question.holds(state) for question in questions(value, order))


@given(values, values)
def test_equality_is_that_of_json_and_its_opposite_is_its_opposite(held: Any, value: Any) -> None:
    state = {"a": {"b": held}}
    equal = (path("a.b") == value).holds(state)

    assert equal == (canonical(held) == canonical(value))
    assert (path("a.b") != value).holds(state) is not equal
    assert path("a.b").exists().holds(state)


@given(values)
def test_a_value_equals_itself_after_a_round_trip(value: Any) -> None:
    assert (path("a") == value).holds({"a": json.loads(json.dumps(value))})


@given(orders, orders)
def test_exactly_one_of_less_equal_and_greater_holds_for_values_of_one_kind(held: Any, value: Any) -> None:
    state = {"a": {"b": held}}
    place = path("a.b")
    less, equal, greater = ((q).holds(state) for q in (place < value, place == value, place > value))

    assert less + equal + greater == (isinstance(held, str) == isinstance(value, str))
    assert (place <= value).holds(state) == (less or equal)
    assert (place >= value).holds(state) == (greater or equal)


@pytest.mark.parametrize("held", [None, True, [], {}, "4"])
def test_values_of_another_kind_have_no_order(held: Any) -> None:
    state = {"a": held}
    assert not any(q.holds(state) for q in (path("a") < 3, path("a") <= 3, path("a") > 3, path("a") >= 3))


def test_true_is_not_one() -> None:
    assert not (path("a") == 1).holds({"a": True})
    assert not (path("a") == [True]).holds({"a": [1]})
    assert (path("a") == {"b": [1]}).holds({"a": {"b": [1.0]}})


def test_a_path_walks_through_objects_and_lists() -> None:
    state: dict[str, Any] = {"lines": [{"sku": "x"}, {"sku": "y"}], "by": {"0": "zero"}}

    assert (path("lines.1.sku") == "y").holds(state)
    assert (path("by.0") == "zero").holds(state)
    assert not path("lines.2").exists().holds(state)
    assert not path("lines.-1").exists().holds(state)
    assert not path("lines.first").exists().holds(state)


def test_a_number_on_the_left_asks_the_same() -> None:
    assert (path("a") > 3) == (path("a") > 3)
    assert (path("a") <= 3) == (path("a") <= 3)


def test_a_condition_keeps_its_value_whatever_becomes_of_the_original() -> None:
    value = {"a": [1]}
    condition = path("x") == value
    value["a"].append(2)

    assert condition.to_json() == {"path": ["x"], "operator": "==", "value": {"a": [1]}}


def test_a_condition_is_shown_as_it_was_written() -> None:
    assert str(path("gateway.status_code") > 399) == "gateway.status_code > 399"
    assert str(path("a").exists()) == "a exists"
    assert path("a").exists().to_json() == {"path": ["a"], "operator": "exists"}
    assert {operator.value for operator in Operator} == {"==", "!=", "<", "<=", ">", ">=", "exists"}
