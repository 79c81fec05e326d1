"""`squid journal export` and `import`: a whole journal as a file, or through a pipe."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import click

from squid_dagster.cli.app import Refused
from squid_dagster.cli.place import Place, on_journal
from squid_dagster.cli.terminal.output import emit, progress
from squid_dagster.cli.terminal.streams import stdout

if TYPE_CHECKING:
    from squid_dagster.journal.transfer.line_format import Header
    from squid_dagster.journal.transfer.transfer import Transferred

_PIPE = "-"


@click.command("export")
@click.argument("file", type=click.Path(dir_okay=False))
@on_journal
def export(file: str, place: Place, as_json: bool) -> None:
    """Write the whole journal to FILE, or to stdout with `-`. A name that ends in .gz is compressed.

    Facts go as they are, so keep it as safe as the database: payloads are not redacted. A file that exists is not
    changed. With `-`, the report is on stderr.
    """
    from squid_dagster.journal.transfer.transfer import export_journal

    with place.storage() as storage, _output(file) as write, _progress("exporting") as (report, begin):
        done = export_journal(storage, write, report, begin)
    _report(file, done, "exported", as_json, to_stderr=file == _PIPE)


@click.command("import")
@click.argument("file", type=click.Path(dir_okay=False))
@on_journal
def import_(file: str, place: Place, as_json: bool) -> None:
    """Read an exported journal from FILE, or from stdin with `-`, into an empty journal.

    Everything is written or nothing. The views are made, and the result is compared with the file.
    """
    from squid_dagster.backlog.postgres.rebuild import rebuild_within
    from squid_dagster.journal.transfer.transfer import import_journal

    with _input(file) as lines, place.storage() as storage, _progress("importing") as (report, begin):
        done = import_journal(storage, lines, report, begin=begin, also=rebuild_within)
    _report(file, done, "imported", as_json, to_stderr=False)


def _report(file: str, done: "Transferred", verb: str, as_json: bool, *, to_stderr: bool) -> None:
    document = {"file": file, **done._asdict()}
    text = f"{verb} {done.entries} facts on {done.threads} threads, up to position {done.cut}; digest {done.digest}"
    if not to_stderr:
        emit(as_json, document, text)
    elif not as_json:
        click.echo(text, err=True)


@contextmanager
def _progress(label: str) -> "Iterator[tuple[Callable[[int], None], Callable[[Header], None]]]":
    """Yield the function that takes the number of entries so far, and the one that takes the header before."""
    with ExitStack() as stack:
        reports: list[Callable[[int], None]] = []

        def begin(header: "Header") -> None:
            reports.append(stack.enter_context(progress(label, header.entries)))

        yield lambda done: reports[-1](done), begin


@contextmanager
def _output(file: str) -> Iterator[Callable[[bytes], object]]:
    """Yield the function that writes a line. A file gets its name only when it is whole."""
    if file == _PIPE:
        out = stdout().buffer
        yield out.write
        out.flush()
        return
    path = Path(file)
    _refuse_to_replace(path)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        # Readable by its owner alone: payloads are not redacted, and may hold secrets.
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as raw:
            with _packed(raw, path.name, "wb") as packed:
                yield packed.write
            raw.flush()
            os.fsync(raw.fileno())
        _refuse_to_replace(path)  # again: another process may have created it
        part.rename(path)
    except OSError as error:
        raise click.BadParameter(f"{file} cannot be written: {error.strerror or error}", param_hint="FILE") from None
    finally:
        part.unlink(missing_ok=True)


def _refuse_to_replace(path: Path) -> None:
    if path.exists():
        raise Refused(f"{path} is there already: remove it, or choose another name")


@contextmanager
def _input(file: str) -> Iterator[Iterator[bytes]]:
    if file == _PIPE:
        yield _lines(sys.stdin.buffer)
        return
    try:
        opened = Path(file).open("rb")  # noqa: SIM115  closed by the next line
    except OSError as error:
        raise click.BadParameter(f"{file} cannot be read: {error.strerror}", param_hint="FILE") from None
    with opened, _packed(opened, file, "rb") as unpacked:
        yield _lines(unpacked)


@contextmanager
def _packed(file: IO[bytes], name: str, mode: str) -> Iterator[IO[bytes]]:
    if not name.endswith(".gz"):
        yield file
        return
    import gzip

    with gzip.GzipFile(filename="", mode=mode, fileobj=cast("Any", file), compresslevel=6, mtime=0) as packed:
        yield cast("IO[bytes]", packed)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file, none longer than a line of an export may be."""
    import zlib

    from squid_dagster.journal.transfer.line_format import MAX_LINE_BYTES, InvalidExport

    try:
        while line := file.readline(MAX_LINE_BYTES):
            yield line
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidExport(f"the export cannot be read to its end: {error}") from None
