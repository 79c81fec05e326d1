"""The grammar of cron expressions: five fields, a subset that Dagster's own parser understands in the same way.

    minute (0-59)  hour (0-23)  day of month (1-31)  month (1-12, jan-dec)  day of week (0-7, sun-sat; 0 and 7: Sunday)

Each field is `*`, or a list of items divided by commas: a value, `from-to`, `from-to/step` or `*/step`. Where both days
are restricted, either of them suffices. `@hourly`, `@daily`, `@midnight`, `@weekly`, `@monthly`, `@yearly`
and `@annually` stand for the usual five fields. Nothing else is accepted: no seconds, no `L`, `W`, `#`, `?`, `H`, `R`.
"""

from dataclasses import dataclass

_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()  # noqa: SIM905
_WEEKDAYS = "sun mon tue wed thu fri sat".split()  # noqa: SIM905
_LONGEST_MONTH_DAYS = dict(zip(range(1, 13), (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), strict=True))
_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    first: int
    last: int
    names: dict[str, int]


_FIELDS = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, {name: number for number, name in enumerate(_MONTHS, 1)}),
    _Field("day of week", 0, 7, {name: number for number, name in enumerate(_WEEKDAYS)}),
)


@dataclass(frozen=True, slots=True)
class CronFields:
    """The values at which an expression fires. Days of the week count from Sunday, 0."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]

    @property
    def any_day(self) -> bool:
        """Whether every day of the month is named."""
        return len(self.days) == 31

    @property
    def any_weekday(self) -> bool:
        """Whether every day of the week is named."""
        return len(self.weekdays) == 7


def parse_cron(expression: str) -> CronFields:
    """Parse an expression of the grammar above.

    Raises:
        ValueError: it is none, or it would never fire; says which field is wrong and what stands there.
    """
    texts = _MACROS.get(expression.strip().lower(), expression).split()
    if len(texts) != len(_FIELDS):
        raise ValueError(
            f"{expression!r} has {len(texts)} fields: write five (minute, hour, day of month, month, day of week) "
            f"or one of {', '.join(_MACROS)}"
        )
    minutes, hours, days, months, weekdays = (
        _parse_field(text, field) for text, field in zip(texts, _FIELDS, strict=True)
    )
    fields = CronFields(minutes, hours, days, months, frozenset(day % 7 for day in weekdays))
    if fields.any_weekday and not any(day <= _LONGEST_MONTH_DAYS[month] for month in months for day in days):
        raise ValueError(f"{expression!r} never fires: no month that it names has such a day")
    return fields


def _parse_field(text: str, field: _Field) -> frozenset[int]:
    items = text.split(",")
    if "*" in items and len(items) > 1:
        raise ValueError(f"{field.name} {text!r}: '*' is every value, so it stands alone")
    return frozenset(value for item in items for value in _parse_item(item, field))


def _parse_item(item: str, field: _Field) -> range:
    span, slash, step_text = item.partition("/")
    if span == "*":
        first, last = field.first, min(field.last, 6) if field.name == "day of week" else field.last
    else:
        first_text, dash, last_text = span.partition("-")
        first = _parse_value(first_text, field)
        last = _parse_value(last_text, field) if dash else first
        if dash and last <= first:
            raise ValueError(f"{field.name} {item!r}: a range must rise; for one that wraps around, write two")
        if slash and not dash:
            raise ValueError(f"{field.name} {item!r}: a step needs a range, such as '{span}-{field.last}/{step_text}'")
    if not slash:
        return range(first, last + 1)
    step = _parse_number(step_text)
    if step is None or not 1 <= step <= field.last:
        raise ValueError(f"{field.name} {item!r}: the step must be a number from 1 to {field.last}")
    return range(first, last + 1, step)


def _parse_value(text: str, field: _Field) -> int:
    number = field.names.get(text.lower(), _parse_number(text))
    if number is None or not field.first <= number <= field.last:
        named = f" or {next(iter(field.names))}-{list(field.names)[-1]}" if field.names else ""
        raise ValueError(f"{field.name} {text!r}: use {field.first}-{field.last}{named}")
    return number


def _parse_number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else None
