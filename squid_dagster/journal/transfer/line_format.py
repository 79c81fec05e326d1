"""A journal as a stream of lines: one JSON object per line, a header first, a footer last. Pure, and knows no database.

The header says what follows. Then come all entries by position, then all answers that commits were given, by id. The
footer counts them, and its digest covers every line before it: a stream that was cut, changed or put together from two
shows. Texts of facts are kept as texts, so that not a sign of them changes on the way. Nothing else is in it: equal
journals give equal streams, and so equal digests.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from squid_dagster.protocol.errors import InvalidArgument

FORMAT = 1
MAX_LINE_BYTES = 128 * 1024 * 1024  # a fact of 16 MiB, of which every sign is escaped

_write = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class InvalidExport(InvalidArgument):
    """A stream that is no export of a journal, or not a whole one."""


class Header(NamedTuple):
    """What a stream holds."""

    squid_journal: int  # the version of the format
    schema_version: int
    entries: int
    threads: int
    cut: int  # the position up to which the journal was exported


class StoredEntry(NamedTuple):
    """An entry as its row has it; times as ISO texts, the digest in hex."""

    thread: str
    seq: int
    position: int
    type: str
    run_id: str | None
    occurred_at: str
    data: str
    digest: str


class StoredCommit(NamedTuple):
    """The answer that a commit was given, so that whoever repeats it gets it again."""

    commit: str
    receipt: str
    committed_at: str


class Footer(NamedTuple):
    """What a whole stream held, and the SHA-256 of all lines before this one."""

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
    """Write one line."""
    return _write(record._asdict()).encode("utf-8") + b"\n"


class Writer:
    """Makes lines, and the footer that fits them."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._digest = hashlib.sha256()
        self.entries = self.commits = 0

    def line(self, record: Record) -> bytes:
        """Return the line of a record, and remember it."""
        made = to_line(record)
        self._digest.update(made)
        self.entries += isinstance(record, StoredEntry)
        self.commits += isinstance(record, StoredCommit)
        return made

    @property
    def footer(self) -> Footer:
        """The footer of what was written so far."""
        return Footer(self.entries, self.commits, self._digest.hexdigest())


class Reader:
    """Reads a stream once: `header`, `entries()` to their end, `commits()` to theirs, then `footer()`.

    Everything raises `InvalidExport`, with the number of the line.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        """Read the header."""
        self._lines = iter(lines)
        self._digest = hashlib.sha256()
        self._number = 0
        self._next: Record | None = None
        self._counts = {StoredEntry: 0, StoredCommit: 0}
        self._footer_line = b""
        found = self._read()
        if not isinstance(found, Header):
            raise InvalidExport("this is no export of a journal: its first line is no header")
        self.header = found
        if found.squid_journal != FORMAT:
            raise InvalidExport(f"the export has format {found.squid_journal}, this code reads format {FORMAT}")
        self._advance()

    def entries(self) -> Iterator[StoredEntry]:
        """Return the entries; each has a higher position than the one before, and none is beyond the cut."""
        last = 0
        while isinstance(entry := self._next, StoredEntry):
            if not last < entry.position <= self.header.cut:
                raise self._wrong(
                    f"position {entry.position} cannot follow {last} in an export up to {self.header.cut}"
                )
            last = entry.position
            self._counts[StoredEntry] += 1
            yield entry
            self._advance()

    def commits(self) -> Iterator[StoredCommit]:
        """Return the answers of commits."""
        while isinstance(commit := self._next, StoredCommit):
            self._counts[StoredCommit] += 1
            yield commit
            self._advance()

    def footer(self) -> Footer:
        """Return the footer, once everything before it fits it and nothing follows."""
        footer = self._next
        if not isinstance(footer, Footer):
            raise self._wrong("this line is not in its place")
        counted = (self._counts[StoredEntry], self._counts[StoredCommit])
        if counted != (footer.entries, footer.commits) or footer.entries != self.header.entries:
            raise InvalidExport(
                f"the export was changed: it holds {counted[0]} entries and {counted[1]} commits, its header says "
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
            raise self._wrong(f"a line must be bytes, not {type(line).__name__}: open the file in binary mode")
        if not line.endswith(b"\n"):
            if len(line) >= MAX_LINE_BYTES:
                raise self._wrong("it is longer than any line of an export")
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
            raise self._wrong("it is not JSON") from None
        for kind, types in _TYPES.items():
            if isinstance(values, dict) and tuple(values) == kind._fields:  # type: ignore[attr-defined]
                return self._checked(kind, types, list(values.values()))
        raise self._wrong("it is no header, entry, commit or footer")

    def _checked(self, kind: type, types: tuple[Any, ...], values: list[Any]) -> Record:
        for name, wanted, value in zip(kind._fields, types, values, strict=True):  # type: ignore[attr-defined]
            whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
            if not (whole if wanted is int else isinstance(value, wanted)):
                raise self._wrong(f"{name} cannot be {value!r:.40}")
        record: Record = kind(*values)
        return record

    def _wrong(self, what: str) -> InvalidExport:
        return InvalidExport(f"line {self._number} of the export cannot be used: {what}")
