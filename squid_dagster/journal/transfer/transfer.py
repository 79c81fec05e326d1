"""Export of a whole journal as a stream of lines, up to one cut, and its import into another database.

Facts are copied as they are stored, unknown and unreadable ones too, with their threads, sequences and positions.
Checkpoints and live views are caches: they are not copied, but rebuilt. An import is one transaction. Before it
commits, the rows are read back and must equal the imported lines.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import sql

from squid_dagster.journal.postgres.connection.pool import PgConnection
from squid_dagster.journal.postgres.schema.names import CODE_VERSION, lock_number, statement
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.postgres.views.rebuild import Rebuild
from squid_dagster.journal.transfer.line_format import (
    FORMAT,
    Header,
    InvalidExport,
    Reader,
    StoredCommit,
    StoredEntry,
    Writer,
    to_line,
)
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import SquidError, StorageUnavailable

Progress = Callable[[int], None]
Within = Callable[[PostgresStorage, PgConnection], object]
"""Rebuilds other views of the facts, in the open transaction of a connection."""

_PAGE = 2_000
_PAGE_BYTES = 8 * 1024 * 1024
_LAST_CUT = 2**62  # half of all positions, so that as many are left
_NUMBER_BITS = 20  # of a position, below the number of its commit: see take_number.sql

_COUNT: LiteralString = """SELECT count(*), count(DISTINCT thread) FROM {schema}.journal_entries
    WHERE position > 0 AND position <= %s"""
# journal_entries_pkey; a page is bounded in bytes, too, for large facts
_ENTRIES: LiteralString = """SELECT thread, seq, position, type, run_id, to_json(occurred_at)#>>'{{}}', text,
       encode(digest, 'hex')
  FROM (SELECT *, sum(octet_length(text)) OVER (ORDER BY position) - octet_length(text) AS before
          FROM (SELECT *, data::text AS text FROM {schema}.journal_entries
                 WHERE position > %s AND position <= %s ORDER BY position LIMIT %s) p) q
 WHERE before < %s ORDER BY position"""
# journal_commits_pkey, journal_entries_thread; of a commit, all threads are before the cut or none is
_COMMITS: LiteralString = """SELECT c.id::text, c.receipt::text, to_json(c.committed_at)#>>'{{}}', e.position <= %s
  FROM (SELECT * FROM {schema}.journal_commits WHERE id > %s::uuid ORDER BY id LIMIT %s) c
  LEFT JOIN LATERAL (
       SELECT max(e.position) AS position FROM json_each_text(c.receipt) r
         JOIN {schema}.journal_entries e ON e.thread = r.key AND e.seq = r.value::bigint) e ON true
 ORDER BY c.id"""
_BEFORE_ALL = "00000000-0000-0000-0000-000000000000"

_IS_USED: LiteralString = """SELECT EXISTS (SELECT FROM {schema}.journal_entries)
    OR EXISTS (SELECT FROM {schema}.journal_threads) OR EXISTS (SELECT FROM {schema}.journal_commits)"""
_COPY_ENTRIES: LiteralString = """COPY {schema}.journal_entries
    (thread, seq, position, type, run_id, occurred_at, data, digest) FROM STDIN"""
_COPY_COMMITS: LiteralString = "COPY {schema}.journal_commits (id, receipt, committed_at) FROM STDIN"
_THREADS: LiteralString = """INSERT INTO {schema}.journal_threads (id, rev)
    SELECT thread, max(seq) FROM {schema}.journal_entries GROUP BY thread ORDER BY thread"""
_FORGET: LiteralString = "DELETE FROM {schema}.journal_checkpoints"
# Without it, the planner would assume that the table is still empty.
_ANALYZE: LiteralString = "ANALYZE {schema}.journal_entries, {schema}.journal_threads"
_LAST: LiteralString = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {schema}.journal_numbers"
_NEXT: LiteralString = "SELECT nextval('{schema}.journal_numbers')"


class JournalNotEmpty(SquidError):
    """An import needs an empty journal."""


class Transferred(NamedTuple):
    """The counts of an export or import, and the digest to compare the two."""

    cut: int
    entries: int
    threads: int
    commits: int
    digest: str


@checked
def export_journal(
    storage: PostgresStorage,
    write: Callable[[bytes], object],
    progress: Progress | None = None,
    begin: Callable[[Header], None] | None = None,
) -> Transferred:
    """Pass the whole journal to `write`, line by line, up to a cut.

    Writers continue; memory does not grow with the journal. `begin` is called with the header, `progress` with the
    number of entries so far.

    Raises:
        StorageUnavailable: the database cannot be reached.
    """
    report, writer = progress or (lambda _: None), Writer()
    with storage.connection() as connection:
        source = _Source(connection, storage.schema, storage.cut())
        entries, threads = source.one(_COUNT, source.cut)
        header = Header(FORMAT, CODE_VERSION, entries, threads, source.cut)
        if begin is not None:
            begin(header)
        write(writer.line(header))
        for entry in source.entries():
            write(writer.line(entry))
            if writer.entries % _PAGE == 0:
                report(writer.entries)
        for commit in source.commits():
            write(writer.line(commit))
    write(to_line(writer.footer))
    return Transferred(source.cut, writer.entries, threads, writer.commits, writer.footer.digest)


@checked
def import_journal(
    storage: PostgresStorage,
    lines: Iterable[bytes],
    progress: Progress | None = None,
    *,
    begin: Callable[[Header], None] | None = None,
    also: Within | None = None,
) -> Transferred:
    """Import an exported journal into an empty one, build its views, and check that it is the same; all or nothing.

    Writers wait meanwhile. Later positions follow the imported ones. `also` rebuilds other views of the facts. `begin`
    is called with the header, `progress` with the number of entries so far. Needs the tables' owner.

    Raises:
        InvalidExport: the stream is no export, or was cut off or changed; nothing was written.
        JournalNotEmpty: the journal holds something already; nothing was written.
        StorageUnavailable: the database cannot be reached, or other sessions hold locks; nothing was written.
    """
    report = progress or (lambda _: None)
    reader = Reader(lines)
    if reader.header.schema_version > CODE_VERSION:
        raise InvalidExport(
            f"the export is of schema version {reader.header.schema_version}, this code knows {CODE_VERSION}: "
            "upgrade squid-dagster"
        )
    if reader.header.cut > _LAST_CUT:
        raise InvalidExport(f"the export cannot be used: after position {reader.header.cut} no fact could follow")
    if begin is not None:
        begin(reader.header)
    with storage.connection() as connection:
        try:
            with connection.transaction():
                done = _Import(storage, connection, reader).run(report, also)
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            raise InvalidExport(f"the export cannot be used: {error.diag.message_primary or error}") from None
        except UnicodeEncodeError:
            raise InvalidExport("the export cannot be used: it holds half a character, which no text has") from None
        except psycopg.errors.LockNotAvailable:
            msg = "somebody keeps the journal locked (an idle transaction?): end that, and try again"
            raise StorageUnavailable(msg) from None
        except psycopg.errors.InsufficientPrivilege as error:
            raise StorageUnavailable(f"an import needs the owner of the tables: {error.diag.message_primary}") from None
    return done


class _Source:
    """The lines of a journal up to a cut."""

    def __init__(self, connection: PgConnection, schema: str, cut: int) -> None:
        self._connection, self._schema, self.cut = connection, schema, cut

    def entries(self) -> Iterator[StoredEntry]:
        """Yield all entries by position, in short transactions."""
        last = 0
        while page := self._rows(_ENTRIES, last, self.cut, _PAGE, _PAGE_BYTES):
            yield from map(StoredEntry._make, page)
            last = page[-1][2]

    def commits(self) -> Iterator[StoredCommit]:
        """Yield the answers of all commits before the cut, by id, except those whose facts were deleted."""
        last = _BEFORE_ALL
        while page := self._rows(_COMMITS, self.cut, last, _PAGE):
            yield from (StoredCommit(*row[:3]) for row in page if row[3])
            last = page[-1][0]

    def one(self, text: LiteralString, *values: object) -> tuple[Any, ...]:
        """Return the only row of a query."""
        return self._rows(text, *values)[0]

    def _rows(self, text: LiteralString, *values: object) -> list[tuple[Any, ...]]:
        with self._connection.transaction():
            self._connection.execute("SET LOCAL TimeZone = 'UTC'")
            return self._connection.execute(statement(text, self._schema), values).fetchall()


class _Import:
    """One import in an open transaction."""

    def __init__(self, storage: PostgresStorage, connection: PgConnection, reader: Reader) -> None:
        self._storage, self._connection, self._schema = storage, connection, storage.schema
        self._reader = reader
        self._source = _Source(connection, storage.schema, reader.header.cut)

    def run(self, progress: Progress, also: Within | None) -> Transferred:
        """Run all of the import but the commit."""
        self._enter()
        self._copy(progress)
        done = self._checked()
        views = Rebuild(self._storage, self._connection)
        views.create_shadows()
        views.fill(done.cut, progress)
        if also is not None:
            also(self._storage, self._connection)
        self._continue_positions(done.cut)
        views.swap(done.cut)
        return done

    def _enter(self) -> None:
        self._connection.execute("SET LOCAL statement_timeout = 0")
        self._connection.execute("SET LOCAL lock_timeout = '10s'")
        for purpose in ("rebuild", "gate"):  # block rebuilds, and then writers
            self._connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number(self._schema, purpose),))
        if self._source.one(_IS_USED)[0]:
            raise JournalNotEmpty(
                f"the journal in schema {self._schema!r} is not empty: import into an empty one, such as a schema of "
                "another name (--schema, then `squid db upgrade`)"
            )

    def _copy(self, progress: Progress) -> None:
        cursor = self._connection.cursor()
        with cursor.copy(statement(_COPY_ENTRIES, self._schema)) as copy:
            for number, entry in enumerate(self._reader.entries(), 1):
                copy.write_row((*entry[:-1], _bytes(entry.digest)))
                if number % _PAGE == 0:
                    progress(number)
        with cursor.copy(statement(_COPY_COMMITS, self._schema)) as copy:
            for commit in self._reader.commits():
                copy.write_row(commit)
        for text in (_THREADS, _FORGET, _ANALYZE):
            self._connection.execute(statement(text, self._schema))

    def _checked(self) -> Transferred:
        """Read back what was written, and compare it with the lines that were read."""
        header, footer, written = self._reader.header, self._reader.footer(), Writer()
        written.line(header)
        for record in self._source.entries():
            written.line(record)
        for commit in self._source.commits():
            written.line(commit)
        entries, threads = self._source.one(_COUNT, header.cut)
        if written.footer != footer or (entries, threads) != (header.entries, header.threads):
            raise InvalidExport(
                f"what was read back is not what the export says: {written.footer} and {threads} threads, "
                f"not {footer} and {header.threads}"
            )
        return Transferred(header.cut, entries, threads, footer.commits, footer.digest)

    def _continue_positions(self, cut: int) -> None:
        """Restart the sequence after the imported positions. Unlike setval, this is transactional."""
        number = cut >> _NUMBER_BITS
        if self._source.one(_LAST)[0] < number:
            name = sql.Identifier(self._schema, "journal_numbers")
            restart = sql.SQL("ALTER SEQUENCE {} RESTART WITH {}").format(name, sql.Literal(number))
            self._connection.execute(restart)
            self._source.one(_NEXT)


def _bytes(digest: str) -> bytes:
    try:
        return bytes.fromhex(digest)
    except ValueError:
        raise InvalidExport(f"the export cannot be used: {digest!r:.40} is no digest") from None
