"""The columns of `squid_journal`: each as a SQL expression, an Arrow type and a Spark type."""

from typing import NamedTuple

import pyarrow as pa
from psycopg import sql
from pyspark.sql.types import BooleanType, DataType, LongType, StringType, StructField, StructType, TimestampType

from squid_dagster.protocol.errors import InvalidArgument


class Column(NamedTuple):
    """One column: its SQL expression and its types."""

    expression: sql.Composable
    arrow: pa.DataType
    spark: DataType


_INTACT = sql.SQL("digest = {schema}.entry_digest(thread, seq, type, run_id, occurred_at, data)")


def columns(schema: str) -> dict[str, Column]:
    """Return all columns by name. `intact` is false for an entry that was changed after it was written."""
    time, text, number = pa.timestamp("us", tz="UTC"), pa.string(), pa.int64()
    return {
        "position": Column(sql.SQL("position"), number, LongType()),
        "thread": Column(sql.SQL("thread"), text, StringType()),
        "seq": Column(sql.SQL("seq"), number, LongType()),
        "type": Column(sql.SQL("type"), text, StringType()),
        "run_id": Column(sql.SQL("run_id"), text, StringType()),
        "occurred_at": Column(sql.SQL("occurred_at"), time, TimestampType()),
        "data": Column(sql.SQL("data::text"), text, StringType()),
        "intact": Column(_INTACT.format(schema=sql.Identifier(schema)), pa.bool_(), BooleanType()),
    }


SCHEMA = StructType([StructField(name, column.spark) for name, column in columns("").items()])
"""All columns: the schema of a read that declares none."""


def check_declared(declared: StructType) -> None:
    """Raise `InvalidArgument` unless a declared schema consists of columns of `squid_journal`, each with its type."""
    known = {field.name: field.dataType for field in SCHEMA}
    if not declared.fields:
        raise InvalidArgument(f"a read of squid_journal needs a column: declare some of {', '.join(known)}")
    for field in declared.fields:
        if field.name not in known:
            raise InvalidArgument(f"squid_journal has no column {field.name!r}: declare some of {', '.join(known)}")
        if field.dataType != known[field.name]:
            raise InvalidArgument(
                f"column {field.name!r} of squid_journal is {known[field.name].simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )


def arrow_schema(declared: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for a declared one."""
    known = columns("")
    return pa.schema([pa.field(field.name, known[field.name].arrow, field.nullable) for field in declared.fields])
