"""The format of an exported journal: one JSON object per line, a header first, a footer last. Pure, without a database.

The header says what follows. Then come all entries by position, then the answers of all commits, by id. The footer
counts them, and its digest covers every line before it, so that a truncated, changed or concatenated stream is
detected. Facts are exported as their stored texts, so that no character changes. There is nothing else in the stream:
equal journals have equal streams, and so equal digests.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from squid_dagster.protocol.errors import InvalidArgument

FORMAT = 1
MAX_LINE_BYTES = 128 * 1024 * 1024  # a fact of 16 MiB, with every character escaped

_write = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class InvalidExport(InvalidArgument):
    """A stream that is no export of a journal, or an incomplete one."""


class Header(NamedTuple):
    """The first line: what the stream holds."""

    squid_journal: int  # the version of the format
    schema_version: int
    entries: int
    threads: int
    cut: int  # the position up to which the journal was exported


class StoredEntry(NamedTuple):
    """An entry as it is stored; times as ISO texts, the digest in hex."""

    thread: str
    seq: int
    position: int
    type: str
    run_id: str | None
    occurred_at: str
    data: str
    digest: str


class StoredCommit(NamedTuple):
    """The answer of a commit, which a repeat of the commit returns again."""

    commit: str
    receipt: str
    committed_at: str


class Footer(NamedTuple):
    """The last line: the counts of the stream, and the SHA-256 of all lines before this one."""

    entries: int
    commits: int
    digest: str


_TYPES: dict[type, tuple[type | tuple[type, ...], ...]] = {
    Header: (int, int, int, int, int),
    StoredEntry: (str, int, int, str, (str, type(None)), str, str, str),
    StoredCommit: (str, str, str),
    Footer: (int, int, str),
}
Record = Header | StoredEntry | StoredCommit | Footer


def to_line(record: Record) -> bytes:
    """Return the line of a record."""
    return _write(record._asdict()).encode("utf-8") + b"\n"


class Writer:
    """An encoder of lines, which computes their footer."""

    def __init__(self) -> None:
        """Start an empty stream."""
        self._digest = hashlib.sha256()
        self.entries = self.commits = 0

    def line(self, record: Record) -> bytes:
        """Return the line of a record, and add it to the footer."""
        line = to_line(record)
        self._digest.update(line)
        self.entries += isinstance(record, StoredEntry)
        self.commits += isinstance(record, StoredCommit)
        return line

    @property
    def footer(self) -> Footer:
        """The footer of all lines so far."""
        return Footer(self.entries, self.commits, self._digest.hexdigest())


class Reader:
    """A reader of a stream, once: `header`, `entries()` to their end, `commits()` to theirs, then `footer()`.

    All of them raise `InvalidExport`, with the number of the line.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        """Read the header."""
        self._lines = iter(lines)
        self._digest = hashlib.sha256()
        self._number = 0
        self._next: Record | None = None
        self._counts = {StoredEntry: 0, StoredCommit: 0}
        self._footer_line = b""
        header = self._read()
        if not isinstance(header, Header):
            raise InvalidExport("this is no export of a journal: its first line is no header")
        self.header = header
        if header.squid_journal != FORMAT:
            raise InvalidExport(f"the export has format {header.squid_journal}, this code reads format {FORMAT}")
        self._advance()

    def entries(self) -> Iterator[StoredEntry]:
        """Yield the entries; checks that positions grow and none is beyond the cut."""
        last = 0
        while isinstance(entry := self._next, StoredEntry):
            if not last < entry.position <= self.header.cut:
                raise self._invalid(
                    f"position {entry.position} cannot follow {last} in an export up to {self.header.cut}"
                )
            last = entry.position
            self._counts[StoredEntry] += 1
            yield entry
            self._advance()

    def commits(self) -> Iterator[StoredCommit]:
        """Yield the answers of commits."""
        while isinstance(commit := self._next, StoredCommit):
            self._counts[StoredCommit] += 1
            yield commit
            self._advance()

    def footer(self) -> Footer:
        """Check the footer against all lines before it, and that nothing follows; return it."""
        footer = self._next
        if not isinstance(footer, Footer):
            raise self._invalid("this line is not in its place")
        counts = (self._counts[StoredEntry], self._counts[StoredCommit])
        if counts != (footer.entries, footer.commits) or footer.entries != self.header.entries:
            raise InvalidExport(
                f"the export was changed: it holds {counts[0]} entries and {counts[1]} commits, its header says "
                f"{self.header.entries} entries, its footer {footer.entries} and {footer.commits}"
            )
        if self._digest.hexdigest() != footer.digest:
            raise InvalidExport("the export was changed: its lines do not fit the digest at its end")
        if next(self._lines, b""):
            raise InvalidExport(f"something follows the end of the export, after line {self._number}")
        return footer

    def _advance(self) -> None:
        self._next = self._read()

    def _read(self) -> Record:
        line = next(self._lines, b"")
        self._number += 1
        if not isinstance(line, bytes):
            raise self._invalid(f"a line must be bytes, not {type(line).__name__}: open the file in binary mode")
        if not line.endswith(b"\n"):
            if len(line) >= MAX_LINE_BYTES:
                raise self._invalid("it is longer than any line of an export")
            raise InvalidExport(
                f"the export ends in line {self._number} without a footer: it was cut off"
                if self._number > 1
                else "this is no export of a journal: its first line is no header"
            )
        record = self._parse(line)
        if not isinstance(record, Footer):
            self._digest.update(line)
        return record

    def _parse(self, line: bytes) -> Record:
        try:
            values = json.loads(line)
        except (ValueError, RecursionError):
            raise self._invalid("it is not JSON") from None
        for kind, types in _TYPES.items():
            if isinstance(values, dict) and tuple(values) == kind._fields:  # type: ignore[attr-defined]
                return self._checked(kind, types, list(values.values()))
        raise self._invalid("it is no header, entry, commit or footer")

    def _checked(self, kind: type, types: tuple[Any, ...], values: list[Any]) -> Record:
        for name, expected, value in zip(kind._fields, types, values, strict=True):  # type: ignore[attr-defined]
            is_bigint = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
            if not (is_bigint if expected is int else isinstance(value, expected)):
                raise self._invalid(f"{name} cannot be {value!r:.40}")
        record: Record = kind(*values)
        return record

    def _invalid(self, what: str) -> InvalidExport:
        return InvalidExport(f"line {self._number} of the export cannot be used: {what}")
