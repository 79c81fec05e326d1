"""The latest window of a schedule: the fold on every storage, and the live views of Postgres."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from squid_dagster.journal.contract.queries import ScheduleCursor
from tests.facts import T0, queued, started, terminal
from tests.journal.queries.facts import LATE, window
from tests.journal.queries.fixture import QueriesFixture


def test_the_latest_window_of_a_schedule_is_the_latest_by_time_not_by_start(fixture: QueriesFixture) -> None:
    long_name = "x" * 999
    for n, (trigger, start) in enumerate(
        [
            ("nightly", "2026-01-02T03:00:00+00:00"),
            ("nightly", "2026-01-04T03:00:00+02:00"),
            ("nightly", "2026-01-03T03:00:00Z"),
            ("hourly", "2026-02-01T00:00:00+00:00"),
            (f"{long_name}a", "2026-03-01T00:00:00+00:00"),
            (f"{long_name}b", "2026-03-02T00:00:00+00:00"),
        ]
    ):
        fixture.put(started(f"g{n}", trigger=trigger, context=window(start), at=LATE))
    fixture.put(
        started("g8", workflow="refund", trigger="nightly", context=window("2026-05-01T00:00:00+00:00"), at=LATE)
    )
    # the run's later life does not matter
    fixture.put(queued("g1"), terminal("g1", status="cancelled"))

    def latest(workflow: str, trigger: str) -> datetime | None:
        cursor = fixture.queries.schedule_cursor(workflow, trigger)
        assert cursor.ahead == ()
        return cursor.reached

    assert latest("billing", "nightly") == datetime.fromisoformat("2026-01-04T01:00:00+00:00")
    assert latest("billing", "hourly") == datetime.fromisoformat("2026-02-01T00:00:00+00:00")
    assert latest("billing", f"{long_name}a") == datetime.fromisoformat("2026-03-01T00:00:00+00:00")
    assert latest("billing", "weekly") is None
    assert latest("nothing", "nightly") is None


def test_a_window_that_was_started_ahead_of_its_time_says_nothing_about_those_before_it(
    fixture: QueriesFixture,
) -> None:
    def put(run: str, window_at: timedelta, started_at: timedelta) -> None:
        start = (T0 + window_at).isoformat()
        fixture.put(started(run, trigger="hourly", context=window(start), at=started_at.total_seconds()))

    hours = [timedelta(hours=n) for n in range(9)]
    put("a", hours[5], hours[0])
    assert fixture.queries.schedule_cursor("billing", "hourly") == (None, (T0 + hours[5],))
    put("b", hours[1], hours[1])
    put("c", hours[7], hours[1])
    put("d", hours[7], hours[2])  # the same window, by another identity
    assert fixture.queries.schedule_cursor("billing", "hourly") == (T0 + hours[1], (T0 + hours[7], T0 + hours[5]))
    # a clock may be off by a minute
    put("e", hours[2], hours[2] - timedelta(minutes=1, microseconds=1))
    assert fixture.queries.schedule_cursor("billing", "hourly").reached == T0 + hours[1]
    put("f", hours[2], hours[2] - timedelta(minutes=1))
    assert fixture.queries.schedule_cursor("billing", "hourly").reached == T0 + hours[2]
    # and what came later on time leaves it behind
    put("g", hours[6], hours[8])
    assert fixture.queries.schedule_cursor("billing", "hourly") == (T0 + hours[6], (T0 + hours[7],))


@pytest.mark.parametrize(
    "context",
    [
        {},
        window(None),
        window("soon"),
        window("2026-01-01T00:00:00"),  # without a zone
        window("0001-01-01T00:00:00+14:00"),  # before all time, in UTC
        window(5),
        {"schedule": "nightly"},
        {"schedule": {"intended_window": [1]}},
        {"parent": {"run_id": "x" * 100_000}},  # more than an index can hold
        {"parent": {"run_id": 7}},
        {"parent": "run-0"},
    ],
    ids=lambda context: str(context)[:60],
)
def test_a_context_that_says_nothing_readable_spoils_nothing(fixture: QueriesFixture, context: dict[str, Any]) -> None:
    fixture.put(started(trigger="nightly", context=context))
    row = fixture.queries.get_run("run-1")
    assert row is not None
    assert row.parent_run_id is None
    assert fixture.queries.schedule_cursor("billing", "nightly") == ScheduleCursor()
