"""Lines of the library that lead to an append: recorded while a scenario is played, and listed from the source."""

import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple
from uuid import UUID

import squid_dagster
from squid_dagster.journal.contract.storage import Append
from squid_dagster.testing import InjectedStorage

PACKAGE = Path(squid_dagster.__file__).parent

# The modules from which commands and execution write: all above the storages, and the dispatch store on any storage.
WRITING_MODULES = (
    "runtime/**/*.py",
    "agents/*.py",
    "api.py",
    "journal/fold_store/commits.py",
    "journal/fold_store/dispatch_store.py",
    "journal/run_quarantine.py",
)


class Line(NamedTuple):
    """A line of the library that was on its way when an append happened."""

    file: str  # below the package, such as runtime/commands/run_commands.py
    number: int
    function: str


class Site(NamedTuple):
    """A call in the source that may append."""

    file: str
    first: int
    last: int
    function: str
    call: str

    def led_to(self, line: Line) -> bool:
        """Return whether a line is this call."""
        return line.file == self.file and self.first <= line.number <= self.last

    @property
    def name(self) -> str:
        """The place, in words that an unrelated edit does not change."""
        return f"{self.file} {self.function}: {self.call}"


class RecordingStorage(InjectedStorage):
    """An injected storage that appends to one thread at a time and records the lines that led to each append."""

    def __init__(self, storage: InjectedStorage | object) -> None:
        """Wrap a storage."""
        super().__init__(storage, atomic_across_threads=False)  # type: ignore[arg-type]  # any storage
        self.lines: list[tuple[Line, ...]] = []

    def commit(self, appends: Sequence[Append], commit_id: UUID | None = None) -> dict[str, int]:
        """Write, and record the lines that led here, the innermost first."""
        with self._lock:
            try:
                return super().commit(appends, commit_id)
            finally:
                new = len(self.boundaries) - len(self.lines)
                self.lines += [tuple(_lines(sys._getframe()))] * new


def _lines(frame: FrameType | None) -> Iterator[Line]:
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            yield Line(path.relative_to(PACKAGE).as_posix(), frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back


# --- the source -----------------------------------------------------------------------------------------------------

# What may append, of all that storages and dispatch stores can do; `append` is a method of lists too.
WRITES = frozenset({"commit", "append", "claim", "heartbeat", "settle", "settle_within", "decide", "release"})
WRITES |= {"command", "dead_letter_expired", "start_runs"}
_FUNCTIONS = frozenset({"quarantine", "commit_in_order"})
_JOURNALS = ("storage", "journal")


def sites() -> list[Site]:
    """Return every call in the source that may append."""
    paths = sorted(path for name in WRITING_MODULES for path in PACKAGE.glob(name))
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    return [site for file, text in texts.items() for site in sites_in(file, text)]


def sites_in(file: str, text: str) -> Iterator[Site]:
    """Yield the calls that may append in one module."""

    def walk(node: ast.AST, function: str) -> Iterator[Site]:
        for child in ast.iter_child_nodes(node):
            inner = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
            if isinstance(child, ast.Call) and _writes(child.func):
                yield Site(file, child.lineno, child.end_lineno or child.lineno, inner, ast.unparse(child.func))
            yield from walk(child, inner)

    yield from walk(ast.parse(text), "")


def _writes(called: ast.expr) -> bool:
    if isinstance(called, ast.Name):
        return called.id in _FUNCTIONS
    if not isinstance(called, ast.Attribute) or called.attr not in WRITES:
        return False
    on = ast.unparse(called.value).rpartition(".")[2].strip("_")
    return called.attr != "append" or on in _JOURNALS
