"""Tables projected from folded runs, without a session, as a worker does it."""

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from squid_dagster.spark.fold.tasks import packed
from squid_dagster.spark.tables.columns import TABLE_SCHEMAS, UNIT_SCHEMA
from squid_dagster.spark.tables.queue_health import percentile
from squid_dagster.spark.tables.run_tables import arrow_schema, rows_of


def test_small_items_are_put_together_and_large_ones_stay_alone() -> None:
    assert packed([3, 9, 1, 5, 12, 2], lambda size: size, 10) == [[12], [9], [5, 3, 2], [1]]
    assert packed([], lambda size: size, 10) == []


def test_a_percentile_between_two_values_is_in_proportion() -> None:
    assert percentile([], 0.5) is None
    assert percentile([(7.0, 1)], 0.95) == 7.0
    assert percentile([(10.0, 1), (20.0, 1)], 0.5) == 15.0
    assert percentile([(1.0, 3), (5.0, 2)], 0.5) == 1.0
    assert percentile([(0.0, 1), (10.0, 1), (20.0, 1), (30.0, 1)], 0.95) == pytest.approx(28.5)


@pytest.mark.parametrize("table", [name for name in TABLE_SCHEMAS if name != "queue_health"])
def test_facts_of_no_run_have_no_row_but_for_their_anomalies(table: str) -> None:
    odd = {"reason": "malformed_entry", "entry_type": "?", "thread": "squid:dispatch:default", "seq": 3, "ordinal": 1}
    row = {"run_id": None, "entries": 4, "anomalies": [odd]}
    loose = pa.RecordBatch.from_pylist([row], schema=to_arrow_schema(UNIT_SCHEMA, timezone="UTC"))
    rows = rows_of(table, loose)
    assert rows.schema == arrow_schema(table)
    assert rows.num_rows == (1 if table == "journal_anomalies" else 0)
