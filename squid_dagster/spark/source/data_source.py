"""The data source `squid_journal`: the journal between two cuts, in partitions, as Arrow batches.

Options: one of `url`, `url_file`, `url_env` (see `credentials`); `schema` (squid); the positions `after` (excluded) and
`upto`; `partitions`; `by`, which is `position`, `thread` or `run`; `pushdown` (false). Without `upto`, a loaded frame
reads up to a cut that is taken when it is first used. With `by=run`, it reads each run that has an entry after `after`
completely, up to `upto`, one run after another, by position.

Entries under a cut never change, and a commit is never on both sides of it. So partitions need no common snapshot, and
reads of `(a, b]` and `(b, c]` between cuts miss nothing and repeat nothing.

With `pushdown`, Postgres applies the filters that it can. Spark up to 4.3 reuses partitions that were planned with
filters for other scans of the same loaded frame, which then read too little: load such a frame for one query, and not
for both sides of a join.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import pyarrow as pa
from psycopg import sql
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from squid_dagster.journal.postgres.connection.failures import retry_if_safe
from squid_dagster.journal.postgres.schema.names import DEFAULT_SCHEMA, check_schema_name
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.session.any_session import AnySession
from squid_dagster.spark.session.garbage_collection import freeze_loaded_modules
from squid_dagster.spark.source import filters, ranges
from squid_dagster.spark.source.columns import SCHEMA, arrow_schema, check_declared, columns
from squid_dagster.spark.source.credentials import Location, configured_location, locate
from squid_dagster.spark.source.database import batches, connected

NAME = "squid_journal"
_OPTIONS = frozenset({"url", "url_file", "url_env", "schema", "after", "upto", "partitions", "by", "pushdown"})
_BY = ("position", "thread", "run")
_FLAGS = {"": False, "false": False, "true": True}
_SELECT = sql.SQL("SELECT {columns} FROM {schema}.journal_entries WHERE {conditions}{order}")
_BY_RUN = sql.SQL(" ORDER BY run_id, position")  # journal_entries_run


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The parsed options. Holds no secret: it is sent with the plan."""

    location: Location
    schema: str
    after: int
    upto: int | None
    partitions: int | None
    by: str
    pushdown: bool

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SourceOptions":
        """Parse the options; raise `InvalidArgument` that names the wrong one."""
        if unknown := sorted({name.lower() for name in options} - _OPTIONS):
            raise InvalidArgument(
                f"squid_journal knows no option {unknown[0]!r}: it takes {', '.join(sorted(_OPTIONS))}"
            )
        by = options.get("by") or _BY[0]
        if by not in _BY:
            raise InvalidArgument(f"the option by is {by!r}: use {', '.join(_BY)}")
        pushdown = options.get("pushdown") or ""
        if pushdown.lower() not in _FLAGS:
            raise InvalidArgument(f"the option pushdown is {pushdown!r}: use true or false")
        after, upto = _number(options, "after") or 0, _number(options, "upto")
        if upto is not None and upto < after:
            raise InvalidArgument(f"upto {upto} lies before after {after}: nothing can be between them")
        partitions = _number(options, "partitions")
        if partitions is not None and not 1 <= partitions <= ranges.MAX_PARTITIONS:
            raise InvalidArgument(f"the option partitions is {partitions}: use 1 to {ranges.MAX_PARTITIONS}")
        schema = check_schema_name(options.get("schema") or DEFAULT_SCHEMA)
        return cls(locate(options), schema, after, upto, partitions, by, _FLAGS[pushdown.lower()])


@dataclass
class StatementPart(InputPartition):
    """One partition: the SQL statement that reads it."""

    statement: str


class JournalSource(DataSource):
    """`spark.read.format("squid_journal")`. Has all columns by default; declare fewer to read fewer."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Return the schema of all columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> "JournalReader":
        """Return a reader of the declared columns; raise `InvalidArgument` for a wrong option or column."""
        check_declared(schema)
        options = SourceOptions.parse(self.options)
        return FilteringReader(options, schema) if options.pushdown else JournalReader(options, schema)


class JournalReader(DataSourceReader):
    """The reader: plans partitions where the query is planned, and reads each of them in its task."""

    def __init__(self, options: SourceOptions, declared: StructType) -> None:
        """Store the options and the schema; nothing is connected yet."""
        self._options = options
        self._declared = declared
        self._pushed: list[Filter] = []

    def partitions(self) -> Sequence[StatementPart]:
        """Read one cut for all partitions and divide the entries before it.

        Raises:
            InvalidArgument: the journal has not reached the position `upto`, so it is no cut.
            StorageUnavailable: the database cannot be reached, or holds no journal.
            StorageRefused: the database refuses to be read.
        """
        return retry_if_safe(self._plan)

    def _plan(self) -> list[StatementPart]:
        options = self._options
        with connected(options.location, options.schema) as cursor:
            last, cut = ranges.read_bounds(cursor, options.schema)
            if options.upto is not None and options.upto > max(last, options.after):
                raise InvalidArgument(f"upto {options.upto} is no cut: the journal has only reached position {last}")
            upto = options.upto if options.upto is not None else max(options.after, cut)
            after, upto = filters.position_bounds(self._pushed, options.after, upto)
            conditions = self._divided(cursor, after, upto)
        pushed = [condition for one in self._pushed if (condition := _condition(one)) is not None]
        return [StatementPart(self._statement([condition, *pushed])) for condition in conditions]

    def parts_by_run(self, after: int, upto: int, entries: int) -> list[StatementPart]:
        """Divide the runs of the `entries` entries in `(after, upto]`, both cuts, without querying the database."""
        return [StatementPart(self._statement([part])) for part in self._runs(after, upto, entries)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one partition. Retries until the first batch; after that, Spark repeats the task.

        Raises:
            InvalidArgument: the URL is not on this machine.
            StorageUnavailable: the database cannot be reached, or the connection was lost meanwhile.
            StorageRefused: the database refuses to be read.
        """
        if not isinstance(partition, StatementPart):
            raise TypeError(f"not a partition of {NAME}: {partition!r}")
        freeze_loaded_modules()
        target = arrow_schema(self._declared)
        with ExitStack() as until_read:
            for batch in retry_if_safe(lambda: self._begin(partition.statement, until_read)):
                yield batch.cast(target)

    def _begin(self, statement: str, until_read: ExitStack) -> Iterator[pa.RecordBatch]:
        """Wait for the first batch. `until_read` closes the connection and translates its errors."""
        with ExitStack() as until_begun:
            read = batches(
                until_begun.enter_context(connected(self._options.location, self._options.schema)), statement
            )
            first = list(islice(read, 1))
            until_read.push(until_begun.pop_all())
        return chain(first, read)

    def _divided(self, cursor: Any, after: int, upto: int) -> list[sql.Composable]:
        options = self._options
        narrow = options.by != "run" and filters.is_narrow(self._pushed)
        alone = narrow or options.partitions == 1
        sample = ranges.NOTHING if alone else ranges.sample_entries(cursor, options.schema, after, upto)
        if options.by == "run":
            return self._runs(after, upto, sample.entries)
        parts = 1 if narrow else options.partitions or ranges.usual_partitions(sample.entries)
        if options.by == "thread":
            return ranges.by_thread(cursor, options.schema, after, upto, parts)
        return ranges.by_position(cursor, options.schema, after, upto, parts, sample)

    def _runs(self, after: int, upto: int, entries: int) -> list[sql.Composable]:
        parts = self._options.partitions or ranges.usual_run_partitions(entries)
        return ranges.by_run(self._options.schema, after, upto, parts)

    def _statement(self, conditions: Sequence[sql.Composable]) -> str:
        known = columns(self._options.schema)
        chosen = [
            sql.SQL("{} AS {}").format(known[name].expression, sql.Identifier(name))
            for name in self._declared.fieldNames()
        ]
        composed = _SELECT.format(
            columns=sql.SQL(", ").join(chosen),
            schema=sql.Identifier(self._options.schema),
            conditions=sql.SQL(" AND ").join(conditions),
            order=_BY_RUN if self._options.by == "run" else sql.SQL(""),
        )
        return composed.as_string(None)


class FilteringReader(JournalReader):
    """A reader whose filters Postgres applies where it can."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  Spark's name
        """Keep the filters that Postgres can apply; yield the others."""
        for one in filters:
            if _condition(one) is not None:
                self._pushed.append(one)
            else:
                yield one


_condition = filters.condition  # pushFilters has a parameter with the name of the module


@checked
def read_journal(
    spark: AnySession,
    location: Mapping[str, str] | None = None,
    *,
    upto: int | None = None,
    after: int = 0,
    schema: str | None = None,
    only: Sequence[str] = (),
    partitions: int | None = None,
    by: str = "position",
) -> DataFrame:
    """Return a frame of the entries in `(after, upto]`, both of them cuts. Nothing is read before the frame is used.

    Without `location`, reads the journal of SQUID_DATABASE_URL and SQUID_SCHEMA, as `open_journal` does. Otherwise
    `location` is what `handed_over` yields, and `schema` is "squid" by default. Without `upto` (from
    `storage.cut(after)`), reads up to a cut that is taken at the first use. `only` names the columns. With `by="run"`,
    reads all entries up to `upto` of the runs that have one in the range: those to fold again. The session must have
    the data source registered, as by `open_session`.

    Raises:
        InvalidArgument: an unknown column, or an option that makes no sense.
        EmbeddedUnavailable: there is no `location`, and the embedded server cannot be started.
    """
    if location is None:
        location, schema = configured_location(), schema or os.environ.get("SQUID_SCHEMA")
    if unknown := sorted(set(only) - set(SCHEMA.names)):
        raise InvalidArgument(f"squid_journal has no column {unknown[0]!r}: choose from {', '.join(SCHEMA.names)}")
    declared = StructType([SCHEMA[name] for name in only]) if only else SCHEMA
    numbers = {"after": after, "upto": upto, "partitions": partitions}
    options = {**location, "schema": schema or DEFAULT_SCHEMA, "by": by}
    options |= {name: str(number) for name, number in numbers.items() if number is not None}
    SourceOptions.parse(options)  # here, since Spark would raise later, with a trace of its own
    return spark.read.format(NAME).schema(declared).options(**options).load()


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None or text == "":
        return None
    if not (text.isascii() and text.isdigit()) or int(text) >= 2**63:
        raise InvalidArgument(f"the option {name} is {text!r:.40}: use a whole number from 0 on")
    return int(text)
