"""When a cron trigger fires, and which of its windows are due. Pure: the time is an argument, there is no state.

A window begins when the trigger fires and ends when it fires next. All times that come out are UTC.

The expression names times of the local clock in the trigger's timezone. Where that clock is turned, the rule is the one
that Dagster documents for its schedules, so that a schedule with the same expression ticks when a window begins:

                         the hour is restricted                       every hour (`*`)
    local time skipped   fires at the first moment after the gap;     does not fire
                         once, however many times were skipped
    local time twice     fires once, at the second occurrence         fires both times

So `30 2 * * *` fires once on every day of the year, and `*/15 * * * *` whenever the clock really shows a quarter. The
rule holds for a turn of any length at any hour, also where an island skips a whole day. (Dagster's own code departs
from it where a clock is turned around midnight, by half an hour or by a day; its ticks can miss a window there.)
"""

from bisect import bisect_right
from calendar import monthrange
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache, partial
from heapq import merge
from itertools import groupby, islice, pairwise, takewhile
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.workflow.cron.expression import CronFields
from squid_dagster.workflow.cron.triggers import Cron

# How late a window may still start where nothing is caught up on: the shortest period that an expression can have.
GRACE = timedelta(minutes=1)

# From every time between them, a search reaches the next 29 February (at most 8 years away) inside Python's calendar.
_FIRST_YEAR, _LAST_YEAR = 2, 9980

# No clock was ever turned by more than a day, so what fires around a moment is on a local date this close to its own.
_TURN = timedelta(days=2)

_FIRST, _SECOND = 0, 1  # occurrences of a local time, as `datetime.fold` counts them
_MICROSECOND = timedelta(microseconds=1)


class Window(NamedTuple):
    """The time from one firing up to the next, in UTC."""

    start_at: datetime
    end_at: datetime


def fire_times(cron: Cron, after: datetime, upto: datetime, limit: int) -> list[datetime]:
    """Return the first `limit` times, ascending, at which it fires after `after` and not later than `upto`.

    It costs as much as it returns, however far apart the two are. `previous_fire(cron, upto)` returns the latest one.

    Raises:
        InvalidArgument: a time without a timezone or out of range, or a limit below 1.
        ValueError: the trigger's expression or timezone is not valid.
    """
    start, end = _checked("after", after), _checked("upto", upto)
    _check_limit(limit)
    return _Clock.of(cron).between(start, end, limit)


def next_fire(cron: Cron, after: datetime) -> datetime:
    """Return the first time after `after` at which it fires. There always is one.

    Raises:
        InvalidArgument: a time without a timezone or out of range.
        ValueError: the trigger's expression or timezone is not valid.
    """
    return next(_Clock.of(cron).ascending(_checked("after", after)))


def previous_fire(cron: Cron, at: datetime) -> datetime | None:
    """Return the latest time up to and including `at` at which it fires; `None` where the calendar begins before one.

    Raises:
        InvalidArgument: a time without a timezone or out of range.
        ValueError: the trigger's expression or timezone is not valid.
    """
    return next(_Clock.of(cron).descending(_checked("at", at)), None)


def due_windows(
    cron: Cron,
    last: datetime | None,
    now: datetime,
    since: datetime,
    limit: int,
    started: Collection[datetime] = (),
) -> list[Window]:
    """Return the windows to start now, oldest first.

    Missed are the windows that began after `last`, the start of the latest window that was started (`None`: no window
    was), not before `since`, when the schedule became known, and not after `now`; but for those that begin at one of
    the times in `started`, which were started ahead of their time. The trigger's `catch_up` chooses:

    - `"latest"`: the newest missed window.
    - `"all"`: every missed window, but at most `limit`; a call with the last of them as `last` returns the rest.
    - `"none"`: the newest missed window, if it began at most a minute (`GRACE`) ago. So a caller that is a bit late
      still starts it, and one that was away does not. A caller that looks less than once a minute misses windows.

    For a `last` or `since` later than `now` (a wrong clock), nothing is returned until that time has come.

    Raises:
        InvalidArgument: a time without a timezone or out of range, or a limit below 1.
        ValueError: the trigger's expression or timezone is not valid.
    """
    at = _checked("now", now)
    _check_limit(limit)
    after = _checked("since", since) - _MICROSECOND  # a window that begins at that very moment counts
    if last is not None:
        after = max(after, _checked("last", last))
    clock = _Clock.of(cron)
    missed: Iterator[tuple[datetime, datetime]]
    match cron.catch_up:
        case "all":
            missed = takewhile(lambda window: window[0] <= at, pairwise(clock.ascending(after)))
        case "latest":
            missed = clock.latest(after, at)
        case "none":
            missed = clock.latest(max(after, at - GRACE - _MICROSECOND), at)
    return list(islice((Window(*window) for window in missed if window[0] not in started), limit))


@dataclass(frozen=True, slots=True)
class _Clock:
    """The moments at which the clock of a timezone shows a time that an expression names."""

    fields: CronFields
    zone: ZoneInfo

    @classmethod
    def of(cls, cron: Cron) -> "_Clock":
        return cls(cron.fields(), cron.zone())

    def ascending(self, after: datetime) -> Iterator[datetime]:
        """Return the moments after `after`, ascending, each once."""
        return (moment for moment, _ in groupby(merge(*(self._rising(after, fold) for fold in self._occurrences()))))

    def descending(self, at: datetime) -> Iterator[datetime]:
        """Return the moments up to and including `at`, descending, each once."""
        streams = (self._falling(at, fold) for fold in self._occurrences())
        return (moment for moment, _ in groupby(merge(*streams, reverse=True)))

    def between(self, after: datetime, upto: datetime, limit: int) -> list[datetime]:
        """Return the first `limit` moments after `after` and up to and including `upto`."""
        return list(islice(takewhile(lambda moment: moment <= upto, self.ascending(after)), limit))

    def latest(self, after: datetime, upto: datetime) -> Iterator[tuple[datetime, datetime]]:
        """Yield the last moment after `after` and up to and including `upto`, if any, with the one behind it."""
        newest = (moment for moment in islice(self.descending(upto), 1) if moment > after)
        return ((moment, next(self.ascending(moment))) for moment in newest)

    @property
    def _every_hour(self) -> bool:
        return len(self.fields.hours) == 24

    def _occurrences(self) -> tuple[int, ...]:
        return (_FIRST, _SECOND) if self._every_hour else (_SECOND,)

    def _rising(self, after: datetime, fold: int) -> Iterator[datetime]:
        times = _times_of_day(self.fields)
        for day in _dates(self.fields, after.astimezone(self.zone).date() - _TURN, 1):
            # Taken always at the same occurrence, a later local time is never an earlier moment: so it can be bisected.
            begin = bisect_right(times, after, key=partial(self._moment, day, fold))
            yield from self._fired(day, fold, times[begin:])

    def _falling(self, at: datetime, fold: int) -> Iterator[datetime]:
        times = _times_of_day(self.fields)
        for day in _dates(self.fields, at.astimezone(self.zone).date() + _TURN, -1):
            end = bisect_right(times, at, key=partial(self._moment, day, fold))
            yield from self._fired(day, fold, times[:end][::-1])

    def _fired(self, day: date, fold: int, times: tuple[time, ...]) -> Iterator[datetime]:
        for time_of_day in times:
            moment = self._moment(day, fold, time_of_day)
            if not self._every_hour or self._shows(moment) == datetime.combine(day, time_of_day):
                yield moment

    def _moment(self, day: date, fold: int, time_of_day: time) -> datetime:
        """Return the moment of a local time; of a skipped one, the first moment after the gap."""
        local = datetime.combine(day, time_of_day)
        moment = self._to_utc(local, fold)
        if self._shows(moment) == local:
            return moment
        # In a gap, fold 0 reads the clock as it was before, and so lands behind the gap; fold 1 the other way round.
        before, behind = self._to_utc(local, _SECOND), self._to_utc(local, _FIRST)
        offset = behind.astimezone(self.zone).utcoffset()
        while behind - before > timedelta(seconds=1):
            middle = before + timedelta(seconds=(behind - before) // timedelta(seconds=2))
            if middle.astimezone(self.zone).utcoffset() == offset:
                behind = middle
            else:
                before = middle
        return behind

    def _to_utc(self, local: datetime, fold: int) -> datetime:
        return local.replace(tzinfo=self.zone, fold=fold).astimezone(UTC)

    def _shows(self, moment: datetime) -> datetime:
        return moment.astimezone(self.zone).replace(tzinfo=None, fold=0)


@lru_cache(maxsize=256)
def _times_of_day(fields: CronFields) -> tuple[time, ...]:
    return tuple(time(hour, minute) for hour in sorted(fields.hours) for minute in sorted(fields.minutes))


def _dates(fields: CronFields, start: date, step: Literal[1, -1]) -> Iterator[date]:
    """Yield the dates that the expression names, from `start` on, forwards or backwards to the calendar's end."""
    months = sorted(fields.months)[::step]
    for year in range(start.year, 9999 if step == 1 else 1, step):
        for month in months:
            if year == start.year and (month - start.month) * step < 0:
                continue
            for number in range(1, monthrange(year, month)[1] + 1)[::step]:
                day = date(year, month, number)
                if (day >= start if step == 1 else day <= start) and _names(fields, day):
                    yield day


def _names(fields: CronFields, day: date) -> bool:
    """Return whether the expression names a date of a month that it names."""
    by_weekday = day.isoweekday() % 7 in fields.weekdays
    if fields.any_day:
        return by_weekday
    by_number = day.day in fields.days
    return by_number if fields.any_weekday else by_number or by_weekday


def _checked(name: str, value: datetime) -> datetime:
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidArgument(f"{name} must be a time with a timezone, such as datetime.now(UTC), not {value!r}")
    if not _FIRST_YEAR <= value.year <= _LAST_YEAR:
        raise InvalidArgument(f"{name} must be in the years {_FIRST_YEAR} to {_LAST_YEAR}, not {value.isoformat()}")
    return value.astimezone(UTC)


def _check_limit(limit: int) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidArgument(f"limit must be a whole number from 1 on, not {limit!r}")
