"""Loggers of this library: secrets are removed from messages, arguments and tracebacks of their records.

Every module of this library gets its logger here. `ctx.log` of a step is such a logger too; what a step prints, or logs
with another logger, is not redacted.
"""

import logging
from contextlib import suppress

from squid_dagster.redaction import redacted_text

_formatter = logging.Formatter()


class RedactingFilter(logging.Filter):
    """A filter that redacts every record and drops none. A record without a secret is not changed."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact one record in place, also for handlers of parent loggers."""
        with suppress(Exception):  # code of the arguments: logging itself reports what it cannot format
            self._redact(record)
        return True

    def _redact(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        shown = redacted_text(text)
        if shown != text:
            record.msg, record.args = shown, ()
        if record.exc_info:
            trace = _formatter.formatException(record.exc_info)
            shown_trace = redacted_text(trace)
            if shown_trace != trace:
                # Formatters print `exc_text` if there is one; from `exc_info` they would format the secret again.
                record.exc_info, record.exc_text = None, shown_trace
        if record.stack_info:
            record.stack_info = redacted_text(record.stack_info)


_redacting = RedactingFilter()


def redacting_logger(name: str) -> logging.Logger:
    """Return the logger of that name, whose records are redacted."""
    logger = logging.getLogger(name)
    logger.addFilter(_redacting)  # adding it again changes nothing
    return logger
