"""What a command that goes on for long logs meanwhile: on stderr, a line each, and nothing of it on stdout."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from squid_dagster.cli.terminal.printable_text import LineFormatter


@contextmanager
def logging_to_stderr(level: str) -> Iterator[None]:
    """Send what the library and the steps log to stderr, unless a module has said already where logs go.

    A worker's report is left out: people would read it twice.
    """
    from squid_dagster.runtime.worker.report import WorkerReport

    root = logging.getLogger()
    if root.handlers:
        yield
        return
    logging.basicConfig(level=level.upper())
    for each in root.handlers:
        each.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        each.addFilter(lambda record: not any(isinstance(told, WorkerReport) for told in record.args or ()))
    try:
        yield
    finally:
        root.handlers.clear()
