"""Loggers of this library: no record leaves one with a secret in its message, its arguments or its traceback.

Every module of ours takes its logger here. What a step logs with `ctx.log` goes through such a logger too; what it
prints, or logs with a logger of its own, is its own business.
"""

import logging
from contextlib import suppress

from squid_dagster.redaction import redacted_text

_formatter = logging.Formatter()


class RedactingFilter(logging.Filter):
    """Lets every record pass, redacted. A record without a secret is not touched."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact one record in place: handlers, and loggers further up, see the same."""
        with suppress(Exception):  # the arguments' own code: logging itself reports what it cannot format
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
                # Formatters print the text that they find; the exception itself would bring the secret back.
                record.exc_info, record.exc_text = None, shown_trace
        if record.stack_info:
            record.stack_info = redacted_text(record.stack_info)


_redacting = RedactingFilter()


def redacting_logger(name: str) -> logging.Logger:
    """Return the logger of that name, whose records are redacted."""
    logger = logging.getLogger(name)
    logger.addFilter(_redacting)  # adding it again changes nothing
    return logger
