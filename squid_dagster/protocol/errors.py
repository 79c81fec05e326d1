"""Every error that this library raises on purpose. Messages name the value that was wrong and what to do about it.

No message contains a credential: code that puts a URL into one passes it through `journal.tiers.display_url`.
"""

from pydantic import ValidationError

_MAX_LENGTH = 10_000  # characters of a message


class SquidError(Exception):
    """The root of all errors of this library."""

    def __str__(self) -> str:
        """Return the message; a very long one is truncated."""
        text = super().__str__()
        return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"


class Conflict(SquidError):
    """Another writer appended to the thread first; nothing was written. Read again, decide again, append again."""

    def __init__(self, thread: str, expected: int, actual: int) -> None:
        """Name the thread, the expected revision and the actual one."""
        super().__init__(f"thread {thread!r} is at revision {actual}, not {expected}: read it again and retry")
        self.thread, self.expected, self.actual = thread, expected, actual


class NotFound(SquidError):
    """The named object does not exist."""


class StaleClaim(SquidError):
    """The claim id or token is not the one that holds the attempt now."""


class ExpiredClaim(SquidError):
    """The lease ran out before the fact could be written."""


class TerminalRun(SquidError):
    """The run has ended: it takes no further facts."""


class ConflictingCompletion(SquidError):
    """The attempt was already settled by the same claim with another outcome."""


class ConflictingCommand(SquidError):
    """The idempotency key, or the run id, was used before with other content."""


class InvalidTransition(SquidError):
    """The run is not in a state in which this command makes sense."""


class UnsafeReplay(SquidError):
    """The run has completed steps that cannot be undone or repeated safely."""


class IncompatibleDefinition(SquidError):
    """No registered definition is the one that the run was started with."""


class InvalidPayload(SquidError):
    """A payload does not fit the workflow's payload model."""


class InvalidFact(SquidError):
    """A fact has a wrong shape: a missing field, a wrong type, a naive time, a value that JSON cannot hold."""


class PlanningFailed(SquidError):
    """What follows from an outcome could not be planned; the outcome was not recorded."""


class InvalidArgument(SquidError, ValueError):
    """An argument is of the wrong type, or out of range."""


class InvalidThread(InvalidArgument):
    """A thread id, or a part of one, is malformed."""


class SchemaOutdated(SquidError):
    """The database's schema is older than this code needs."""


class SchemaTooNew(SquidError):
    """The database's schema was written by a newer version that this code cannot work with."""


class ForeignSchema(SquidError):
    """The schema holds tables of another application."""


class StorageUnavailable(SquidError):
    """The database cannot be reached, or cannot execute the statement now: wait, and retry."""

    sqlstate: str | None = None
    """The SQLSTATE, if the database answered."""


class StorageRefused(SquidError):
    """The database refuses the statement, and would refuse a retry: the message says what helps."""

    sqlstate: str | None = None
    """The SQLSTATE; None if the client library refused."""


class EmbeddedUnavailable(SquidError):
    """The embedded Postgres cannot be started here."""


class ViewsMissing(SquidError):
    """The live views were dropped. Facts are safe, but nothing is appended until the views are back."""


def explain(error: ValidationError) -> str:
    """Describe a validation error in one line: the path of each problem, and never a long value."""
    problems = []
    for problem in error.errors(include_url=False, include_context=False):
        if problem["type"].startswith("recursion"):  # its path is as long as the value is deep
            problems.append(
                f"{problem['loc'][0] if problem['loc'] else 'value'}: it is nested too deep to be written down"
            )
            continue
        path, message = ".".join(str(part) for part in problem["loc"]), problem["msg"].removeprefix("Value error, ")
        if not path and problem["type"] == "value_error":  # a validator's own message about the whole model
            problems.append(message)
            continue
        got = "" if problem["type"] == "missing" else f" (got {shown(problem['input'])})"
        problems.append(f"{path or 'value'}: {message}{got}")
    return "; ".join(problems)


def shown(value: object, most: int = 60) -> str:
    """Return a value as messages show it: its representation if that is short, else its type. Never raises."""
    try:
        text = repr(value) if not isinstance(value, str | bytes) or len(value) <= most else ""
    except Exception:  # noqa: BLE001  a value's own code, an integer of thousands of digits, endless nesting
        text = ""
    return text if 0 < len(text) <= most else type(value).__name__
