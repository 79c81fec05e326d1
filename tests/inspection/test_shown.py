"""What people get to see of values: redacted, bounded, in words; and views as plain JSON."""

from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple

import pytest

from squid_dagster.inspection.deadlines import DeadlineState, DeadlineView
from squid_dagster.inspection.display import (
    brief,
    message_of,
    plain,
    shown,
    shown_object,
    span,
    when,
    who,
    without_values,
)
from tests.facts import t


def test_values_under_secret_keys_are_hidden_at_any_depth() -> None:
    given = {"a": [{"api_key": "hunter2", "b": 1}], "session_token": ["hunter2"]}

    assert shown(given) == {"a": [{"api_key": "[REDACTED]", "b": 1}], "session_token": "[REDACTED]"}
    assert given["session_token"] == ["hunter2"]


def test_the_hash_of_a_token_is_left_out() -> None:
    assert shown({"claim_token_hash": "ab", "x": [{"claim_token_hash": "cd"}]}) == {"x": [{}]}


def test_what_a_secret_is_compared_with_is_hidden() -> None:
    asked = {"path": ["user", "password"], "operator": "==", "value": "hunter2"}

    assert shown({"condition": asked})["condition"]["value"] == "[REDACTED]"
    assert shown({**asked, "path": ["user", "name"]})["value"] == "hunter2"
    assert shown({**asked, "path": "password"})["value"] == "hunter2"


@pytest.mark.parametrize("value", [None, 1, "x", [], {}, [None]])
def test_other_values_are_shown_as_they_are(value: Any) -> None:
    assert shown(value) == value


def test_nothing_is_an_empty_object() -> None:
    assert shown_object(None) == {}


def test_a_reason_is_told_up_to_the_first_value() -> None:
    assert without_values("a: wrong (got 'x); y: hunter2'); b: wrong (got 1)") == "a: wrong"
    assert without_values("changed after it was written") == "changed after it was written"


def test_texts_are_told_on_one_line_and_not_for_ever() -> None:
    assert brief("a\n  b\tc") == "a b c"
    assert brief("x" * 500) == "x" * 299 + "…"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (None, "no message"),
        ({}, "no message"),
        ({"message": "declined"}, "declined"),
        ({"type": "ValueError", "message": "declined"}, "ValueError: declined"),
        ({"code": "rejected"}, "rejected"),
        ({"message": {"password": "hunter2"}}, "no message"),
    ],
)
def test_an_error_is_told_in_one_line(error: dict[str, Any] | None, message: str) -> None:
    assert message_of(error) == message


@pytest.mark.parametrize(
    ("actor", "name"),
    [
        ("ada", "ada"),
        ({"id": "u-1"}, "u-1"),
        ({"id": "u-1", "name": "Ada"}, "Ada"),
        ({"token": "hunter2"}, "somebody"),
        ({"name": 7}, "somebody"),
        (None, "somebody"),
    ],
)
def test_an_actor_has_a_name(actor: object, name: str) -> None:
    assert who(actor) == name


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.4, "0 s"), (59, "59 s"), (60, "1 min"), (61, "1 min 1 s"), (3600, "1 h"), (-90, "1 min 30 s")],
)
def test_a_span_is_told_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert span(timedelta(seconds=seconds)) == text


def test_the_smaller_unit_may_be_missing() -> None:
    assert span(timedelta(days=3, minutes=5)) == "3 d"
    assert span(timedelta(days=3, hours=5, minutes=5)) == "3 d 5 h"


def test_a_time_is_told_in_utc() -> None:
    assert when(t(0.5)) == "2026-01-01T00:00:00Z"


def test_a_view_becomes_plain_json() -> None:
    class Word(StrEnum):
        YES = "yes"

    class Pair(NamedTuple):
        left: Any
        right: Any

    deadline = DeadlineView("charge", None, DeadlineState.OVERDUE, t(0), timedelta(seconds=-5), None, None)

    assert plain({"pair": Pair(Word.YES, (t(0), None)), "deadline": deadline}) == {
        "pair": {"left": "yes", "right": ["2026-01-01T00:00:00+00:00", None]},
        "deadline": {
            "step": "charge",
            "runnable_key": None,
            "state": "overdue",
            "due_at": "2026-01-01T00:00:00+00:00",
            "remaining_seconds": -5.0,
            "due_soon_at": None,
            "escalate_at": None,
        },
    }
