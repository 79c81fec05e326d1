"""Reads for tests: through Spark, and through the reader alone, which is what Spark's workers call."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pyspark.sql.types import StructType

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.spark.source.columns import SCHEMA
from squid_dagster.spark.source.data_source import JournalReader, SourceOptions


def location(storage: PostgresStorage) -> dict[str, str]:
    """Return the option that names the storage's database."""
    return {"url": storage.engine.url.render_as_string(hide_password=False)}


def read_by_hand(storage: PostgresStorage, options: Mapping[str, str], *only: str) -> list[dict[str, Any]]:
    """Plan a read and read its partitions, two at a time, the last one first: as late as can be for each of them."""
    declared = StructType([SCHEMA[name] for name in only]) if only else SCHEMA
    reader = JournalReader(SourceOptions.parse({**location(storage), "schema": storage.schema, **options}), declared)
    parts = list(reader.partitions())
    with ThreadPoolExecutor(2) as pool:
        partitions = pool.map(
            lambda part: [row for batch in reader.read(part) for row in batch.to_pylist()], parts[::-1]
        )
        return [row for rows in partitions for row in rows]
