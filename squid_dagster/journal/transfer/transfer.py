"""A whole journal from one database to another: exported as a stream of lines up to one cut, imported all or nothing.

Facts go as they are stored, unknown and unreadable ones too, with their threads, sequences and positions. Checkpoints
and live views are caches: they stay behind, and are made anew. An import is one transaction. At its end, before anybody
sees anything of it, the rows are read back and must give the very lines that were read.
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
"""Makes other views of the facts anew, on a connection whose transaction is open."""

_PAGE = 2_000
_PAGE_BYTES = 8 * 1024 * 1024
_LAST_CUT = 2**62  # half of all positions: as many are left
_NUMBER_BITS = 20  # of a position, below the number of its commit: see take_number.sql

_COUNT: LiteralString = """SELECT count(*), count(DISTINCT thread) FROM {schema}.journal_entries
    WHERE position > 0 AND position <= %s"""
# journal_entries_pkey; a page ends after so many bytes, so that large facts do not add up
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
# Without it, the planner would take a table that was just filled for an empty one.
_ANALYZE: LiteralString = "ANALYZE {schema}.journal_entries, {schema}.journal_threads"
_LAST: LiteralString = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {schema}.journal_numbers"
_NEXT: LiteralString = "SELECT nextval('{schema}.journal_numbers')"


class JournalNotEmpty(SquidError):
    """An import needs an empty journal."""


class Transferred(NamedTuple):
    """What was exported or imported, and the digest by which the two are compared."""

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

    Writers go on; memory stays the same however long the journal is. `begin` is called with what is to come,
    `progress` with the number of entries so far.

    Raises:
        StorageUnavailable: the database cannot be reached.
    """
    tell, writer = progress or (lambda _: None), Writer()
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
                tell(writer.entries)
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
    """Write an exported journal into an empty one, make its views, and check that it is the same; all or nothing.

    Writers wait meanwhile. Positions given afterwards follow the imported ones. `also` makes what else is derived from
    facts. `begin` is told what is to come, `progress` the number of entries so far. Needs the tables' owner.

    Raises:
        InvalidExport: the stream is no export, or was cut off or changed; nothing was written.
        JournalNotEmpty: the journal holds something already; nothing was written.
        StorageUnavailable: the database cannot be reached, or somebody keeps it busy; nothing was written.
    """
    tell = progress or (lambda _: None)
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
                done = _Import(storage, connection, reader).run(tell, also)
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            said = error.diag.message_primary or str(error)
            raise InvalidExport(f"the export cannot be used: {said}") from None
        except UnicodeEncodeError:
            raise InvalidExport("the export cannot be used: it holds half a character, which no text has") from None
        except psycopg.errors.LockNotAvailable:
            raise _busy() from None
        except psycopg.errors.InsufficientPrivilege as error:
            raise StorageUnavailable(f"an import needs the owner of the tables: {error.diag.message_primary}") from None
    return done


class _Source:
    """The lines of a journal up to a cut."""

    def __init__(self, connection: PgConnection, schema: str, cut: int) -> None:
        self._connection, self._schema, self.cut = connection, schema, cut

    def entries(self) -> Iterator[StoredEntry]:
        """Return all entries by position, in short transactions."""
        last = 0
        while page := self._rows(_ENTRIES, last, self.cut, _PAGE, _PAGE_BYTES):
            yield from map(StoredEntry._make, page)
            last = page[-1][2]

    def commits(self) -> Iterator[StoredCommit]:
        """Return the answers of all commits before the cut, by id, but for those whose facts are gone."""
        last = _BEFORE_ALL
        while page := self._rows(_COMMITS, self.cut, last, _PAGE):
            yield from (StoredCommit(*row[:3]) for row in page if row[3])
            last = page[-1][0]

    def one(self, text: LiteralString, *values: object) -> tuple[Any, ...]:
        """Return the one row of a question."""
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
        """Do all of it, but for the commit."""
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
        for purpose in ("rebuild", "gate"):  # whoever rebuilds, and then everybody who writes
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
        """Read back what was written: it must give the lines that were read."""
        header, footer, again = self._reader.header, self._reader.footer(), Writer()
        again.line(header)
        for record in self._source.entries():
            again.line(record)
        for commit in self._source.commits():
            again.line(commit)
        entries, threads = self._source.one(_COUNT, header.cut)
        if again.footer != footer or (entries, threads) != (header.entries, header.threads):
            raise InvalidExport(
                f"what was read back is not what the export says: {again.footer} and {threads} threads, "
                f"not {footer} and {header.threads}"
            )
        return Transferred(header.cut, entries, threads, footer.commits, footer.digest)

    def _continue_positions(self, cut: int) -> None:
        """Let new positions follow the imported ones. Unlike setval, this is undone with the transaction."""
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


def _busy() -> StorageUnavailable:
    return StorageUnavailable("somebody keeps the journal locked (an idle transaction?): end that, and try again")
