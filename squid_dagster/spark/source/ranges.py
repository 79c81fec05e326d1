"""How a read is divided: by ranges of positions, of threads and sequence numbers, or by changed runs.

Returns SQL conditions; each entry of the range satisfies exactly one of them.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, LiteralString, NamedTuple

from psycopg import sql

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.spark.source.database import first_row

# Entries for which a task pays. A read is a stream that begins with a connection; a fold sorts its entries.
# Positions have gaps, so entries between two positions are counted.
_READ_PER_TASK, _READ_BY_TWO = 500_000, 50_000
_FOLDED_PER_TASK = 50_000
MAX_PARTITIONS = 10_000
_CHANGED_PER_TASK, _CHANGED_BY_TWO = 10_000, 2_000  # new entries; the whole history of their runs is read
_MOST_BY_DEFAULT = 1_000

# Every position of the last commit that took a number is before the first position of the next one.
_BOUNDS = sql.SQL("""SELECT CASE WHEN s.is_called THEN ((s.last_value + 1) << 20) - 1 ELSE c.cut END, c.cut
    FROM {schema}.journal_numbers s, {schema}.cut() c (cut)""")
# A sample of blocks of journal_entries, of the same size for any length of the table.
_SAMPLED_BLOCKS = 300
_SAMPLES_PER_PART = 20
_PERCENT = sql.SQL("""SELECT least(100, 100.0 * {blocks} / greatest(1, pg_relation_size(c.oid) /
        current_setting('block_size')::int))::float8
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {name} AND c.relname = 'journal_entries'""")
_SAMPLE = sql.SQL("""SELECT position FROM {schema}.journal_entries TABLESAMPLE SYSTEM ({percent})
    WHERE position > {after} AND position <= {upto}""")
# journal_entries_pkey, index-only where the table is vacuumed
_COUNT = sql.SQL("SELECT count(*) FROM {schema}.journal_entries WHERE position > {after} AND position <= {upto}")
_COUNT_BETWEEN: LiteralString = "SELECT count(*) FROM {schema}.journal_entries WHERE position > %s AND position <= %s"
# journal_threads: one row per thread, where there may be a hundred entries
_COUNT_ALL: LiteralString = (
    "SELECT coalesce(sum({schema}.revision_of(id, rev)), 0)::bigint FROM {schema}.journal_threads"
)
# journal_entries_pkey, scanned once: the position of each n-th entry
_ENDS = sql.SQL("""
    WITH RECURSIVE ends (n, position) AS (
        SELECT 0, {after}::bigint
        UNION ALL
        SELECT e.n + 1, (SELECT j.position FROM {schema}.journal_entries j
                          WHERE j.position > e.position AND j.position <= {upto}
                          ORDER BY j.position OFFSET {share} - 1 LIMIT 1)
          FROM ends e WHERE e.position IS NOT NULL AND e.n + 1 < {parts})
    SELECT position FROM ends WHERE n > 0 AND position IS NOT NULL ORDER BY n""")
# journal_threads by id: where each share of all entries ends.
_THREAD_ENDS = sql.SQL("""
    WITH known AS MATERIALIZED (SELECT id, {schema}.revision_of(id, rev) AS rev FROM {schema}.journal_threads),
    threads AS (SELECT id, rev, (sum(rev) OVER (ORDER BY id))::bigint AS upto FROM known),
    shares AS (
        SELECT n, (n * (SELECT max(upto) FROM threads) / {parts})::bigint AS target
          FROM generate_series(1, {parts} - 1) n)
    SELECT t.id, s.target - (t.upto - t.rev)
      FROM shares s JOIN threads t ON t.upto - t.rev < s.target AND s.target <= t.upto ORDER BY s.n""")

# journal_entries_pkey finds the runs, journal_entries_run their entries. An array: a join reads the whole journal.
_CHANGED_RUNS = sql.SQL("""position <= {upto} AND run_id = ANY (ARRAY(
        SELECT DISTINCT changed.run_id FROM {schema}.journal_entries changed
         WHERE changed.position > {after} AND changed.position <= {upto} AND changed.run_id IS NOT NULL
           AND (hashtext(changed.run_id) & 2147483647) % {parts} = {part}))""")
# journal_entries_loose
_LOOSE = sql.SQL("position <= {upto} AND run_id IS NULL AND starts_with(thread, 'squid:dispatch:')")


class Bounds(NamedTuple):
    """A position beyond which there is no commit yet, and a cut."""

    last: int
    cut: int


def read_bounds(cursor: Any, schema: str) -> Bounds:
    """Return the last position that a commit may have, and a cut."""
    row = first_row(cursor, _BOUNDS.format(schema=sql.Identifier(schema)).as_string(None))
    return Bounds(int(row[0]), int(row[1]))


class Sample(NamedTuple):
    """Sorted positions of some entries in a range, and an estimate of how many entries the range has."""

    positions: list[int]
    entries: int
    complete: bool  # these are all entries of the range


NOTHING = Sample([], 0, True)


def sample_entries(cursor: Any, schema: str, after: int, upto: int) -> Sample:
    """Read the positions in `(after, upto]` from some blocks of the journal; from all of them if it is short."""
    statement = _PERCENT.format(blocks=sql.Literal(_SAMPLED_BLOCKS), name=sql.Literal(schema)).as_string(None)
    row = first_row(cursor, statement)
    percent = 100.0 if row is None else float(row[0])
    sample = _SAMPLE.format(**_named(schema, after, upto), percent=sql.Literal(percent)).as_string(None)
    cursor.execute(sample)
    positions = sorted(cursor.fetch_arrow_table().column(0).to_pylist())
    return Sample(positions, round(len(positions) * 100 / percent), percent >= 100)


def entries_between(storage: PostgresStorage, after: int, upto: int) -> int:
    """Return how many entries there are in `(after, upto]`. Raises `StorageUnavailable`."""
    return int(storage.rows(_COUNT_BETWEEN, after, upto)[0][0])


def all_entries(storage: PostgresStorage) -> int:
    """Return how many entries all threads have, as their revisions say. Raises `StorageUnavailable`."""
    return max(0, int(storage.rows(_COUNT_ALL)[0][0]))


def usual_partitions(entries: int) -> int:
    """Return the default number of partitions for reading so many entries."""
    few = 2 if entries > _READ_BY_TWO else 1
    return max(few, min(_MOST_BY_DEFAULT, round(entries / _READ_PER_TASK)))


def usual_fold_partitions(entries: int) -> int:
    """Return the default number of tasks for folding so many entries."""
    return max(1, min(_MOST_BY_DEFAULT, -(-entries // _FOLDED_PER_TASK)))


def usual_run_partitions(entries: int) -> int:
    """Return the default number of tasks for reading the runs of so many new entries."""
    few = 2 if entries > _CHANGED_BY_TWO else 1
    return max(few, min(_MOST_BY_DEFAULT, round(entries / _CHANGED_PER_TASK)))


def by_run(schema: str, after: int, upto: int, parts: int) -> list[sql.Composable]:
    """Divide the runs that have an entry in `(after, upto]`: all of their entries, and the entries of no run."""
    named = _named(schema, after, upto)
    runs = [_CHANGED_RUNS.format(**named, parts=sql.Literal(parts), part=sql.Literal(n)) for n in range(parts)]
    return [*runs, _LOOSE.format(upto=sql.Literal(upto))]


def by_position(cursor: Any, schema: str, after: int, upto: int, parts: int, sample: Sample) -> list[sql.Composable]:
    """Divide `(after, upto]` into adjacent ranges of positions (journal_entries_pkey).

    Each part has about the same number of entries, by the sample, or by a count where the sample has too few.
    """
    if sample.complete or len(sample.positions) >= parts * _SAMPLES_PER_PART:
        ends = _sampled_ends(sample.positions, parts)
    else:
        ends = _counted_ends(cursor, schema, after, upto, parts)
    return [_between(low, high) for low, high in pairwise([after, *ends, upto])]


def _sampled_ends(positions: Sequence[int], parts: int) -> list[int]:
    """Return the last position of each share except the last. Pure."""
    count = len(positions)
    ends = {positions[count * n // parts - 1] for n in range(1, parts) if count * n // parts}
    return sorted(ends - set(positions[-1:]))


def _counted_ends(cursor: Any, schema: str, after: int, upto: int, parts: int) -> list[int]:
    named = _named(schema, after, upto)
    entries = int(first_row(cursor, _COUNT.format(**named).as_string(None))[0])
    if min(parts, entries) <= 1:
        return []
    share = -(-entries // parts)
    cursor.execute(_ENDS.format(**named, share=sql.Literal(share), parts=sql.Literal(parts)).as_string(None))
    ends = [int(position) for (position,) in cursor.fetchall()]
    # The last entry belongs to the last part, not to the one before it.
    return ends[:-1] if share * len(ends) >= entries else ends


def by_thread(cursor: Any, schema: str, after: int, upto: int, parts: int) -> list[sql.Composable]:
    """Divide `(after, upto]` by threads, and long threads by sequence numbers (journal_entries_thread).

    Each part has about the same number of entries, whatever the number of its threads.
    """
    ends = list(_thread_ends(cursor, schema, parts)) if parts > 1 else []
    within = _between(after, upto)
    edges: Sequence[tuple[str, int] | None] = [None, *ends, None]
    return [sql.SQL(" AND ").join([*_thread_range(low, high), within]) for low, high in pairwise(edges)]


def _named(schema: str, after: int, upto: int) -> dict[str, sql.Composable]:
    return {"schema": sql.Identifier(schema), "after": sql.Literal(after), "upto": sql.Literal(upto)}


def _between(after: int, upto: int) -> sql.Composable:
    return sql.SQL("position > {} AND position <= {}").format(sql.Literal(after), sql.Literal(upto))


def _thread_ends(cursor: Any, schema: str, parts: int) -> Iterator[tuple[str, int]]:
    cursor.execute(_THREAD_ENDS.format(schema=sql.Identifier(schema), parts=sql.Literal(parts)).as_string(None))
    before = None
    for thread, seq in cursor.fetchall():
        if (thread, seq) != before:  # with more parts than entries, some would be empty
            yield thread, int(seq)
        before = (thread, seq)


def _thread_range(low: tuple[str, int] | None, high: tuple[str, int] | None) -> Iterator[sql.Composable]:
    for operator, end in ((">", low), ("<=", high)):
        if end is not None:
            place = sql.SQL("({}, {}::bigint)").format(sql.Literal(end[0]), sql.Literal(end[1]))
            yield sql.SQL("(thread, seq) {} {}").format(sql.SQL(operator), place)
