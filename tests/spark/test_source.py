"""The data source: whole commits under one cut, no gap and no duplicate, and only what was asked for."""

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from squid_dagster.journal.contract.storage import Append
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol.errors import InvalidArgument, StorageUnavailable
from squid_dagster.spark.source.credentials import Location
from squid_dagster.spark.source.data_source import read_journal
from squid_dagster.spark.source.database import connected
from tests.facts import queue_paused, signal, started
from tests.processes import REPOSITORY
from tests.spark.journal_generator import Plan, generate
from tests.spark.reading import location, read_by_hand

GUIDE = REPOSITORY / "docs" / "spark.md"
WRITERS, READS = 3, 50
PACE_SECONDS = 0.02


@contextmanager
def pairs_written(storage: PostgresStorage) -> Iterator[None]:
    """Append pairs in threads, each in one commit over two threads, until the block ends."""
    stop, written = threading.Event(), Counter[int]()

    def write(writer: int) -> None:
        while not stop.wait(PACE_SECONDS):  # so that what is read again and again does not grow without bound
            pair = {"pair": f"{writer}-{written[writer]}"}
            halves = [signal(f"{side}-{writer}", payload=pair) for side in ("left", "right")]
            storage.commit([Append(half.thread, [half]) for half in halves])
            written[writer] += 1

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def pairs(texts: list[str]) -> Counter[str]:
    """Return how many halves there are of each pair."""
    return Counter(json.loads(text)["payload"]["pair"] for text in texts)


def test_no_read_ever_holds_half_a_pair(spark: SparkSession, postgres: PostgresStorage) -> None:
    sizes: list[int] = []
    with pairs_written(postgres):
        while len(sizes) < READS or sizes[-1] <= sizes[0]:  # writers may have to wait for the disk
            by = ("position", "thread", "run")[len(sizes) % 3]
            rows = read_by_hand(postgres, {"partitions": "4", "by": by}, "data")
            counts = pairs([row["data"] for row in rows])
            assert set(counts.values()) <= {2}
            sizes.append(len(counts))
        for by in ("position", "thread"):
            frame = spark.read.format("squid_journal").options(**location(postgres), schema=postgres.schema, by=by)
            texts = [row.data for row in frame.schema("data string").load().collect()]
            assert set(pairs(texts).values()) == {2}


def test_reads_from_cut_to_cut_have_no_gap_and_no_duplicate(spark: SparkSession, postgres: PostgresStorage) -> None:
    seen: list[int] = []
    after = 0
    with pairs_written(postgres):
        for _ in range(15):
            upto = postgres.cut(after)
            options = {"after": str(after), "upto": str(upto), "partitions": "2"}
            seen += [row["position"] for row in read_by_hand(postgres, options, "position")]
            after = upto
    upto = postgres.cut(after)
    frame = read_journal(spark, location(postgres), schema=postgres.schema, after=after, upto=upto, only=["position"])
    seen += [row.position for row in frame.collect()]

    assert sorted(seen) == [entry.position for entry in postgres.read_between(0, upto)]


@pytest.fixture
def generated(postgres: PostgresStorage) -> PostgresStorage:
    """A journal of some hundred facts, one of them of no run."""
    generate(postgres, Plan(600, runs_per_commit=20))
    postgres.append(queue_paused().thread, [queue_paused()])
    return postgres


def test_every_division_gives_every_entry_once(generated: PostgresStorage) -> None:
    expected = [entry.position for entry in generated.read_between(0, generated.cut())]

    for by in ("position", "thread", "run"):
        for partitions in ("3", "16"):
            rows = read_by_hand(generated, {"by": by, "partitions": partitions}, "position")
            assert sorted(row["position"] for row in rows) == expected


def test_entries_come_as_they_are_stored(generated: PostgresStorage) -> None:
    stored = generated.rows(
        "SELECT position, thread, seq, type, run_id, occurred_at, data::text FROM {schema}.journal_entries"
    )

    rows = read_by_hand(generated, {})

    assert sorted((*list(row.values())[:7],) for row in rows) == sorted(stored)
    assert {row["intact"] for row in rows} == {True}


def test_touched_runs_come_with_their_whole_history(generated: PostgresStorage) -> None:
    before = generated.cut()
    generated.append(signal("run-0-000000003").thread, [signal("run-0-000000003"), signal("run-0-000000003")])
    generated.append(started("new").thread, [started("new")])

    rows = read_by_hand(generated, {"by": "run", "after": str(before), "partitions": "2"}, "position", "run_id")

    touched = {"run-0-000000003", "new", None}
    expected = [
        e.position for e in generated.read_between(0, generated.cut()) if getattr(e.fact, "run_id", None) in touched
    ]
    assert {row["run_id"] for row in rows} == touched
    assert sorted(row["position"] for row in rows) == expected


def test_an_empty_journal_gives_nothing(postgres: PostgresStorage) -> None:
    for by in ("position", "thread", "run"):
        assert read_by_hand(postgres, {"by": by, "partitions": "4"}) == []


def test_filters_are_applied_by_postgres(spark: SparkSession, generated: PostgresStorage) -> None:
    upto = generated.cut()
    run = "run-0-000000001"
    conditions = [
        f"run_id = '{run}'",
        f"thread = 'squid:run:{run}' AND position > 5 AND position <= {upto - 1}",
        "run_id IS NULL AND type IN ('queue_paused', 'queue_resumed')",
        "thread LIKE 'squid:dispatch:%' AND occurred_at >= timestamp'2026-01-01 00:00:10'",
    ]
    options = {**location(generated), "schema": generated.schema, "upto": str(upto)}
    plain = spark.read.format("squid_journal").options(**options).load().cache()
    for condition in conditions:
        frame = spark.read.format("squid_journal").options(**options, pushdown="true").load().where(condition)
        plan = frame._jdf.queryExecution().executedPlan().toString()
        expected = sorted(row.position for row in plain.where(condition).collect())

        assert "Filter" not in plan.replace("RuntimeFilters", "")
        assert sorted(row.position for row in frame.collect()) == expected
        assert expected
    plain.unpersist()


def test_a_filter_that_only_spark_can_apply_stays_with_spark(spark: SparkSession, generated: PostgresStorage) -> None:
    options = {**location(generated), "schema": generated.schema, "pushdown": "true"}
    frame = spark.read.format("squid_journal").options(**options).load().where("data LIKE '%declined%' AND seq > 1")

    assert all("declined" in row.data and row.seq > 1 for row in frame.collect())


def test_filters_of_one_query_do_not_reach_another(spark: SparkSession, generated: PostgresStorage) -> None:
    options = {**location(generated), "schema": generated.schema, "upto": str(generated.cut())}
    frame = spark.read.format("squid_journal").options(**options).load()
    first, second = frame.where("type = 'run_started'"), frame.where("type = 'run_terminal'")

    counts = first.count(), second.count(), first.union(second).count(), frame.count()

    entries = Counter(entry.fact.type for entry in generated.read_between(0, generated.cut()))
    started_, ended = entries["run_started"], entries["run_terminal"]
    assert started_ != ended
    assert counts == (started_, ended, started_ + ended, entries.total())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"upto": "999999"}, "upto 999999 is no cut: the journal has only reached position 0"),
        ({"after": "7", "upto": "3"}, "upto 3 lies before after 7"),
        ({"after": "-1"}, "the option after is '-1': use a whole number"),
        ({"partitions": "0"}, "the option partitions is 0: use 1 to"),
        ({"by": "day"}, "the option by is 'day': use position, thread, run"),
        ({"pushdown": "maybe"}, "the option pushdown is 'maybe'"),
        ({"schema": "No Schema"}, "schema name 'No Schema' is not usable"),
        ({"dbtable": "x"}, "squid_journal knows no option 'dbtable'"),
    ],
)
def test_a_wrong_option_is_named(postgres: PostgresStorage, options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        read_by_hand(postgres, options)


def test_a_schema_without_a_journal_is_told(postgres: PostgresStorage) -> None:
    with pytest.raises(StorageUnavailable, match="there is no journal in schema 'nothing_here'"):
        read_by_hand(postgres, {"schema": "nothing_here"})


def _loaded(spark: SparkSession, storage: PostgresStorage, columns: str) -> Any:
    options = {**location(storage), "schema": storage.schema}
    return spark.read.format("squid_journal").options(**options).schema(columns).load().collect()


def test_a_wrong_column_is_told_when_the_query_is_planned(spark: SparkSession, postgres: PostgresStorage) -> None:
    with pytest.raises(AnalysisException, match="squid_journal has no column 'kind': declare some of position, thread"):
        _loaded(spark, postgres, "kind string")
    with pytest.raises(AnalysisException, match="column 'seq' of squid_journal is bigint, not string"):
        _loaded(spark, postgres, "seq string")


def test_connecting_reads_no_catalog(postgres: PostgresStorage) -> None:
    with postgres.connection() as connection:
        connection.execute(postgres.sql("CREATE TYPE {schema}.mood AS ENUM ('calm')"))

    with connected(Location("url", location(postgres)["url"]), postgres.schema) as cursor:
        cursor.execute(f"SELECT 'calm'::{postgres.schema}.mood AS mood")
        (field,) = cursor.fetch_arrow_table().schema

    assert "opaque" in str(field.type)  # it would be known to a driver that has read all types of the database


def test_the_snippets_of_the_guide_run(
    spark: SparkSession,
    generated: PostgresStorage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    snippets = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SQUID_DATABASE_URL", location(generated)["url"])
    monkeypatch.setenv("SQUID_SCHEMA", generated.schema)

    for snippet in snippets:
        exec(compile(snippet, "docs/spark.md", "exec"), {"__name__": "guide"})  # noqa: S102

    printed = capsys.readouterr().out
    assert "attempt_claimed" in printed
    assert "'run_history': " in printed
    assert "synthetic|completed" in printed.replace(" ", "")


def test_workers_need_no_dagster(spark: SparkSession, postgres: PostgresStorage) -> None:
    postgres.append(started().thread, [started()])
    frame = read_journal(spark, location(postgres), schema=postgres.schema, upto=postgres.cut())

    def modules(_: Any) -> Iterator[Any]:
        import sys
        from importlib import import_module

        import pyarrow as pa

        import_module("squid_dagster.spark.fold.folds")
        yield pa.record_batch({"name": sorted({name.partition(".")[0] for name in sys.modules})})

    loaded = {row.name for row in frame.mapInArrow(modules, "name string").collect()}

    assert "squid_dagster" in loaded
    assert "dagster" not in loaded
