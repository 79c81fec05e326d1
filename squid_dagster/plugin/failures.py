"""Errors of ours in Dagster: a `dg.Failure` with the error's own text, which Dagster never retries."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import dagster as dg

from squid_dagster.protocol.errors import SquidError, StorageUnavailable, ViewsMissing
from squid_dagster.redaction import redacted_text

T = TypeVar("T")


@contextmanager
def dagster_failures() -> Iterator[None]:
    """Translate errors of an op or a tick: their text stands at the top of the Dagster run, or of the tick.

    Commands write all or nothing, so an op that fails here has left nothing in the journal. Retries are ours alone.

    Raises:
        dagster.Failure: instead of any `SquidError`, with its text and the name of its class.
    """
    try:
        yield
    except SquidError as error:
        # Without its cause: a driver's message may quote values, and hides the line that helps.
        raise dg.Failure(
            description=redacted_text(str(error)), metadata={"squid/error": type(error).__name__}, allow_retries=False
        ) from None


def run_tick(evaluate: Callable[[], T]) -> T | dg.SkipReason:
    """Return what a sensor or a schedule evaluates to; a skip while the database is away or has no views.

    Raises:
        dagster.Failure: as `dagster_failures`: Dagster stores what a tick raises.
    """
    with dagster_failures():
        try:
            return evaluate()
        except (StorageUnavailable, ViewsMissing) as error:
            return dg.SkipReason(skip_reason(error))


def skip_reason(error: StorageUnavailable | ViewsMissing) -> str:
    """Return the text of a tick that is skipped because the database is away or has no views."""
    return f"skipped, the next tick looks again: {redacted_text(str(error))}"
