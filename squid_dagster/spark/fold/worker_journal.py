"""The journal on connections of Spark's workers, and the errors of failed jobs in one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import SquidError
from squid_dagster.spark.source.credentials import Location

# The last line of a worker's traceback: the error's class and its message.
_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception)?): (.+)$", re.MULTILINE)
_MAX_CHARACTERS = 500


class WorkFailed(SquidError):
    """A task of Spark failed after all of its retries."""


@contextmanager
def journal_of(location: Location, schema: str) -> Iterator[PostgresStorage]:
    """Yield the journal on new connections, and close them afterwards.

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
    """Replace an error of a Spark job by one line with the error of its worker.

    Raises:
        WorkFailed: instead of any error of Spark; its message begins with `what`.
    """
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise WorkFailed(f"{what}: {reason(error)}") from None


def reason(error: Exception) -> str:
    """Return the error of a worker, or else of Spark, as one line."""
    text = str(error)
    errors = [
        f"{name}: {why}" for name, why in _ERROR.findall(text) if name not in {"PythonException", "SparkException"}
    ]
    lines = text.strip().splitlines()
    line = errors[-1] if errors else lines[0] if lines else "it says nothing"
    return line if len(line) <= _MAX_CHARACTERS else line[:_MAX_CHARACTERS] + "…"
