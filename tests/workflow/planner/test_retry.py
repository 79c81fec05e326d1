"""Retry maths: when there is no further attempt, how pauses grow, and how jitter changes them."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.workflow import Defer, Fail, Retry, delay
from squid_dagster.workflow.authoring.retry import MAX_FACTOR
from squid_dagster.workflow.values import MAX_DURATION

units = st.floats(0, 1)
durations = st.timedeltas(timedelta(0), MAX_DURATION)
policies = st.builds(
    lambda attempts, pauses, factor, jitter: Retry(attempts, min(pauses), max(pauses), factor, jitter),
    st.integers(1, 10_000),
    st.tuples(durations, durations),
    st.floats(1, MAX_FACTOR),
    units,
)


@given(units, st.integers(1, 10_000))
def test_without_a_policy_nothing_is_tried_again(unit: float, attempt: int) -> None:
    assert delay(None, attempt, unit) is None


@given(policies, units, st.integers(0, 100))
def test_the_last_attempt_is_the_last(policy: Retry, unit: float, beyond: int) -> None:
    assert delay(policy, policy.max_attempts + beyond, unit) is None


@given(policies, units)
def test_fail_is_final_whatever_the_policy_says(policy: Retry, unit: float) -> None:
    assert delay(policy, 1, unit, error=Fail("card refused")) is None


def test_any_other_error_is_governed_by_the_policy() -> None:
    assert delay(Retry(2), 1, 0.5, error=ValueError("no")) == timedelta(seconds=1)


@given(policies, units, st.integers(1, 10_000))
def test_a_pause_is_never_negative_nor_longer_than_the_maximum(policy: Retry, unit: float, attempt: int) -> None:
    pause = delay(policy, attempt, unit)

    assert list(policy.problems()) == []
    assert (pause is None) == (attempt >= policy.max_attempts)
    if pause is not None:
        full = delay(policy, attempt, 0.0)
        assert full is not None
        assert policy.initial <= full <= policy.maximum
        assert timedelta(0) <= pause <= full
        assert pause >= full * (1 - policy.jitter) - timedelta(microseconds=1)


@given(policies, st.integers(1, 5_000))
def test_pauses_never_get_shorter_as_attempts_go_on(policy: Retry, attempt: int) -> None:
    earlier, later = delay(policy, attempt, 0.0), delay(policy, attempt + 1, 0.0)

    assert later is None or (earlier is not None and earlier <= later)


@given(policies, units, st.integers(1, 10_000))
def test_the_same_chance_gives_the_same_pause(policy: Retry, unit: float, attempt: int) -> None:
    assert delay(policy, attempt, unit) == delay(policy, attempt, unit)


def test_pauses_double_up_to_the_maximum() -> None:
    policy = Retry(max_attempts=8, initial=timedelta(seconds=1), maximum=timedelta(seconds=30))
    pauses = [delay(policy, attempt, 0.0) for attempt in range(1, 9)]

    assert pauses == [*(timedelta(seconds=s) for s in (1, 2, 4, 8, 16, 30, 30)), None]


def test_a_factor_of_one_keeps_pauses_equal_and_no_pause_stays_none() -> None:
    assert delay(Retry(9, factor=1), 8, 0.0) == timedelta(seconds=1)
    assert delay(Retry(9, initial=timedelta(0)), 8, 0.0) == timedelta(0)


def test_a_growth_beyond_all_numbers_is_the_maximum() -> None:
    assert delay(Retry(10**9, factor=10.0), 10**8, 0.0) == timedelta(hours=1)


def test_jitter_takes_a_share_of_the_pause_away() -> None:
    policy = Retry(2, initial=timedelta(seconds=10), jitter=0.5)

    assert delay(policy, 1, 0.0) == timedelta(seconds=10)
    assert delay(policy, 1, 0.5) == timedelta(seconds=7.5)
    assert delay(policy, 1, 1.0) == timedelta(seconds=5)


@pytest.mark.parametrize(
    ("attempt", "unit"), [(0, 0.5), (-1, 0.5), (True, 0.5), (1, -0.1), (1, 1.1), (1, float("nan"))]
)
def test_numbers_out_of_range_are_refused(attempt: int, unit: float) -> None:
    with pytest.raises(InvalidArgument):
        delay(Retry(), attempt, unit)


@pytest.mark.parametrize("after", [timedelta(0), timedelta(-1), timedelta.max, 5, None])
def test_a_step_comes_back_after_a_positive_time(after: Any) -> None:
    with pytest.raises(InvalidArgument, match="use a positive timedelta"):
        Defer(after=after)
