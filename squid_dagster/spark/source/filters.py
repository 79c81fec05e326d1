"""Filters that Postgres applies instead of Spark: those on indexed columns of the journal."""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from psycopg import sql
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

_COMPARED = frozenset({"position", "occurred_at"})
_NAMED = frozenset({"thread", "type", "run_id"})
_OPERATORS: dict[type[Filter], str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
# A read with one of these on a run or thread is one index lookup; more partitions would only repeat it.
_NARROW = (EqualTo, In)


def condition(given: Filter) -> sql.Composable | None:
    """Return a filter as SQL of exactly the same meaning; None for one that is left to Spark."""
    path: tuple[str, ...] = getattr(given, "attribute", ())
    if len(path) != 1 or path[0] not in _COMPARED | _NAMED:
        return None
    column = sql.Identifier(path[0])
    match given:
        case IsNull():
            return sql.SQL("{} IS NULL").format(column)
        case IsNotNull():
            return sql.SQL("{} IS NOT NULL").format(column)
        case In(value=values):
            literals = [_literal(path[0], value) for value in values]
            if not literals or None in literals:
                return None
            return sql.SQL("{} IN ({})").format(column, sql.SQL(", ").join(filter(None, literals)))
        case StringStartsWith(value=value) if path[0] in _NAMED and "\0" not in value:
            return sql.SQL("starts_with({}, {})").format(column, sql.Literal(value))
    return _comparison(given, path[0], column)


def _comparison(given: Filter, name: str, column: sql.Identifier) -> sql.Composable | None:
    null_safe = isinstance(given, EqualNullSafe)
    operator = "=" if null_safe else _OPERATORS.get(type(given))
    # Order of names depends on the database's collation; equality does not.
    if operator is None or (name in _NAMED and operator != "="):
        return None
    literal = _literal(name, getattr(given, "value", None))
    if literal is None:
        return None
    known = sql.SQL(" AND {} IS NOT NULL").format(column) if null_safe else sql.SQL("")
    return sql.SQL("{} {} {}{}").format(column, sql.SQL(operator), literal, known)


def _literal(name: str, value: Any) -> sql.Composable | None:
    if name == "position":
        whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
        return sql.Literal(value) if whole else None
    if name == "occurred_at":
        if not isinstance(value, datetime) or value.tzinfo is None:
            return None
        return sql.SQL("{}::timestamptz").format(sql.Literal(value.astimezone(UTC).isoformat()))
    return sql.Literal(value) if isinstance(value, str) and "\0" not in value else None


def is_narrow(pushed: Iterable[Filter]) -> bool:
    """Return whether the filters leave one run or one thread, or a few."""
    return any(isinstance(one, _NARROW) and one.attribute in {("run_id",), ("thread",)} for one in pushed)


def position_bounds(pushed: Sequence[Filter], after: int, upto: int) -> tuple[int, int]:
    """Narrow `(after, upto]` by the filters on the position, so that partitions divide what is really read."""
    narrower: dict[type[Filter], Callable[[int], tuple[int, int]]] = {
        EqualTo: lambda n: (n - 1, n),
        GreaterThan: lambda n: (n, upto),
        GreaterThanOrEqual: lambda n: (n - 1, upto),
        LessThan: lambda n: (after, n - 1),
        LessThanOrEqual: lambda n: (after, n),
    }
    low, high = after, upto
    for one in pushed:
        if getattr(one, "attribute", None) == ("position",) and type(one) in narrower:
            first, last = narrower[type(one)](one.value)  # type: ignore[attr-defined]  # each of these has one
            low, high = max(low, first), min(high, last)
    return low, max(low, high)
