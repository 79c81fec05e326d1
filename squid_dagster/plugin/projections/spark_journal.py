"""The journal for the Spark code of an op. Imports Spark, and so is imported when an op runs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from squid_dagster.journal import PostgresStorage
from squid_dagster.plugin.projections.resources import SparkResource
from squid_dagster.plugin.resource import SquidResource
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.source.credentials import handed_over


def postgres_journal(squid: SquidResource) -> PostgresStorage:
    """Return the journal, checked. Raises as `journal_for_spark`."""
    storage = squid.journal
    if not isinstance(storage, PostgresStorage):
        raise InvalidArgument(
            f"Spark reads a journal from Postgres, and this one is a {type(storage).__name__}: give the resource a URL"
        )
    storage.check()
    return storage


@contextmanager
def journal_for_spark(
    squid: SquidResource, spark: SparkResource
) -> Iterator[tuple[SparkSession, PostgresStorage, Mapping[str, str]]]:
    """Check the journal, then yield a session, the storage, and the option by which executors find the database.

    Raises:
        InvalidArgument: the journal is not in Postgres, or a master of no known kind.
        StorageUnavailable, SchemaOutdated, SchemaTooNew, ForeignSchema: the journal cannot be read.
        SparkUnavailable, JavaMissing: Spark cannot run as configured.
    """
    storage = postgres_journal(squid)
    session = spark.spark_session
    with handed_over(storage.engine.url.render_as_string(hide_password=False)) as location:
        yield session, storage, location
