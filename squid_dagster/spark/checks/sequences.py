"""Threads whose sequence is not 1..n. Each task queries a share of them in Postgres; no entry is sent to Spark."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
from psycopg import sql
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

from squid_dagster.journal.postgres.connection.failures import retry_if_safe
from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.schema.names import statement
from squid_dagster.journal.postgres.views.verification import LOST_TAILS
from squid_dagster.protocol.threads import run_thread
from squid_dagster.spark.checks.results import NAMED
from squid_dagster.spark.fold.worker_journal import explained, journal_of
from squid_dagster.spark.source import ranges
from squid_dagster.spark.source.credentials import Location, locate
from squid_dagster.spark.source.database import connected

_RUN_PREFIX = run_thread("")
_ENDLESS = 2**63 - 1
_NO_REVISION = -1
_SCHEMA = StructType(
    [StructField("thread", StringType()), StructField("what", StringType()), StructField("problems", LongType())]
)

# journal_entries_thread, journal_threads_pkey. One statement, so one snapshot: an append changes entries and revision
# of a run's own thread together; the revision of a shared thread is a lower bound (revision_of.sql). Only the ends of a
# thread within the share, and irregular rows, are joined with more rows.
_PROBLEMS = sql.SQL("""
    WITH share AS (
        SELECT thread, seq, position, lag(seq) OVER near AS before_seq, lag(position) OVER near AS before_position,
               lead(seq) OVER near AS next_seq
          FROM {schema}.journal_entries WHERE {share}
        WINDOW near AS (PARTITION BY thread ORDER BY seq, position)),
    odd AS (
        SELECT * FROM share WHERE before_seq IS NULL OR next_seq IS NULL OR seq <> before_seq + 1
            OR position <= before_position)
    SELECT o.thread, o.seq, coalesce(o.before_seq, b.seq, 0), o.position <= coalesce(o.before_position, b.position, 0),
           r.rev
      FROM odd o
      LEFT JOIN LATERAL (
        SELECT p.seq, p.position FROM {schema}.journal_entries p
         WHERE o.before_seq IS NULL AND o.seq > 1 AND p.thread = o.thread AND p.seq < o.seq
         ORDER BY p.seq DESC, p.position DESC LIMIT 1) b ON true
      LEFT JOIN LATERAL (
        SELECT t.rev
          FROM (SELECT coalesce((SELECT t.rev FROM {schema}.journal_threads t WHERE t.id = o.thread), {no_revision})
                       AS rev OFFSET 0) t
         WHERE o.next_seq IS NULL AND NOT EXISTS (
           SELECT FROM {schema}.journal_entries n WHERE n.thread = o.thread AND n.seq > o.seq)
           AND (t.rev > o.seq OR t.rev < o.seq AND (t.rev = {no_revision} OR starts_with(o.thread, {run_prefix})))
       ) r ON true
     WHERE o.seq <> coalesce(o.before_seq, b.seq, 0) + 1 OR r.rev IS NOT NULL
        OR o.position <= coalesce(o.before_position, b.position, 0)
     ORDER BY o.thread, o.seq""")
# journal_threads_pkey, journal_entries_thread: one index lookup per thread; a join reads the whole journal.
_EMPTY = sql.SQL("""
    SELECT t.id, t.rev FROM {schema}.journal_threads t
     WHERE t.rev > 0 AND {threads}
       AND (SELECT e.seq FROM {schema}.journal_entries e WHERE e.thread = t.id LIMIT 1) IS NULL ORDER BY t.id""")


class Problem(NamedTuple):
    """One problem of a thread's sequence."""

    thread: str
    what: str


def problems_within(connection: PgConnection, schema: str, share: sql.Composable) -> Iterator[Problem]:
    """Yield the problems of the entries that satisfy the condition `share`, and of the ends of their threads."""
    names = {
        "schema": sql.Identifier(schema),
        "no_revision": sql.Literal(_NO_REVISION),
        "run_prefix": sql.Literal(_RUN_PREFIX),
    }
    for thread, seq, before, misplaced, revision in connection.execute(_PROBLEMS.format(**names, share=share)):
        if seq == before:
            yield Problem(thread, f"sequence number {seq} is there twice")
        elif seq != before + 1:
            missing = f"{before + 1}" if seq == before + 2 else f"{before + 1} to {seq - 1}"
            yield Problem(thread, f"sequence {missing} is missing")
        elif misplaced:
            yield Problem(thread, f"the positions fall at sequence {seq}")
        if revision == _NO_REVISION:
            yield Problem(thread, "the thread has entries, but no revision")
        elif revision is not None:
            yield Problem(thread, f"the thread says revision {revision}, its last entry is {seq}")


def problems_of_threads(connection: PgConnection, schema: str, threads: Sequence[str]) -> Iterator[Problem]:
    """Yield the problems of these threads."""
    named = sql.Literal(list(threads))
    yield from problems_within(connection, schema, sql.SQL("thread = ANY ({})").format(named))
    yield from _empty_threads(connection, schema, sql.SQL("t.id = ANY ({})").format(named))


def _empty_threads(connection: PgConnection, schema: str, threads: sql.Composable) -> Iterator[Problem]:
    text = _EMPTY.format(schema=sql.Identifier(schema), threads=threads)
    for thread, revision in connection.execute(text):
        yield Problem(thread, f"the thread says revision {revision}, and has no entry")


def _lost_tails(connection: PgConnection, schema: str) -> Iterator[Problem]:
    for thread, revision, seq in connection.execute(statement(LOST_TAILS, schema)):
        yield Problem(thread, f"a commit says revision {revision}, the thread's last entry is {seq}")


@dataclass(frozen=True, slots=True)
class Damaged:
    """The damaged threads: all shared ones, and some of the runs' own."""

    shared: dict[str, str] = field(default_factory=dict)  # the first problem, by thread
    own: dict[str, str] = field(default_factory=dict)
    unnamed: int = 0  # further threads of runs


def find_damaged(spark: SparkSession, location: Mapping[str, str], schema: str, partitions: int) -> Damaged:
    """Return the damaged threads, by one job of `partitions` tasks.

    Raises:
        StorageUnavailable: the database cannot be reached.
        StorageRefused: the database refuses to be read.
        WorkFailed: a task failed after all retries.
    """
    where = locate(location)

    def divide() -> list[sql.Composable]:
        with connected(where, schema) as cursor:
            return ranges.by_thread(cursor, schema, 0, _ENDLESS, partitions)

    shares = retry_if_safe(divide)
    check = _SequenceCheck(where, schema, shares)
    with explained("the threads could not be looked at"):
        rows = spark.range(0, len(shares) + 1, 1, len(shares)).mapInArrow(check.run, _SCHEMA).collect()
    damaged = Damaged(unnamed=sum(row.problems for row in rows if row.thread is None))
    for row in sorted((row for row in rows if row.thread is not None), key=lambda row: (row.thread, row.what)):
        by_thread = damaged.own if row.thread.startswith(_RUN_PREFIX) else damaged.shared
        by_thread.setdefault(row.thread, row.what)
    return damaged


@dataclass(frozen=True, slots=True)
class _SequenceCheck:
    """The check of one task's share. Holds no secret: it is sent with the plan."""

    location: Location
    schema: str
    shares: list[sql.Composable]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = [number for batch in batches for number in batch.column("id").to_pylist()]
        with journal_of(self.location, self.schema) as storage, storage.connection() as connection:
            rows = [row for number in numbers for row in self._rows(connection, number)]
        yield pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(_SCHEMA))

    def _rows(self, connection: PgConnection, number: int) -> Iterator[dict[str, Any]]:
        if number < len(self.shares):
            problems = problems_within(connection, self.schema, self.shares[number])
        else:
            problems = chain(
                _empty_threads(connection, self.schema, sql.SQL("true")), _lost_tails(connection, self.schema)
            )
        threads: dict[str, str] = {}
        for problem in problems:
            threads.setdefault(problem.thread, problem.what)
        own = [thread for thread in threads if thread.startswith(_RUN_PREFIX)]
        for thread in own[NAMED:]:
            del threads[thread]
        yield from ({"thread": thread, "what": what, "problems": 1} for thread, what in threads.items())
        yield {"thread": None, "what": None, "problems": len(own[NAMED:])}
