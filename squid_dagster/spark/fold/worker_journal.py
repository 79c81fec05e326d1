"""Work in Spark's workers that needs the database itself: how they reach it, and how what they say comes back."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import SquidError
from squid_dagster.spark.source.credentials import Location

# The last line of a worker's traceback: the error's class, and what it says.
_SAID = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception)?): (.+)$", re.MULTILINE)
_LONGEST = 500


class WorkFailed(SquidError):
    """A task of Spark's failed, for good: after all the tries that Spark gives it."""


@contextmanager
def journal_of(location: Location, schema: str) -> Iterator[PostgresStorage]:
    """Lend a worker the journal, on connections of its own that are closed afterwards.

    Raises:
        InvalidArgument: the URL is not where `location` says.
    """
    storage = PostgresStorage(location.read(), schema)
    try:
        yield storage
    finally:
        storage.close()


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Let a failed job of Spark's say in one line what a worker said, instead of two pages of its stack.

    Raises:
        WorkFailed: instead of any error of Spark's; it begins with `what`.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise WorkFailed(f"{what}: {reason(error)}") from None


def reason(error: Exception) -> str:
    """Give in one line what a worker said, or else Spark itself; it stands somewhere in many."""
    text = str(error)
    said = [f"{name}: {why}" for name, why in _SAID.findall(text) if name not in {"PythonException", "SparkException"}]
    lines = text.strip().splitlines()
    found = said[-1] if said else lines[0] if lines else "it says nothing"
    return found if len(found) <= _LONGEST else found[:_LONGEST] + "…"
