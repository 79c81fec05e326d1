"""How a read is divided: by ranges of positions, of threads and sequence numbers, or by the runs that were touched."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, LiteralString, NamedTuple

from psycopg import sql

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.spark.source.database import first_row

# So many entries are worth a task of their own; the number of tasks stays in bounds. A read is a stream, and each one
# begins with a connection; a fold sorts what it is given.
# Positions have gaps: how many entries lie between two is counted.
_READ_PER_TASK, _READ_BY_TWO = 500_000, 50_000
_FOLDED_PER_TASK = 50_000
MAX_PARTITIONS = 10_000
_TOUCHED_PER_TASK, _TOUCHED_BY_TWO = 10_000, 2_000  # each of them brings its run's whole history with it
_MOST_BY_ITSELF = 1_000

# Every position of the last commit that took a number is before the first position of the next one.
_BOUNDS = sql.SQL("""SELECT CASE WHEN s.is_called THEN ((s.last_value + 1) << 20) - 1 ELSE c.cut END, c.cut
    FROM {schema}.journal_numbers s, {schema}.cut() c (cut)""")
# Some blocks of journal_entries, whatever its length, by which the rest is judged.
_SAMPLED_BLOCKS = 300
_SAMPLES_PER_PART = 20
_PERCENT = sql.SQL("""SELECT least(100, 100.0 * {blocks} / greatest(1, pg_relation_size(c.oid) /
        current_setting('block_size')::int))::float8
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {name} AND c.relname = 'journal_entries'""")
_SAMPLE = sql.SQL("""SELECT position FROM {schema}.journal_entries TABLESAMPLE SYSTEM ({percent})
    WHERE position > {after} AND position <= {upto}""")
# journal_entries_pkey, without its rows where they are settled
_COUNT = sql.SQL("SELECT count(*) FROM {schema}.journal_entries WHERE position > {after} AND position <= {upto}")
_COUNT_BETWEEN: LiteralString = "SELECT count(*) FROM {schema}.journal_entries WHERE position > %s AND position <= %s"
# journal_threads: one row per thread, where there may be a hundred entries
_COUNT_ALL: LiteralString = (
    "SELECT coalesce(sum({schema}.revision_of(id, rev)), 0)::bigint FROM {schema}.journal_threads"
)
# journal_entries_pkey, passed over once: the position of every so many'th entry
_ENDS = sql.SQL("""
    WITH RECURSIVE ends (n, position) AS (
        SELECT 0, {after}::bigint
        UNION ALL
        SELECT e.n + 1, (SELECT j.position FROM {schema}.journal_entries j
                          WHERE j.position > e.position AND j.position <= {upto}
                          ORDER BY j.position OFFSET {share} - 1 LIMIT 1)
          FROM ends e WHERE e.position IS NOT NULL AND e.n + 1 < {parts})
    SELECT position FROM ends WHERE n > 0 AND position IS NOT NULL ORDER BY n""")
# journal_threads in the order of their ids: where each share of all entries ends.
_THREAD_ENDS = sql.SQL("""
    WITH known AS MATERIALIZED (SELECT id, {schema}.revision_of(id, rev) AS rev FROM {schema}.journal_threads),
    threads AS (SELECT id, rev, (sum(rev) OVER (ORDER BY id))::bigint AS upto FROM known),
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
    """A position that no commit has passed yet, and a cut: at or under it no commit can appear any more."""

    last: int
    cut: int


def read_bounds(cursor: Any, schema: str) -> Bounds:
    """Ask the journal how far it goes, and for a cut."""
    row = first_row(cursor, _BOUNDS.format(schema=sql.Identifier(schema)).as_string(None))
    return Bounds(int(row[0]), int(row[1]))


class Sample(NamedTuple):
    """Positions of some entries in a range, sorted, and how many there are in all, more or less."""

    positions: list[int]
    entries: int
    whole: bool  # these are all of them


NOTHING = Sample([], 0, True)


def sample_entries(cursor: Any, schema: str, after: int, upto: int) -> Sample:
    """Look at some blocks of the journal for entries in `(after, upto]`; at all of them, if it is short."""
    asked = _PERCENT.format(blocks=sql.Literal(_SAMPLED_BLOCKS), name=sql.Literal(schema)).as_string(None)
    row = first_row(cursor, asked)
    percent = 100.0 if row is None else float(row[0])
    text = _SAMPLE.format(**_named(schema, after, upto), percent=sql.Literal(percent)).as_string(None)
    cursor.execute(text)
    found = sorted(cursor.fetch_arrow_table().column(0).to_pylist())
    return Sample(found, round(len(found) * 100 / percent), percent >= 100)


def entries_between(storage: PostgresStorage, after: int, upto: int) -> int:
    """Return how many entries there are in `(after, upto]`. Raises `StorageUnavailable`."""
    return int(storage.rows(_COUNT_BETWEEN, after, upto)[0][0])


def all_entries(storage: PostgresStorage) -> int:
    """Return how many entries all threads have, as their revisions say. Raises `StorageUnavailable`."""
    return max(0, int(storage.rows(_COUNT_ALL)[0][0]))


def usual_partitions(entries: int) -> int:
    """Return into how many parts so many entries are divided by default."""
    few = 2 if entries > _READ_BY_TWO else 1
    return max(few, min(_MOST_BY_ITSELF, round(entries / _READ_PER_TASK)))


def usual_fold_partitions(entries: int) -> int:
    """Return by how many tasks so many entries are folded by default."""
    return max(1, min(_MOST_BY_ITSELF, -(-entries // _FOLDED_PER_TASK)))


def usual_run_partitions(entries: int) -> int:
    """Return by how many tasks runs are read that were touched by so many entries, by default."""
    few = 2 if entries > _TOUCHED_BY_TWO else 1
    return max(few, min(_MOST_BY_ITSELF, round(entries / _TOUCHED_PER_TASK)))


def by_run(schema: str, after: int, upto: int, parts: int) -> list[sql.Composable]:
    """Divide the runs that have an entry in `(after, upto]`: all of their entries, and all that belong to no run."""
    named = _named(schema, after, upto)
    runs = [_TOUCHED_RUNS.format(**named, parts=sql.Literal(parts), part=sql.Literal(n)) for n in range(parts)]
    return [*runs, _LOOSE.format(upto=sql.Literal(upto))]


def by_position(cursor: Any, schema: str, after: int, upto: int, parts: int, sample: Sample) -> list[sql.Composable]:
    """Divide `(after, upto]` into ranges of positions that touch and do not overlap (journal_entries_pkey).

    Each part has about as many of the entries that are there: as many of the sample, or as are counted where the sample
    has too few.
    """
    if sample.whole or len(sample.positions) >= parts * _SAMPLES_PER_PART:
        ends = _sampled_ends(sample.positions, parts)
    else:
        ends = _counted_ends(cursor, schema, after, upto, parts)
    return [_between(low, high) for low, high in pairwise([after, *ends, upto])]


def _sampled_ends(positions: Sequence[int], parts: int) -> list[int]:
    """Return the last position of each share but the last one. Pure."""
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
    # The last entry ends the last part, and not the one before it.
    return ends[:-1] if share * len(ends) >= entries else ends


def by_thread(cursor: Any, schema: str, after: int, upto: int, parts: int) -> list[sql.Composable]:
    """Divide by threads, long ones by their sequence numbers too (journal_entries_thread), all within `(after, upto]`.

    Each part has about as many of the journal's entries, however many threads it takes.
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
        if (thread, seq) != before:  # more parts than entries: some would be empty
            yield thread, int(seq)
        before = (thread, seq)


def _thread_range(low: tuple[str, int] | None, high: tuple[str, int] | None) -> Iterator[sql.Composable]:
    for operator, end in ((">", low), ("<=", high)):
        if end is not None:
            place = sql.SQL("({}, {}::bigint)").format(sql.Literal(end[0]), sql.Literal(end[1]))
            yield sql.SQL("(thread, seq) {} {}").format(sql.SQL(operator), place)
