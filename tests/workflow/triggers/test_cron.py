"""The grammar of cron expressions: what it refuses, and what the rest means."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squid_dagster.workflow import Cron, Manual, Workflow
from squid_dagster.workflow.cron.expression import parse_cron
from tests.workflow.drafts import ship


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields"),
        ("0 * * * * *", "has 6 fields"),
        ("@reboot", "has 1 fields"),
        ("60 * * * *", "minute '60': use 0-59"),
        ("* 24 * * *", "hour '24': use 0-23"),
        ("* * 0 * *", "day of month '0': use 1-31"),
        ("* * * 13 *", "month '13': use 1-12 or jan-dec"),
        ("* * * * 8", "day of week '8': use 0-7 or sun-sat"),
        ("* * * * L", "day of week 'L'"),
        ("* * ? * *", "day of month"),
        ("* * * * mon#1", "day of week"),
        ("-1 * * * *", "minute ''"),
        ("1,,2 * * * *", "minute ''"),
        ("5-1 * * * *", "a range must rise"),
        ("5-5 * * * *", "a range must rise"),
        ("* * * * fri-mon", "a range must rise"),
        ("*,5 * * * *", r"'\*' is every value"),
        ("*/0 * * * *", "the step must be a number from 1 to 59"),
        ("*/60 * * * *", "the step must be a number"),
        ("*/x * * * *", "the step must be a number"),
        ("*/ * * * *", "the step must be a number"),
        ("5/10 * * * *", "a step needs a range, such as '5-59/10'"),
        ("٣ * * * *", "minute"),
        ("0 0 30 2 *", "never fires"),
        ("0 0 31 4,6,9,11 *", "never fires"),
    ],
)
def test_what_is_no_expression_is_refused_by_its_field(expression: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_cron(expression)


@given(st.text() | st.lists(st.text("0123456789*/-,@jan ", max_size=6), min_size=5, max_size=5).map(" ".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ValueError):
        fields = parse_cron(text)
        assert fields.minutes <= set(range(60))
        assert fields.hours <= set(range(24))
        assert fields.days <= set(range(1, 32))
        assert fields.months <= set(range(1, 13))
        assert fields.weekdays <= set(range(7))
        assert all((fields.minutes, fields.hours, fields.days, fields.months, fields.weekdays))


def test_items_name_values_ranges_and_steps() -> None:
    fields = parse_cron("0,30 9-17/4 1,*/10 Jan-mar,DEC mon-fri")

    assert fields.minutes == {0, 30}
    assert fields.hours == {9, 13, 17}
    assert fields.days == {1, 11, 21, 31}
    assert fields.months == {1, 2, 3, 12}
    assert fields.weekdays == {1, 2, 3, 4, 5}
    assert not fields.any_day
    assert not fields.any_weekday


@pytest.mark.parametrize("sundays", ["0", "7", "sun", "0,7"])
def test_sunday_has_two_numbers(sundays: str) -> None:
    assert parse_cron(f"* * * * {sundays}").weekdays == {0}
    assert parse_cron("* * * * 5-7").weekdays == {5, 6, 0}


def test_a_day_that_february_lacks_may_still_be_a_weekday() -> None:
    assert parse_cron("0 0 30 2 mon").weekdays == {1}
    assert parse_cron("0 0 29 2 *").days == {29}


@pytest.mark.parametrize(
    ("macro", "expression"),
    [("@hourly", "0 * * * *"), ("@Daily", "0 0 * * *"), ("@weekly", "0 0 * * 0"), ("@annually", "0 0 1 1 *")],
)
def test_a_macro_stands_for_five_fields(macro: str, expression: str) -> None:
    assert parse_cron(macro) == parse_cron(expression)


def test_a_workflow_on_the_clock_can_still_be_started_by_hand() -> None:
    nightly = Cron("0 2 * * *", timezone="Europe/Berlin", catch_up="all", name="nightly")
    workflow = Workflow("orders", triggers=[nightly])
    workflow.step(ship)
    definition = workflow.freeze()

    assert dict(definition.triggers) == {"nightly": nightly, "manual": Manual()}
    assert definition.default_trigger == Manual()
    assert nightly.zone().key == "Europe/Berlin"
    assert nightly.fields().hours == {2}
