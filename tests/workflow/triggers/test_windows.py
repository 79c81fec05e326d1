"""When a cron trigger fires, daylight saving included, and which windows are due."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.workflow.cron.expression import CronFields
from squid_dagster.workflow.cron.triggers import CATCH_UPS, CatchUp, Cron
from squid_dagster.workflow.cron.windows import GRACE, Window, due_windows, fire_times, next_fire, previous_fire

MINUTE = timedelta(minutes=1)
MOMENT = timedelta(microseconds=1)
FAR = datetime(2100, 1, 1, tzinfo=UTC)


def at(text: str) -> datetime:
    """Read a time; without an offset it is UTC."""
    read = datetime.fromisoformat(text)
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def assert_fires(cron: Cron, after: str, expected: str) -> None:
    times = [at(text) for text in expected.split()]

    assert fire_times(cron, at(after), FAR, len(times)) == times
    assert [next_fire(cron, before) for before in [at(after), *times[:-1]]] == times
    assert [previous_fire(cron, time) for time in times] == times
    assert [previous_fire(cron, time - MOMENT) for time in times[1:]] == times[:-1]
    assert all(time.tzinfo is UTC for time in fire_times(cron, at(after), FAR, len(times)))


@pytest.mark.parametrize(
    ("expression", "after", "expected"),
    [
        ("* * * * *", "2026-01-01T00:00:30", "2026-01-01T00:01 2026-01-01T00:02 2026-01-01T00:03"),
        ("*/20 * * * *", "2026-01-01T00:20", "2026-01-01T00:40 2026-01-01T01:00 2026-01-01T01:20"),
        ("5,50 * * * *", "2026-12-31T23:05", "2026-12-31T23:50 2027-01-01T00:05 2027-01-01T00:50"),
        ("0 9-17/4 * * *", "2026-01-01T09:00", "2026-01-01T13:00 2026-01-01T17:00 2026-01-02T09:00"),
        ("@daily", "2026-02-27T12:00", "2026-02-28T00:00 2026-03-01T00:00 2026-03-02T00:00"),
        ("@weekly", "2026-01-01T00:00", "2026-01-04T00:00 2026-01-11T00:00 2026-01-18T00:00"),
        ("30 6 * * mon-fri", "2026-01-01T07:00", "2026-01-02T06:30 2026-01-05T06:30 2026-01-06T06:30"),
        ("0 0 * * 7", "2026-01-04T00:00", "2026-01-11T00:00 2026-01-18T00:00"),
        ("@monthly", "2026-11-16T12:00", "2026-12-01T00:00 2027-01-01T00:00 2027-02-01T00:00"),
        ("0 0 31 * *", "2026-01-31T00:00", "2026-03-31T00:00 2026-05-31T00:00 2026-07-31T00:00"),
        ("0 12 * jan,jul *", "2026-01-30T12:00", "2026-01-31T12:00 2026-07-01T12:00 2026-07-02T12:00"),
        ("@yearly", "2026-01-01T00:00", "2027-01-01T00:00 2028-01-01T00:00"),
        ("0 0 29 2 *", "2024-02-29T00:00", "2028-02-29T00:00 2032-02-29T00:00 2036-02-29T00:00"),
        ("0 0 13 * fri", "2026-01-03T00:00", "2026-01-09T00:00 2026-01-13T00:00 2026-01-16T00:00"),
        ("0 0 30 2 mon", "2026-02-20T00:00", "2026-02-23T00:00 2027-02-01T00:00 2027-02-08T00:00"),
    ],
)
def test_it_fires_when_the_expression_says(expression: str, after: str, expected: str) -> None:
    assert_fires(Cron(expression), after, expected)


BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
ST_JOHNS, APIA = "America/St_Johns", "Pacific/Apia"


@pytest.mark.parametrize(
    ("zone", "expression", "year", "after", "expected"),
    [
        ("Asia/Kolkata", "0 * * * *", 2026, "01-01T00:00+0530", "01-01T01:00+0530 01-01T02:00+0530"),
        ("Asia/Tokyo", "0 8 * * mon", 2026, "01-01T00:00", "01-05T08:00+09 01-12T08:00+09"),
        # A fixed hour keeps its local time, whatever the offset.
        (BERLIN, "0 9 * * *", 2026, "03-28T00:00", "03-28T09:00+01 03-29T09:00+02 03-30T09:00+02"),
        # A skipped time fires after the gap, and once however many times were skipped.
        (BERLIN, "0 2 * * *", 2026, "03-28T02:00+01", "03-29T03:00+02 03-30T02:00+02"),
        (BERLIN, "30 2 * * *", 2026, "03-28T02:30+01", "03-29T03:00+02 03-30T02:30+02"),
        (BERLIN, "* 2 * * *", 2026, "03-28T02:58+01", "03-28T02:59+01 03-29T03:00+02 03-30T02:00+02"),
        # It does not fire a second time where the end of the gap is named as well.
        (NEW_YORK, "0,30 2,3 * * *", 2026, "03-07T03:30-05", "03-08T03:00-04 03-08T03:30-04 03-09T02:00-04"),
        # A time that comes twice fires at its second occurrence.
        (BERLIN, "30 2 * * *", 2026, "10-24T00:00", "10-24T02:30+02 10-25T02:30+01 10-26T02:30+01"),
        (NEW_YORK, "*/30 1-2 1 nov *", 2026, "01-01T00:00", "11-01T01:00-05 11-01T01:30-05 11-01T02:00-05"),
        # Every hour: what is skipped does not fire, what comes twice fires twice.
        (BERLIN, "45 * * * *", 2026, "03-29T00:45+01", "03-29T01:45+01 03-29T03:45+02 03-29T04:45+02"),
        (BERLIN, "45 * * * *", 2026, "10-25T01:45+02", "10-25T02:45+02 10-25T02:45+01 10-25T03:45+01"),
        (NEW_YORK, "*/30 0-23 * * *", 2026, "11-01T01:00-04", "11-01T01:30-04 11-01T01:00-05 11-01T01:30-05"),
        # Half an hour.
        (LORD_HOWE, "15 2 * * *", 2026, "10-03T00:00+1030", "10-03T02:15+1030 10-04T02:30+11 10-05T02:15+11"),
        (LORD_HOWE, "45 1 * * *", 2026, "04-04T00:00+11", "04-04T01:45+11 04-05T01:45+1030 04-06T01:45+1030"),
        (LORD_HOWE, "0,40 * * * *", 2026, "10-04T01:00+1030", "10-04T01:40+1030 10-04T02:40+11 10-04T03:00+11"),
        (LORD_HOWE, "0,40 * * * *", 2026, "04-05T01:00+11", "04-05T01:40+11 04-05T01:40+1030 04-05T02:00+1030"),
        # Turned at 00:01 back to 23:01, so that two local dates take turns.
        (ST_JOHNS, "0 * * * *", 2005, "10-29T23:00-0230", "10-30T00:00-0230 10-30T00:00-0330 10-30T01:00-0330"),
        (ST_JOHNS, "0,30 0,23 * * *", 2005, "10-29T00:30-0230", "10-29T23:00-0230 10-29T23:30-0330 10-30T00:00-0330"),
        # The whole of 30 December was skipped.
        (APIA, "0 9,15 * * *", 2011, "12-29T09:00-10", "12-29T15:00-10 12-31T00:00+14 12-31T09:00+14"),
        (APIA, "0 */23 30,31 12 *", 2011, "12-01T00:00", "12-31T00:00+14 12-31T23:00+14"),
        (APIA, "30 * 30,31 12 *", 2011, "12-01T00:00", "12-31T00:30+14 12-31T01:30+14"),
        # Local mean time: its minutes do not begin with those of UTC, and a gap need not end on one.
        (BERLIN, "0 0 * * *", 1893, "03-30T12:00", "03-30T23:06:32 03-31T23:06:32"),
    ],
)
def test_it_fires_by_the_local_clock(zone: str, expression: str, year: int, after: str, expected: str) -> None:
    times = " ".join(f"{year}-{text}" for text in expected.split())

    assert_fires(Cron(expression, timezone=zone), f"{year}-{after}", times)


def test_a_leap_day_is_found_over_a_century_without_one() -> None:
    leap_day = Cron("0 0 29 2 *")

    assert next_fire(leap_day, at("2096-02-29T00:00")) == at("2104-02-29T00:00")
    assert previous_fire(leap_day, at("2104-02-28T23:59")) == at("2096-02-29T00:00")
    assert next_fire(leap_day, at("9980-12-31T23:59")) == at("9984-02-29T00:00")
    assert previous_fire(leap_day, at("0003-01-01T00:00")) is None


def test_only_the_first_times_are_given_and_none_beyond_the_end() -> None:
    hourly = Cron("@hourly")

    assert fire_times(hourly, at("2026-01-01T00:00"), at("2026-01-01T03:00"), 2) == [
        at("2026-01-01T01:00"),
        at("2026-01-01T02:00"),
    ]
    assert len(fire_times(hourly, at("2026-01-01T00:00"), at("2026-01-01T03:00"), 100)) == 3
    assert fire_times(hourly, at("2026-01-01T03:00"), at("2026-01-01T03:00"), 100) == []
    assert fire_times(hourly, at("2026-01-01T03:00"), at("2026-01-01T00:00"), 100) == []


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda cron, bad: fire_times(cron, bad, FAR, 1), "after"),
        (lambda cron, bad: fire_times(cron, at("2026-01-01"), bad, 1), "upto"),
        (lambda cron, bad: next_fire(cron, bad), "after"),
        (lambda cron, bad: previous_fire(cron, bad), "at"),
        (lambda cron, bad: due_windows(cron, bad, FAR, at("2026-01-01"), 1), "last"),
        (lambda cron, bad: due_windows(cron, None, bad, at("2026-01-01"), 1), "now"),
        (lambda cron, bad: due_windows(cron, None, FAR, bad, 1), "since"),
    ],
)
def test_a_time_without_a_timezone_or_out_of_range_is_refused_by_name(
    call: Callable[[Cron, Any], object], named: str
) -> None:
    naive = datetime(2026, 1, 1)  # noqa: DTZ001
    with pytest.raises(InvalidArgument, match=rf"^{named} must be a time with a timezone.*2026, 1, 1"):
        call(Cron("@daily"), naive)
    with pytest.raises(InvalidArgument, match=rf"^{named} must be a time with a timezone.*'2026-01-01'"):
        call(Cron("@daily"), "2026-01-01")
    for year in (1, 9999):
        with pytest.raises(InvalidArgument, match=rf"^{named} must be in the years 2 to 9980, not {year:04}-"):
            call(Cron("@daily"), datetime(year, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("limit", [0, -1, True, 1.5])
def test_a_limit_below_one_is_refused(limit: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"limit must be a whole number from 1 on, not {limit!r}"):
        fire_times(Cron("@daily"), at("2026-01-01"), FAR, limit)
    with pytest.raises(InvalidArgument, match=f"limit must be a whole number from 1 on, not {limit!r}"):
        due_windows(Cron("@daily"), None, FAR, at("2026-01-01"), limit)


def hours(*starts: int) -> list[Window]:
    """Return the windows of an hourly trigger on New Year's Day."""
    midnight = at("2026-01-01T00:00")
    return [Window(midnight + timedelta(hours=hour), midnight + timedelta(hours=hour + 1)) for hour in starts]


@pytest.mark.parametrize(
    ("catch_up", "last", "now", "since", "expected"),
    [
        ("latest", "00:00", "04:30", "00:00", [4]),
        ("latest", "04:00", "04:30", "00:00", []),
        ("latest", None, "04:30", "04:00", [4]),
        ("latest", None, "04:30", "04:01", []),
        ("latest", None, "05:00", "04:01", [5]),
        ("all", "00:00", "04:30", "00:00", [1, 2, 3, 4]),
        ("all", None, "04:30", "02:00", [2, 3, 4]),
        ("all", "00:00", "04:30", "02:01", [3, 4]),
        ("all", "04:00", "04:59", "00:00", []),
        ("all", None, "06:59", "00:00", [0, 1, 2, 3, 4]),
        ("none", "00:00", "04:00", "00:00", [4]),
        ("none", "00:00", "04:00:07", "00:00", [4]),
        ("none", None, "04:01:00", "00:00", [4]),
        ("none", None, "04:01:01", "00:00", []),
        ("none", "04:00", "04:00:30", "00:00", []),
        ("none", None, "04:00:30", "04:00:01", []),
        *((catch_up, "05:00", "04:00:10", "00:00", []) for catch_up in CATCH_UPS),
        *((catch_up, None, "04:00:10", "05:00", []) for catch_up in CATCH_UPS),
    ],
)
def test_catching_up(catch_up: CatchUp, last: str | None, now: str, since: str, expected: list[int]) -> None:
    cron = Cron("@hourly", catch_up=catch_up)
    day = "2026-01-01T"

    due = due_windows(cron, at(day + last) if last else None, at(day + now), at(day + since), limit=5)

    assert due == hours(*expected)


def test_a_window_ends_when_the_next_begins_also_where_the_clock_is_turned() -> None:
    nightly = Cron("30 2 * * *", timezone="Europe/Berlin", catch_up="all")

    assert due_windows(nightly, None, at("2026-03-30T12:00"), at("2026-03-28T00:00"), limit=9) == [
        Window(at("2026-03-28T02:30+01:00"), at("2026-03-29T03:00+02:00")),
        Window(at("2026-03-29T03:00+02:00"), at("2026-03-30T02:30+02:00")),
        Window(at("2026-03-30T02:30+02:00"), at("2026-03-31T02:30+02:00")),
    ]


def test_thousands_of_years_of_missed_minutes_cost_no_more_than_one() -> None:
    first, now = at("0002-01-01T00:00"), at("9980-06-01T12:00:30")
    newest = Window(at("9980-06-01T12:00"), at("9980-06-01T12:01"))

    for zone in ("UTC", "Europe/Berlin"):
        assert due_windows(Cron("* * * * *", zone), first, now, first, limit=10) == [newest]
        assert due_windows(Cron("* * * * *", zone, catch_up="none"), first, now, first, limit=10) == [newest]
        assert len(due_windows(Cron("* * * * *", zone, catch_up="all"), first, now, first, limit=10)) == 10


# -- Against a reference that looks at every minute of the real time.

TURNS = {
    "UTC": ["2026-01-01T00:00"],
    "Europe/Berlin": ["2026-03-29T01:00", "2026-10-25T01:00"],
    "America/New_York": ["2026-03-08T07:00", "2026-11-01T06:00"],
    "Australia/Lord_Howe": ["2026-10-03T15:30", "2026-04-04T15:00"],
    "America/Havana": ["2026-03-08T05:00", "2026-11-01T05:00"],
    "America/St_Johns": ["2005-04-03T03:31", "2005-10-30T02:31"],
    "Pacific/Apia": ["2011-12-30T10:00", "2011-04-02T14:00"],
}


def items(first: int, last: int) -> st.SearchStrategy[str]:
    value = st.integers(first, last)
    ranges = st.tuples(value, value).filter(lambda ends: ends[0] < ends[1]).map(lambda ends: f"{ends[0]}-{ends[1]}")
    steps = st.integers(2, last).map(lambda step: f"*/{step}")
    return st.just("*") | value.map(str) | ranges | steps


expressions = st.tuples(
    items(0, 59), st.sampled_from(["*", "1-3", "0,2"]) | items(0, 23), items(1, 28), items(1, 12), items(0, 6)
).map(" ".join)
frequent = st.tuples(items(0, 59), items(0, 23) | st.just("0-3"), st.just("* *"), st.sampled_from("*0")).map(" ".join)
near = st.timedeltas(timedelta(hours=-40), timedelta(hours=30))


@st.composite
def moments(draw: st.DrawFn, expression: st.SearchStrategy[str]) -> tuple[Cron, datetime]:
    """Generate a trigger and a time that is often close to a change of its clock's offset."""
    zone = draw(st.sampled_from(sorted(TURNS)))
    turn = at(draw(st.sampled_from(TURNS[zone])))
    return Cron(draw(expression), timezone=zone), turn + draw(near)


def named(fields: CronFields, local: datetime) -> bool:
    by_day, by_weekday = local.day in fields.days, int(local.strftime("%w")) in fields.weekdays
    open_days = fields.any_day or fields.any_weekday
    return (
        local.month in fields.months
        and ((by_day and by_weekday) if open_days else (by_day or by_weekday))
        and local.hour in fields.hours
        and local.minute in fields.minutes
    )


def every_minute(cron: Cron, after: datetime, upto: datetime) -> list[datetime]:
    fields, zone = cron.fields(), cron.zone()
    minute = after.replace(second=0, microsecond=0)
    shown = {}  # what the clock shows, a little longer than asked, so that a second occurrence is seen
    while minute <= upto + timedelta(hours=3):
        shown[minute] = minute.astimezone(zone).replace(tzinfo=None, fold=0)
        minute += MINUTE
    final = {local: moment for moment, local in shown.items()}
    fired = []
    for moment, local in shown.items():
        if not after < moment <= upto:
            continue
        before = (moment - MINUTE).astimezone(zone).replace(tzinfo=None, fold=0)
        skipped = [before + count * MINUTE for count in range(1, (local - before) // MINUTE)]
        if len(fields.hours) == 24:
            fires = named(fields, local)
        else:
            fires = (named(fields, local) and final[local] == moment) or any(named(fields, one) for one in skipped)
        if fires:
            fired.append(moment)
    return fired


@settings(deadline=None)
@given(moments(frequent | expressions), st.timedeltas(timedelta(0), timedelta(hours=50)))
def test_it_fires_exactly_when_the_clock_shows_it_or_skips_it(start: tuple[Cron, datetime], length: timedelta) -> None:
    cron, after = start

    assert fire_times(cron, after, after + length, 10_000) == every_minute(cron, after, after + length)


@settings(deadline=None)
@given(moments(frequent | expressions), st.tuples(near, near, near).map(sorted))
def test_an_interval_may_be_split_anywhere(start: tuple[Cron, datetime], cuts: list[timedelta]) -> None:
    cron, begin = start
    first, middle, last = (begin + cut for cut in cuts)
    whole = fire_times(cron, first, last, 10_000)

    assert whole == sorted(set(whole))
    assert fire_times(cron, first, middle, 10_000) + fire_times(cron, middle, last, 10_000) == whole
    assert fire_times(cron, first, last, 3) == whole[:3]


@settings(deadline=None)
@given(moments(expressions))
def test_next_and_previous_undo_each_other(start: tuple[Cron, datetime]) -> None:
    cron, now = start
    following, before = next_fire(cron, now), previous_fire(cron, now)

    assert before is not None
    assert before <= now < following
    assert next_fire(cron, before) == following
    assert previous_fire(cron, following - MOMENT) == before
    assert previous_fire(cron, following) == following
    assert next_fire(cron, before - MOMENT) == before


@settings(deadline=None)
@given(
    moments(frequent | expressions),
    st.sampled_from(["latest", "all", "none"]),
    st.lists(st.timedeltas(timedelta(0), timedelta(hours=20)), min_size=1, max_size=6),
    st.integers(1, 40),
)
def test_no_window_is_due_twice_and_catching_up_on_all_leaves_none_out(
    start: tuple[Cron, datetime], catch_up: CatchUp, waits: list[timedelta], limit: int
) -> None:
    base, since = start
    cron = Cron(base.expression, base.timezone, catch_up)
    last, now, started = None, since, list[Window]()
    for wait in waits:
        now += wait
        while due := due_windows(cron, last, now, since, limit):
            assert len(due) <= (limit if catch_up == "all" else 1)
            assert all(window.start_at <= now for window in due)
            assert catch_up != "none" or now - due[0].start_at <= GRACE
            started += due
            last = due[-1].start_at

    possible = fire_times(cron, since - MOMENT, now, 100_000)
    starts = [window.start_at for window in started]
    assert starts == sorted(set(starts))
    assert set(starts) <= set(possible)
    assert all(window.end_at == next_fire(cron, window.start_at) for window in started)
    if catch_up == "all":
        assert starts == possible
    elif catch_up == "latest":
        assert starts[-1:] == possible[-1:]
