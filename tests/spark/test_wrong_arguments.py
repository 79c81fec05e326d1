"""Every argument of Spark's public calls, which docs/spark.md shows, is tried with every kind of wrong value."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.spark.fold.folds import COLUMNS, fold_runs
from squid_dagster.spark.session.session import open_session, prepare, register, spark_config
from squid_dagster.spark.source.credentials import handed_over
from squid_dagster.spark.source.data_source import read_journal
from squid_dagster.spark.tables.refresh import refresh
from squid_dagster.spark.tables.run_tables import project_frame
from squid_dagster.spark.tables.warehouse import Warehouse
from tests.api.fixture import ApiFixture
from tests.api.wrong_values import Call, complaints
from tests.spark.reading import location


@pytest.fixture
def calls(spark: SparkSession, postgres: PostgresStorage, tmp_path: Path) -> dict[str, Call]:
    """A call that works for each, on a journal whose tables are made."""
    ApiFixture(postgres)
    where, warehouse, cut = location(postgres), Warehouse(str(tmp_path / "tables")), postgres.cut()
    entries = read_journal(spark, where, schema=postgres.schema, upto=cut, only=COLUMNS)
    refresh(spark, postgres, where, warehouse)

    def hand_over(url: str, directory: Any = None) -> None:
        with handed_over(url, directory):
            """Enter it, for that is when a file is written."""

    session = {"spark": spark, "location": where}
    return {
        "handed_over": Call(hand_over, {"url": "postgresql://ada:secret@host/db"}),
        "project_frame": Call(project_frame, {"units": fold_runs(entries, 2), "table": "run_history"}),
        "fold_runs": Call(fold_runs, {"entries": entries, "partitions": 2}),
        "open_session": Call(open_session, {"spark_master": "local[2]"}),
        "prepare": Call(prepare, {"spark_master": "local[2]"}),
        "read_journal": Call(read_journal, {**session, "schema": postgres.schema, "upto": cut}),
        "refresh": Call(
            refresh,
            {**session, "storage": postgres, "warehouse": warehouse},
            called_back=frozenset({"progress"}),
        ),
        "register": Call(register, {"session": spark}),
        "spark_config": Call(spark_config, {"spark_master": "local[2]"}),
        "Warehouse": Call(Warehouse, {"path": str(tmp_path)}),
        "Warehouse.manifest": Call(warehouse.manifest, {"table": "run_index"}),
        "Warehouse.read": Call(warehouse.read, {"spark": spark, "table": "run_index"}),
    }


def test_a_wrong_argument_is_refused_in_our_words(calls: dict[str, Call]) -> None:
    for name in calls:
        assert list(complaints(name, lambda _: calls[name], lambda: None, lambda _: 0)) == []  # noqa: B023  at once
