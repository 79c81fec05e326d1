"""What a step returns: the JSON that is journalled, and what is refused."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.workflow import Retry, Workflow
from tests.runtime.execution.single_attempts import Item, do

MIB = 1024 * 1024


@dataclass
class Point:
    """Something that pydantic can turn into JSON."""

    x: int
    at: datetime


class Colour(Enum):
    """An enumeration of texts."""

    RED = "red"


@pytest.mark.parametrize(
    ("returned", "journalled"),
    [
        (None, None),
        (True, True),
        (10**30, 10**30),
        (1.5, 1.5),
        ("ü 🦑 \u2028", "ü 🦑 \u2028"),
        ([1, "two", {"three": None}], [1, "two", {"three": None}]),
        ((1, 2), [1, 2]),
        ({3: "three"}, {"3": "three"}),
        (frozenset({7}), [7]),
        (datetime(2026, 11, 16, tzinfo=UTC), "2026-11-16T00:00:00Z"),
        (date(2026, 11, 16), "2026-11-16"),
        (timedelta(minutes=1), "PT1M"),
        (Item(n=4), {"n": 4}),
        (Point(1, datetime(2026, 11, 16, tzinfo=UTC)), {"x": 1, "at": "2026-11-16T00:00:00Z"}),
        (Colour.RED, "red"),
        (b"text", "text"),
    ],
    ids=repr,
)
def test_a_result_is_journalled_as_the_json_that_pydantic_makes_of_it(
    journal: Storage, returned: Any, journalled: Any
) -> None:
    completed = do(journal, lambda: returned)
    assert (completed.type, completed.result) == ("attempt_completed", journalled)


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (object, "object"),
        (lambda: {"f": open}, "dict"),
        (lambda: float("nan"), "float"),
        (lambda: [1, float("inf")], "list"),
        (lambda: "\ud800", "str"),
        (lambda: {"\udfff": 1}, "dict"),
        (lambda: b"\xff\xfe", "bytes"),
        (_circle, "list"),
        (_deep, "list"),
    ],
    ids=["object", "function", "nan", "infinity", "surrogate", "surrogate key", "bytes", "circle", "deep"],
)
def test_a_result_that_is_not_json_is_a_failure_that_says_so_and_is_not_tried_again(
    journal: Storage, make: Callable[[], Any], named: str
) -> None:
    failed = do(journal, lambda: make(), retry=Retry(max_attempts=5))
    assert failed.type == "attempt_failed"
    assert failed.error["code"] == "invalid_result"
    assert f"returned a {named} that is not JSON" in failed.error["message"]
    assert failed.retry_runnable_key is None


def test_a_text_that_postgres_cannot_hold_fails_the_attempt_in_words(journal: Storage) -> None:
    failed = do(journal, lambda: {"text": "a\0b"})
    assert failed.error["code"] == "unwritable_outcome"
    assert "NUL character" in failed.error["message"]


def test_a_result_of_more_than_a_mebibyte_is_refused_with_the_way_out(journal: Storage) -> None:
    failed = do(journal, lambda: "x" * MIB)  # with its quotes, two more
    assert failed.error["code"] == "result_too_large"
    assert "1,048,578 bytes" in failed.error["message"]
    assert "store it and return a reference" in failed.error["message"]


def test_a_result_of_almost_a_mebibyte_is_journalled_whole(journal: Storage) -> None:
    completed = do(journal, lambda: "x" * (MIB - 2000))
    assert completed.type == "attempt_completed"
    assert len(completed.result) == MIB - 2000


def test_a_result_that_just_fits_is_kept_whole(journal: Storage) -> None:
    completed = do(journal, lambda: "x" * (MIB - 2))
    assert (completed.type, len(completed.result)) == ("attempt_completed", MIB - 2)


def test_results_that_are_large_together_still_reach_the_step_that_takes_them(journal: Storage) -> None:
    workflow = Workflow("join")

    @workflow.step
    def left() -> str:
        return "l" * (MIB * 2 // 3)

    @workflow.step
    def right() -> str:
        return "r" * (MIB * 2 // 3)

    @workflow.step(after=[left, right])
    def both(left: str, right: str) -> int:
        return len(left) + len(right)

    squid = Squid(journal, workflow)
    run_id = squid.start("join").run_id
    while squid.execute_next() is not None:
        pass
    snapshot = squid.inspect_run(run_id)
    assert (snapshot.status, snapshot.outputs["both"]) == ("completed", 2 * (MIB * 2 // 3))
