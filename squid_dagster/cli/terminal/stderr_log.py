"""The log of a long command: one line each on stderr, nothing on stdout."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from squid_dagster.cli.terminal.printable_text import printable, printable_line


class LineFormatter(logging.Formatter):
    """Format of a log: each message is one line; a traceback follows it, without control characters."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  as the base class has it
        """Return the line."""
        return printable_line(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802  as the base class has it
        """Return the traceback."""
        return printable(super().formatException(ei))  # type: ignore[arg-type]  # as the base class takes it


@contextmanager
def logging_to_stderr(level: str) -> Iterator[None]:
    """Send the log of the library and of steps to stderr, unless a module has configured logging.

    A worker's report is left out: the command prints it.
    """
    from squid_dagster.runtime.worker.report import WorkerReport

    root = logging.getLogger()
    if root.handlers:
        yield
        return
    logging.basicConfig(level=level.upper())
    for handler in root.handlers:
        handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        handler.addFilter(lambda record: not any(isinstance(value, WorkerReport) for value in record.args or ()))
    try:
        yield
    finally:
        root.handlers.clear()
