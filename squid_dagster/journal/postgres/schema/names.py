"""The names in the database: the schema, its advisory locks, and statements rendered for them."""

import re
import zlib
from functools import cache
from typing import LiteralString

from psycopg import sql

from squid_dagster.protocol.errors import InvalidArgument

DEFAULT_SCHEMA = "squid"
CODE_VERSION = 8  # the schema version that this code was written for
VIEWS = ("runs", "attempts", "children", "queues", "anomalies")
JOURNAL = (
    "journal_positions",
    "journal_numbers",
    "journal_threads",
    "journal_entries",
    "journal_commits",
    "journal_checkpoints",
    "journal_published",
)
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}\Z")


def check_schema_name(schema: str) -> str:
    """Return the name if it may be used as it is; raise `InvalidArgument` naming it otherwise."""
    if not isinstance(schema, str) or not _NAME.match(schema) or schema.startswith("pg_"):
        raise InvalidArgument(
            f"schema name {schema!r} is not usable: take 1 to 40 lower-case letters, digits or '_', "
            "not beginning with a digit or 'pg_'"
        )
    return schema


def lock_number(schema: str, purpose: str) -> int:
    """Return the number of an advisory lock: the same in every process, another one for each schema and purpose."""
    number = zlib.crc32(f"squid:{schema}:{purpose}".encode())
    return number - 2**32 if number >= 2**31 else number


def fill_in(text: LiteralString, schema: str, suffix: str = "") -> sql.Composed:
    """Return the statements of one of our files with the schema's name and the numbers of its advisory locks."""
    return sql.SQL(text).format(
        schema=sql.Identifier(schema),
        suffix=sql.SQL(suffix),
        gate=sql.Literal(lock_number(schema, "gate")),
        positions=sql.Literal(lock_number(schema, "positions")),
        buckets=sql.Literal(lock_number(schema, "buckets")),
        cards=sql.Literal(lock_number(schema, "cards")),
    )


@cache
def statement(text: LiteralString, schema: str, suffix: LiteralString = "") -> bytes:
    """Fill the schema's name and the suffix of its tables into one statement.

    Cached: rendering a statement for every call costs more than parsing its result.
    """
    return sql.SQL(text).format(schema=sql.Identifier(schema), suffix=sql.SQL(suffix)).as_bytes(None)
