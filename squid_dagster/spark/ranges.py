"""How a read is divided: by ranges of positions, of threads and sequence numbers, or by the runs that were touched."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from psycopg import sql

from squid_dagster.spark.database import first_row

# So many positions are worth a task of their own; the number of tasks stays in bounds. A read is a stream, and each one
# begins with a connection; a fold sorts what it is given.
_READ_PER_TASK, _READ_BY_TWO = 500_000, 50_000
_FOLDED_PER_TASK = 50_000
MAX_PARTITIONS = 10_000
_TOUCHED_PER_TASK, _TOUCHED_BY_TWO = 10_000, 2_000  # each of them brings its run's whole history with it
_MOST_BY_ITSELF = 1_000

_BOUNDS = sql.SQL(
    "SELECT CASE WHEN is_called THEN last_value ELSE 0 END, {schema}.cut() FROM {schema}.journal_positions"
)
# journal_threads in the order of their ids: where each share of all entries ends.
_THREAD_ENDS = sql.SQL("""
    WITH threads AS (
        SELECT id, rev, (sum(rev) OVER (ORDER BY id))::bigint AS upto FROM {schema}.journal_threads),
    shares AS (
        SELECT n, (n * (SELECT max(upto) FROM threads) / {parts})::bigint AS target
          FROM generate_series(1, {parts} - 1) n)
    SELECT t.id, s.target - (t.upto - t.rev)
      FROM shares s JOIN threads t ON t.upto - t.rev < s.target AND s.target <= t.upto ORDER BY s.n""")

# journal_entries_pkey finds the runs, journal_entries_run their entries; an array, or else all of the journal is read.
_TOUCHED_RUNS = sql.SQL("""position <= {upto} AND run_id = ANY (ARRAY(
        SELECT DISTINCT touched.run_id FROM {schema}.journal_entries touched
         WHERE touched.position > {after} AND touched.position <= {upto} AND touched.run_id IS NOT NULL
           AND (hashtext(touched.run_id) & 2147483647) % {parts} = {part}))""")
# journal_entries_loose
_LOOSE = sql.SQL("position <= {upto} AND run_id IS NULL AND starts_with(thread, 'squid:dispatch:')")


class Bounds(NamedTuple):
    """The last position that was ever given, and a cut: under it no commit can appear any more."""

    last: int
    cut: int


def read_bounds(cursor: Any, schema: str) -> Bounds:
    """Ask the journal how far it goes, and for a cut."""
    row = first_row(cursor, _BOUNDS.format(schema=sql.Identifier(schema)).as_string(None))
    return Bounds(int(row[0]), int(row[1]))


def usual_partitions(after: int, upto: int) -> int:
    """Say into how many parts a range of positions is divided when nobody says."""
    few = 2 if upto - after > _READ_BY_TWO else 1
    return max(few, min(_MOST_BY_ITSELF, round((upto - after) / _READ_PER_TASK)))


def usual_fold_partitions(after: int, upto: int) -> int:
    """Say by how many tasks a range of positions is folded when nobody says."""
    return max(1, min(_MOST_BY_ITSELF, -(-(upto - after) // _FOLDED_PER_TASK)))


def usual_run_partitions(after: int, upto: int) -> int:
    """Say by how many tasks touched runs are read when nobody says."""
    few = 2 if upto - after > _TOUCHED_BY_TWO else 1
    return max(few, min(_MOST_BY_ITSELF, round((upto - after) / _TOUCHED_PER_TASK)))


def by_run(schema: str, after: int, upto: int, parts: int) -> list[sql.Composable]:
    """Divide the runs that have an entry in `(after, upto]`: all of their entries, and all that belong to no run."""
    named = {"schema": sql.Identifier(schema), "after": sql.Literal(after), "upto": sql.Literal(upto)}
    runs = [_TOUCHED_RUNS.format(**named, parts=sql.Literal(parts), part=sql.Literal(n)) for n in range(parts)]
    return [*runs, _LOOSE.format(upto=sql.Literal(upto))]


def by_position(after: int, upto: int, parts: int) -> list[sql.Composable]:
    """Divide `(after, upto]` into ranges of positions that touch and do not overlap (journal_entries_pkey)."""
    span, parts = upto - after, max(1, min(parts, upto - after))
    ends = [after + span * i // parts for i in range(parts + 1)]
    return [_between(low, high) for low, high in pairwise(ends)]


def by_thread(cursor: Any, schema: str, after: int, upto: int, parts: int) -> list[sql.Composable]:
    """Divide by threads, long ones by their sequence numbers too (journal_entries_thread), all within `(after, upto]`.

    Each part has about as many of the journal's entries, however many threads it takes.
    """
    ends = list(_thread_ends(cursor, schema, parts)) if parts > 1 else []
    within = _between(after, upto)
    edges: Sequence[tuple[str, int] | None] = [None, *ends, None]
    return [sql.SQL(" AND ").join([*_thread_range(low, high), within]) for low, high in pairwise(edges)]


def _between(after: int, upto: int) -> sql.Composable:
    return sql.SQL("position > {} AND position <= {}").format(sql.Literal(after), sql.Literal(upto))


def _thread_ends(cursor: Any, schema: str, parts: int) -> Iterator[tuple[str, int]]:
    cursor.execute(_THREAD_ENDS.format(schema=sql.Identifier(schema), parts=sql.Literal(parts)).as_string(None))
    before = None
    for thread, seq in cursor.fetchall():
        if (thread, seq) != before:  # more parts than entries: some would be empty
            yield thread, int(seq)
        before = (thread, seq)


def _thread_range(low: tuple[str, int] | None, high: tuple[str, int] | None) -> Iterator[sql.Composable]:
    for operator, end in ((">", low), ("<=", high)):
        if end is not None:
            place = sql.SQL("({}, {}::bigint)").format(sql.Literal(end[0]), sql.Literal(end[1]))
            yield sql.SQL("(thread, seq) {} {}").format(sql.SQL(operator), place)
