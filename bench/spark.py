"""Spark beside its JDBC reader, beside itself on fewer facts, and beside one process that folds.

One journal grows and is measured on the way: reads and an incremental refresh at a fifth of it, rebuilds at two fifths
and at the end. Everything is warm: each operation ran before in the same session.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from pyspark.sql import DataFrame, SparkSession

from bench.report import Measure, progress
from bench.spark_expect import Slopes, markdown
from bench.spark_jdbc import COLUMNS, find_jar, read_by_jdbc
from bench.spark_journal import GrowingJournal, new_journal
from bench.spark_memory import Peaks, peaks
from bench.spark_server import ServerAddresses, new_tcp_server
from squid_dagster.journal.postgres.views.rebuild import Rebuild
from squid_dagster.spark.session.session import open_session
from squid_dagster.spark.source.columns import SCHEMA
from squid_dagster.spark.source.data_source import JournalReader, SourceOptions, read_journal
from squid_dagster.spark.source.ranges import entries_between, usual_partitions
from squid_dagster.spark.tables.refresh import refresh
from squid_dagster.spark.tables.warehouse import Warehouse

FACTS = 5_000_000
READS, REBUILDS, NEWS_PER_MILLION = 5, 2, 10_000
WARMING = 4  # refreshes that are not counted, after which the JVM has compiled its hot code
GENERATIONS = 2  # the warehouse keeps the one before for its readers
_CORES = 2


def measure(facts: int = FACTS) -> list[Measure]:
    """Measure all of it on a journal that grows to so many facts."""
    few, some = facts // 5, facts * 2 // 5
    with (
        tempfile.TemporaryDirectory(prefix="squid-bench-", dir="/tmp") as folder,
        new_tcp_server() as addresses,
        _session(Path(folder)) as spark,
    ):
        journal = new_journal(addresses.url)
        try:
            tables = MeasuredTables(spark, journal, addresses, Path(folder))
            journal.grow(few)
            measures = [tables.race_jdbc(), tables.incremental(max(1, few * NEWS_PER_MILLION // 1_000_000))]
            journal.grow(some)
            before, (smaller, _) = journal.facts, tables.rebuild(REBUILDS)
            journal.grow(facts)
            larger, most = tables.rebuild(REBUILDS)
            measures += [*tables.compared(before, smaller, larger), *_memory(most)]
            print(markdown(tables.slopes(before, smaller, larger)))
            return measures if facts >= FACTS else [replace(measure, at_most=None) for measure in measures]
        finally:
            journal.storage.close()


@contextmanager
def _session(folder: Path) -> Iterator[SparkSession]:
    settings = {
        "spark.jars": str(find_jar(folder)),
        "spark.driver.memory": "2g",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
    }
    session = open_session(f"local[{_CORES}]", settings)
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


class MeasuredTables:
    """A Spark session, a journal and the tables made of it, with their measurements."""

    def __init__(self, spark: SparkSession, journal: GrowingJournal, addresses: ServerAddresses, folder: Path) -> None:
        """Set session, journal and addresses. Tables are written below the folder."""
        self._spark, self._journal, self._addresses, self._warehouse = spark, journal, addresses, folder / "warehouse"
        self._location = {"url": addresses.url}

    def race_jdbc(self) -> Measure:
        """Read the journal through the data source and by JDBC, in turn, the same columns in as many parts."""
        upto = self._journal.storage.cut()
        parts = usual_partitions(entries_between(self._journal.storage, 0, upto))
        spark, schema = self._spark, self._journal.storage.schema

        def ours() -> DataFrame:
            return read_journal(spark, self._location, schema=schema, upto=upto, only=COLUMNS, partitions=parts)

        def theirs() -> DataFrame:
            return read_by_jdbc(spark, self._addresses.jdbc_url, upto, parts)

        rounds = [(_took(ours), _took(theirs)) for _ in _counted("reading", READS + 1)][1:]
        mine, jdbc = median(one for one, _ in rounds), median(one for _, one in rounds)
        detail = f"{mine:.2f} s beside {jdbc:.2f} s, {upto:,} facts in {parts} parts, median of {READS}"
        return Measure("spark: read, beside JDBC", "times as long", mine / jdbc, at_most=1.2, detail=detail)

    def incremental(self, news: int) -> Measure:
        """Rebuild everything, then refresh after some new facts."""
        full, _ = self.rebuild(REBUILDS + 1)
        facts, times = self._journal.facts, []
        for _ in _counted("refreshing", WARMING + READS):
            added = self._journal.add(news)
            begin = time.perf_counter()
            self._refresh(full=False)
            times.append(time.perf_counter() - begin)
        times = times[WARMING:]
        detail = f"{median(times):.2f} s after {added:,} new facts beside {full:.2f} s for {facts:,}"
        return Measure(
            "spark: refresh, beside a rebuild", "times as long", median(times) / full, at_most=0.1, detail=detail
        )

    def rebuild(self, rounds: int) -> tuple[float, Peaks]:
        """Rebuild all tables a few times. Return the best time, since other load only adds, and the peaks of memory."""
        times = []
        with peaks() as most:
            for _ in _counted("rebuilding", rounds):
                begin = time.perf_counter()
                self._refresh(full=True)
                times.append(time.perf_counter() - begin)
        return min(times), most

    def compared(self, fewer: int, smaller: float, larger: float) -> list[Measure]:
        """Compare rebuilds of all facts with those of fewer, and with one process that folds and writes the views."""
        facts = self._journal.facts
        begin = time.perf_counter()
        with self._journal.storage.connection() as connection:
            alone = Rebuild(self._journal.storage, connection)
            alone.create_shadows()
            alone.fill(self._journal.storage.cut(), lambda done: progress("one process", done, facts))
        single = time.perf_counter() - begin
        growth = f"{larger:.1f} s for {facts:,} facts beside {smaller:.1f} s for {fewer:,}, best of {REBUILDS}"
        beside = f"{larger:.1f} s beside {single:.1f} s, {facts:,} facts"
        return [
            Measure("spark: rebuild, 5 beside 2 parts", "times as long", larger / smaller, at_most=2.8, detail=growth),
            Measure("spark: rebuild, beside one process", "times as long", larger / single, at_most=1.0, detail=beside),
        ]

    def slopes(self, fewer: int, smaller: float, larger: float) -> Slopes:
        """Compute the slopes for larger journals: the cost of each fact, and the fixed cost."""
        facts, storage = self._journal.facts, self._journal.storage
        per_fact = (larger - smaller) / (facts - fewer)
        size = storage.rows("SELECT pg_total_relation_size('{schema}.journal_entries')")[0][0]
        tables = sum(path.stat().st_size for path in self._warehouse.rglob("*") if path.is_file())
        return Slopes(
            fixed_seconds=max(0.0, larger - per_fact * facts),
            core_seconds_per_fact=per_fact * _CORES,
            facts_per_second=facts / self._read_alone(),
            journal_bytes_per_fact=size / facts,
            table_bytes_per_fact=tables / facts / GENERATIONS,
        )

    def _read_alone(self) -> float:
        """Read everything by one connection in this process, as one of Spark's workers would."""
        options = SourceOptions.parse({**self._location, "schema": self._journal.storage.schema, "partitions": "1"})
        reader = JournalReader(options, SCHEMA)
        (part,) = reader.partitions()
        begin = time.perf_counter()
        for _ in reader.read(part):
            pass
        return time.perf_counter() - begin

    def _refresh(self, *, full: bool) -> None:
        warehouse = Warehouse(str(self._warehouse))
        refresh(self._spark, self._journal.storage, self._location, warehouse, full=full)


def _memory(most: Peaks) -> list[Measure]:
    return [
        Measure(f"spark: memory, {kind}", "MiB", size, detail="most, while everything is rebuilt")
        for kind, size in sorted(most.items())
        if kind != "other"
    ]


def _took(read: Callable[[], DataFrame]) -> float:
    begin = time.perf_counter()
    read().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def _counted(name: str, times: int) -> Iterator[int]:
    for number in range(times):
        progress(name, number, times)
        yield number
