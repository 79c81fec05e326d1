"""How an error of ours reads in Dagster: as the failure of the run, in its own words, never tried again by Dagster."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from squid_dagster.protocol.errors import SquidError, StorageUnavailable
from squid_dagster.redaction import redacted_text


@contextmanager
def explained() -> Iterator[None]:
    """Let an op fail with what our error says: its text stands at the top of the Dagster run.

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


def skip_reason(error: StorageUnavailable) -> str:
    """Return what a tick says that is skipped for want of a database: the next one looks again."""
    return f"skipped, the next tick looks again: {redacted_text(str(error))}"
