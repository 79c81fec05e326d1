"""How an error of ours reads in Dagster: as the failure of the run, in its own words, never tried again by Dagster."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import dagster as dg

from squid_dagster.protocol.errors import SquidError, StorageUnavailable, ViewsMissing
from squid_dagster.redaction import redacted_text

T = TypeVar("T")


@contextmanager
def explained() -> Iterator[None]:
    """Let an op or a tick fail with what our error says: its text stands at the top of the Dagster run, or of the tick.

    Commands write all or nothing, so an op that fails here has left nothing in the journal. Retries are ours alone.

    Raises:
        dagster.Failure: instead of any `SquidError`, with its text and the name of its class.
    """
    try:
        yield
    except SquidError as error:
        # Without the chain below it: what a driver says may quote values, and hides the line that helps.
        raise dg.Failure(
            description=redacted_text(str(error)), metadata={"squid/error": type(error).__name__}, allow_retries=False
        ) from None


def ticked(look: Callable[[], T]) -> T | dg.SkipReason:
    """Return what one look of a sensor or a schedule returns; a skip while the database is away or has no views.

    Raises:
        dagster.Failure: as `explained`: what a tick raises is kept in Dagster's storage.
    """
    with explained():
        try:
            return look()
        except (StorageUnavailable, ViewsMissing) as error:
            return dg.SkipReason(skip_reason(error))


def skip_reason(error: StorageUnavailable | ViewsMissing) -> str:
    """Return what a tick says that is skipped since it has to wait: the next one looks again."""
    return f"skipped, the next tick looks again: {redacted_text(str(error))}"
