"""The folds in Spark's workers: what they say is what the fold in this process says, of damaged journals too."""

import json
from collections import Counter
from typing import Any, LiteralString

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.folded_rows import ViewRows
from squid_dagster.protocol import Entry, Fact, RunUnit
from squid_dagster.protocol.entries import by_run
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.fold import run_rows
from squid_dagster.spark.fold.folds import COLUMNS, fold_runs
from squid_dagster.spark.source.columns import SCHEMA
from squid_dagster.spark.source.data_source import read_journal
from squid_dagster.spark.tables.run_tables import project_frame
from tests.facts import queue_paused, queue_resumed
from tests.spark.journal_generator import Plan, generate
from tests.spark.reading import location
from tests.spark.synthetic_runs import EventRates
from tests.spark.view_rows import fold_runs_with_views

RICH = EventRates(retries=0.3, expiries=0.2, approvals=0.2, children=0.2, anomalies=0.3, unfinished=0.2)


@pytest.fixture
def journal(postgres: PostgresStorage) -> PostgresStorage:
    """A journal in which everything happens, paused queues and anomalies included."""
    generate(postgres, Plan(1_500, seed=11, mix=RICH, runs_per_commit=30))
    paused: list[Fact] = [queue_paused("slow"), queue_paused("fast"), queue_resumed("fast")]
    for fact in paused:
        postgres.append(fact.thread, [fact])
    return postgres


def entries_of(spark: SparkSession, storage: PostgresStorage) -> DataFrame:
    """Return all entries, in the columns of a fold."""
    upto = storage.cut()
    return read_journal(spark, location(storage), schema=storage.schema, upto=upto, only=COLUMNS, partitions=2)


def groups(storage: PostgresStorage) -> dict[str | None, list[Entry]]:
    """Return the same entries, read and grouped in this process."""
    return by_run(storage.read_between(0, storage.cut()))


def rows_by_run(units: DataFrame) -> dict[str | None, Row]:
    """Return folded runs by id; none twice."""
    rows = units.collect()
    assert len({row.run_id for row in rows}) == len(rows)
    return {row.run_id: row for row in rows}


def anomalies_of(anomalies: Any) -> list[tuple[Any, ...]]:
    """Return anomalies as plain values, in the given order."""
    return [(a.reason, a.entry_type, a.run_id, a.subject, a.thread, a.seq, a.position) for a in anomalies]


def test_every_run_is_folded_as_in_this_process(spark: SparkSession, journal: PostgresStorage) -> None:
    expected = groups(journal)

    folded = rows_by_run(fold_runs(entries_of(spark, journal), 3))

    assert folded.keys() == expected.keys()
    for run_id, entries in expected.items():
        row = folded[run_id]
        assert (row.first_position, row.last_position, row.entries) == (
            entries[0].position,
            entries[-1].position,
            len(entries),
        )
        if run_id is None:
            continue
        unit = RunUnit.fold(entries)
        run = unit.run
        assert (row.run.status, row.run.queue, row.run.planned_visits, row.run.applied_visits, row.run.fenced) == (
            run.status,
            unit.dispatch.queue,
            run.planned_visits,
            run.applied_visits,
            unit.dispatch.fenced,
        )
        assert {(a.runnable_key, a.status, a.deliveries, a.fencing_token, a.attempt_number) for a in row.attempts} == {
            (a.runnable_key, a.status.value, a.deliveries, a.fencing_token, a.attempt_number)
            for a in unit.dispatch.attempts.values()
        }
        assert {child.child_run_id for child in row.children} == run.children.keys()
        assert anomalies_of(row.anomalies) == anomalies_of(unit.anomalies)
        for listed, summary in ((row.indexed, unit.indexed), (row.cataloged, unit.cataloged)):
            assert summary is not None
            assert (listed.workflow, listed.queue) == (summary.workflow, summary.queue)
    assert [(q.queue, q.paused) for q in folded[None].queues] == [("slow", True), ("fast", False)]


def test_tables_hold_what_was_generated(spark: SparkSession, postgres: PostgresStorage) -> None:
    done = generate(postgres, Plan(800, seed=5, mix=RICH, runs_per_commit=30))
    units = fold_runs(entries_of(spark, postgres), 2).cache()

    history, attempts = project_frame(units, "run_history").collect(), project_frame(units, "attempt_history").collect()

    assert (
        project_frame(units, "run_index").count()
        == project_frame(units, "run_catalog").count()
        == len(history)
        == done.runs
    )
    assert sum(row.retries for row in history) == done.retries
    assert sum(row.expiries for row in history) == sum(row.expiries for row in attempts) == done.expiries
    assert sum(row.resolutions for row in history) == done.approvals
    assert (
        project_frame(units, "child_links").count()
        == sum(row.parent_run_id is not None for row in history)
        == done.children
    )
    assert project_frame(units, "journal_anomalies").count() == sum(row.anomalies for row in history) == done.anomalies
    assert sum(row.ended_at is None for row in history) == done.unfinished
    settled = [row for row in attempts if row.settled_at is not None]
    assert all(row.scheduled_at <= row.first_claimed_at <= row.claimed_at <= row.settled_at for row in settled)
    assert all(row.claims == row.deliveries for row in attempts)
    units.unpersist()


_VIEWS: dict[str, LiteralString] = {
    "runs": "SELECT to_json(v)::text FROM {schema}.runs v",
    "attempts": "SELECT to_json(v)::text FROM {schema}.attempts v",
    "children": "SELECT to_json(v)::text FROM {schema}.children v",
    "queues": "SELECT to_json(v)::text FROM {schema}.queues v",
    "anomalies": "SELECT to_json(v)::text FROM {schema}.anomalies v",
}


def _counted(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(json.dumps(row, sort_keys=True, default=str) for row in rows)


def test_the_rows_of_the_views_are_those_of_a_rebuild(spark: SparkSession, journal: PostgresStorage) -> None:
    expected = ViewRows()
    for run_id, entries in groups(journal).items():
        if run_id is None:
            expected.add_loose(entries)
        else:
            expected.add_run(run_id, entries)

    folded = fold_runs_with_views(entries_of(spark, journal), 2).select("views.*").collect()

    for table, live in _VIEWS.items():
        actual = [row for one in folded for row in json.loads(one[table])]
        assert _counted(actual) == _counted(getattr(expected, table))
        assert len(actual) == len(journal.rows(live))


def damage(storage: PostgresStorage, text: LiteralString, *values: object) -> None:
    """Update entries past the journal."""
    with storage.connection() as connection:
        connection.execute(
            storage.sql("ALTER TABLE {schema}.journal_entries DISABLE TRIGGER journal_entries_append_only")
        )
        assert connection.execute(storage.sql(text), values).rowcount == 1
        connection.execute(
            storage.sql("ALTER TABLE {schema}.journal_entries ENABLE ALWAYS TRIGGER journal_entries_append_only")
        )


def test_damaged_entries_become_anomalies_of_their_runs(spark: SparkSession, postgres: PostgresStorage) -> None:
    generate(postgres, Plan(300, mix=EventRates(0, 0, 0, 0, 0, 0), runs_per_commit=10))
    postgres.append(queue_paused().thread, [queue_paused()])
    where: LiteralString = " WHERE run_id = %s AND type = %s"
    digest: LiteralString = "digest = {schema}.entry_digest(thread, seq, type, run_id, occurred_at, "
    damage(postgres, "UPDATE {schema}.journal_entries SET data = '{{}}'" + where, "run-0-000000001", "run_started")
    damage(
        postgres,
        """UPDATE {schema}.journal_entries SET data = '["no", "object"]', """
        + digest
        + """'["no", "object"]')"""
        + where,
        "run-0-000000002",
        "run_terminal",
    )
    damage(
        postgres,
        "UPDATE {schema}.journal_entries SET type = 'run_teleported', digest = {schema}.entry_digest(thread, seq, "
        "'run_teleported', run_id, occurred_at, data)" + where,
        "run-0-000000003",
        "run_queued",
    )
    damage(postgres, "UPDATE {schema}.journal_entries SET occurred_at = now() WHERE type = %s", "queue_paused")

    units = fold_runs(entries_of(spark, postgres), 2).cache()

    anomalies = {
        (row.run_id, row.reason, row.entry_type) for row in project_frame(units, "journal_anomalies").collect()
    }
    assert anomalies == {
        ("run-0-000000001", "malformed_entry", "run_started"),
        ("run-0-000000002", "malformed_entry", "run_terminal"),
        ("run-0-000000003", "unknown_fact_type", "run_teleported"),
        (None, "malformed_entry", "queue_paused"),
    }
    expected = groups(postgres)
    assert {row.run_id: row.status for row in project_frame(units, "run_history").collect()} == {
        run_id: RunUnit.fold(entries).run.status for run_id, entries in expected.items() if run_id is not None
    }
    units.unpersist()


def test_a_fold_needs_all_columns_and_a_task(spark: SparkSession) -> None:
    empty = spark.createDataFrame([], StructType([SCHEMA[name] for name in COLUMNS]))

    with pytest.raises(InvalidArgument, match="a fold needs the column 'intact'"):
        fold_runs(empty.drop("intact"), 2)
    with pytest.raises(InvalidArgument, match="partitions is 0"):
        fold_runs(empty, 0)
    assert fold_runs(empty, 2).collect() == []


def test_a_run_that_goes_over_many_batches_is_folded_once(spark: SparkSession, journal: PostgresStorage) -> None:
    usual = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "3")
    try:
        folded = rows_by_run(fold_runs(entries_of(spark, journal), 1))
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", usual or "10000")

    assert {run_id: row.entries for run_id, row in folded.items()} == {
        run_id: len(entries) for run_id, entries in groups(journal).items()
    }


def test_the_fold_runs_in_workers_and_not_in_the_driver(
    spark: SparkSession, journal: PostgresStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    jvm: Any = spark.sparkContext._jvm
    assert jvm.java.lang.Runtime.getRuntime().maxMemory() <= 512 * 2**20
    expected = {run_id: RunUnit.fold(of_run).run.status for run_id, of_run in groups(journal).items() if run_id}

    def refuse(*_: object) -> None:
        raise AssertionError("the driver folds")

    monkeypatch.setattr(run_rows, "apply_unit", refuse)  # in this process alone: workers have their own
    folded = project_frame(fold_runs(entries_of(spark, journal), 2), "run_history").collect()

    assert {row.run_id: row.status for row in folded} == expected
