"""The data source `squid_journal`: the journal between two cuts, in partitions, as Arrow batches.

Options: one of `url`, `url_file`, `url_env` (see `credentials`); `schema` (squid); `after` and `upto`, positions of
which the first is excluded; `partitions`; `by`: ranges of positions or of threads, or whole runs, which gives every
entry up to `upto` of each run that has one behind `after`, one run after another, by position; `pushdown` (false).
Without `upto`, a loaded frame reads up to a cut that is taken when it is first used.

Positions under a cut never change, and every commit is whole under a cut. So partitions need no common snapshot, and
reads `(a, b]`, `(b, c]` between cuts miss nothing and repeat nothing.

With `pushdown`, Postgres applies the filters that it can. Spark up to 4.3 keeps what was planned with filters for other
scans of the same loaded frame, which then read too little; so it is for frames that are loaded for one query, and
not for both sides of a join.
"""

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
from squid_dagster.spark.session.garbage_collection import set_heap_aside
from squid_dagster.spark.source import filters, ranges
from squid_dagster.spark.source.columns import SCHEMA, arrow_schema, check_declared, columns
from squid_dagster.spark.source.credentials import Location, locate
from squid_dagster.spark.source.database import batches, connected

NAME = "squid_journal"
_OPTIONS = frozenset({"url", "url_file", "url_env", "schema", "after", "upto", "partitions", "by", "pushdown"})
_BY = ("position", "thread", "run")
_FLAGS = {"": False, "false": False, "true": True}
_SELECT = sql.SQL("SELECT {columns} FROM {schema}.journal_entries WHERE {conditions}{order}")
_BY_RUN = sql.SQL(" ORDER BY run_id, position")  # journal_entries_run


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options ask for. Holds no secret: it travels with the plan."""

    location: Location
    schema: str
    after: int
    upto: int | None
    partitions: int | None
    by: str
    pushdown: bool

    @classmethod
    def read(cls, options: Mapping[str, str]) -> "Asked":
        """Read the options; raises `InvalidArgument` that names the wrong one."""
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
class Part(InputPartition):
    """One partition: the statement that reads it."""

    statement: str


class JournalSource(DataSource):
    """`spark.read.format("squid_journal")`. Its schema is all columns; declare fewer to read fewer."""

    @classmethod
    def name(cls) -> str:
        """Give the name of the format."""
        return NAME

    def schema(self) -> StructType:
        """Give all columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> "JournalReader":
        """Give a reader of the declared columns; raises `InvalidArgument` for options or columns that are wrong."""
        check_declared(schema)
        asked = Asked.read(self.options)
        return FilteringReader(asked, schema) if asked.pushdown else JournalReader(asked, schema)


class JournalReader(DataSourceReader):
    """Plans the partitions where the query is planned, and reads each where its task runs."""

    def __init__(self, asked: Asked, declared: StructType) -> None:
        """Bind to what is asked for; nothing is connected yet."""
        self._asked = asked
        self._declared = declared
        self._pushed: list[Filter] = []

    def partitions(self) -> Sequence[Part]:
        """Take one cut for all partitions and divide what lies before it.

        Raises:
            InvalidArgument: `upto` is a position that the journal has not reached, and so no cut.
            StorageUnavailable: the database cannot be reached, or holds no journal.
            StorageRefused: the database refuses to be read.
        """
        return retry_if_safe(self._plan)

    def _plan(self) -> list[Part]:
        asked = self._asked
        with connected(asked.location, asked.schema) as cursor:
            last, cut = ranges.read_bounds(cursor, asked.schema)
            if asked.upto is not None and asked.upto > max(last, asked.after):
                raise InvalidArgument(f"upto {asked.upto} is no cut: the journal has only reached position {last}")
            upto = asked.upto if asked.upto is not None else max(asked.after, cut)
            after, upto = filters.position_bounds(self._pushed, asked.after, upto)
            divided = self._divided(cursor, after, upto)
        pushed = [found for one in self._pushed if (found := _condition(one)) is not None]
        return [Part(self._statement([part, *pushed])) for part in divided]

    def parts_by_run(self, after: int, upto: int, entries: int) -> list[Part]:
        """Divide the runs that have one of so many entries in `(after, upto]`, both of them cuts; asks no database."""
        return [Part(self._statement([part])) for part in self._runs(after, upto, entries)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition as the batches come in. It begins again as long as none has come; then Spark repeats it.

        Raises:
            InvalidArgument: the URL is not to be found on this machine.
            StorageUnavailable: the database cannot be reached, or the connection was lost on the way.
            StorageRefused: the database refuses to be read.
        """
        if not isinstance(partition, Part):
            raise TypeError(f"not a partition of {NAME}: {partition!r}")
        set_heap_aside()
        target = arrow_schema(self._declared)
        with ExitStack() as until_read:
            for batch in retry_if_safe(lambda: self._begin(partition.statement, until_read)):
                yield batch.cast(target)

    def _begin(self, statement: str, until_read: ExitStack) -> Iterator[pa.RecordBatch]:
        """Wait for the first batch; the connection is closed, and its errors are translated, by `until_read`."""
        with ExitStack() as until_begun:
            read = batches(until_begun.enter_context(connected(self._asked.location, self._asked.schema)), statement)
            first = list(islice(read, 1))
            until_read.push(until_begun.pop_all())
        return chain(first, read)

    def _divided(self, cursor: Any, after: int, upto: int) -> list[sql.Composable]:
        asked = self._asked
        narrow = asked.by != "run" and filters.is_narrow(self._pushed)
        alone = narrow or asked.partitions == 1
        sample = ranges.NOTHING if alone else ranges.sample_entries(cursor, asked.schema, after, upto)
        if asked.by == "run":
            return self._runs(after, upto, sample.entries)
        parts = 1 if narrow else asked.partitions or ranges.usual_partitions(sample.entries)
        if asked.by == "thread":
            return ranges.by_thread(cursor, asked.schema, after, upto, parts)
        return ranges.by_position(cursor, asked.schema, after, upto, parts, sample)

    def _runs(self, after: int, upto: int, entries: int) -> list[sql.Composable]:
        parts = self._asked.partitions or ranges.usual_run_partitions(entries)
        return ranges.by_run(self._asked.schema, after, upto, parts)

    def _statement(self, conditions: Sequence[sql.Composable]) -> str:
        known = columns(self._asked.schema)
        chosen = [
            sql.SQL("{} AS {}").format(known[name].expression, sql.Identifier(name))
            for name in self._declared.fieldNames()
        ]
        composed = _SELECT.format(
            columns=sql.SQL(", ").join(chosen),
            schema=sql.Identifier(self._asked.schema),
            conditions=sql.SQL(" AND ").join(conditions),
            order=_BY_RUN if self._asked.by == "run" else sql.SQL(""),
        )
        return composed.as_string(None)


class FilteringReader(JournalReader):
    """A reader that lets Postgres apply filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  Spark's name
        """Take the filters that Postgres can apply; give back the others."""
        for one in filters:
            if _condition(one) is not None:
                self._pushed.append(one)
            else:
                yield one


_condition = filters.condition  # pushFilters has a parameter of the module's name


@checked
def read_journal(
    spark: AnySession,
    location: Mapping[str, str],
    *,
    upto: int,
    after: int = 0,
    schema: str = DEFAULT_SCHEMA,
    only: Sequence[str] = (),
    partitions: int | None = None,
    by: str = "position",
) -> DataFrame:
    """Read the entries in `(after, upto]`, both of them cuts: `storage.cut(after)` gives the second.

    `location` is what `credentials.handed_over` gives, `only` the names of the columns that are wanted. With
    `by="run"`, all entries up to `upto` of the runs that have one in that range: what is to be folded again. The data
    source must be registered, as `open_session` does. Nothing is read before the frame is used.

    Raises:
        InvalidArgument: a column that there is not, or an option that makes no sense.
    """
    if unknown := sorted(set(only) - set(SCHEMA.names)):
        raise InvalidArgument(f"squid_journal has no column {unknown[0]!r}: choose from {', '.join(SCHEMA.names)}")
    declared = StructType([SCHEMA[name] for name in only]) if only else SCHEMA
    options = {**location, "schema": schema, "after": str(after), "upto": str(upto), "by": by}
    if partitions is not None:
        options["partitions"] = str(partitions)
    Asked.read(options)  # here, for Spark would hide the refusal behind a trace of its own, and later
    return spark.read.format(NAME).schema(declared).options(**options).load()


def _number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None or text == "":
        return None
    if not (text.isascii() and text.isdigit()) or int(text) >= 2**63:
        raise InvalidArgument(f"the option {name} is {text!r:.40}: use a whole number from 0 on")
    return int(text)
