"""What to do about each SQLSTATE: repeat the transaction at once, wait and repeat it, or give up. Pure.

The table covers every class of Postgres' Appendix A. The rule of a code takes precedence over that of its class. A code
without a rule is refused, so that a forgotten one is reported and never repeated for ever.
"""

from enum import Enum
from typing import NamedTuple

CONFLICT, BEGIN_AGAIN, NOT_NEW, TOO_MANY = "SQ001", "SQ002", "SQ003", "SQ004"
"""Raised by our own SQL functions: a revision is not the expected one, begin again, not new, too many facts at once."""
LOCK_TIMEOUT = "55P03"
"""Raised for a lock that another session holds for longer than `lock_timeout`."""


class ErrorAction(Enum):
    """What to do about a failed transaction."""

    REPEAT = "repeat"
    """It was rolled back by chance, such as by a deadlock or a cancelled statement: repeat it at once, a few times."""
    WAIT = "wait"
    """The database cannot do it now, for any client: wait until an administrator, or time, has changed that."""
    REFUSE = "refuse"
    """The database will never do it: the statement is wrong, or the schema is."""


class SqlstateRule(NamedTuple):
    """What to do about a SQLSTATE, what it means in words, and what helps."""

    action: ErrorAction
    words: str
    remedy: str = ""


_REPEAT, _WAIT, _REFUSE = ErrorAction.REPEAT, ErrorAction.WAIT, ErrorAction.REFUSE

_CODES = {
    "25006": SqlstateRule(_WAIT, "it is read-only", "It is a standby, or was made read-only: is the primary up?"),
    "25P03": SqlstateRule(_REPEAT, "a transaction was idle for too long"),
    "25P04": SqlstateRule(_REPEAT, "a transaction took too long", "Raise transaction_timeout for this role."),
    "42501": SqlstateRule(_WAIT, "it does not let this user do that", "Grant the rights, or connect as the owner."),
    "53100": SqlstateRule(_WAIT, "its disk is full", "Free some space."),
    "53200": SqlstateRule(
        _WAIT, "it has no memory left", "Raise max_locks_per_transaction if the message is about locks."
    ),
    "53300": SqlstateRule(_WAIT, "it has no connection left", "Raise max_connections, or use fewer."),
    "55000": SqlstateRule(_WAIT, "it is not ready for that"),
    "55006": SqlstateRule(_REPEAT, "something is in use"),
    LOCK_TIMEOUT: SqlstateRule(_REPEAT, "a lock is held by another session", "Look for a transaction left open."),
    "57014": SqlstateRule(_REPEAT, "a statement was cancelled", "By a person, or by statement_timeout: raise it."),
    "57P01": SqlstateRule(_WAIT, "it shuts down"),
    "57P02": SqlstateRule(_WAIT, "it has crashed and starts again"),
    "57P03": SqlstateRule(_WAIT, "it starts, or shuts down"),
    "57P04": SqlstateRule(_WAIT, "the database was dropped"),
    "57P05": SqlstateRule(_WAIT, "a session was idle for too long"),
    "72000": SqlstateRule(_REPEAT, "a snapshot was too old"),
    "XX001": SqlstateRule(_REFUSE, "data on its disk is damaged", "Restore it from a backup."),
    "XX002": SqlstateRule(_REFUSE, "an index is damaged", "Run REINDEX."),
    BEGIN_AGAIN: SqlstateRule(_REPEAT, "another writer was first"),
}

_WRONG = "Is the schema as `squid db upgrade` made it? `squid doctor` compares."

_CLASSES = {
    "00": SqlstateRule(_REFUSE, "it reports success as an error"),
    "01": SqlstateRule(_REFUSE, "it reports a warning as an error"),
    "02": SqlstateRule(_REFUSE, "there is no data"),
    "03": SqlstateRule(_REFUSE, "a statement was not complete"),
    "08": SqlstateRule(_WAIT, "the connection failed"),
    "09": SqlstateRule(_REFUSE, "a trigger failed", _WRONG),
    "0A": SqlstateRule(_REFUSE, "it does not support that", "Postgres 14 or newer is needed."),
    "0B": SqlstateRule(_REFUSE, "a transaction cannot begin"),
    "0F": SqlstateRule(_REFUSE, "a locator is wrong"),
    "0L": SqlstateRule(_REFUSE, "a grantor is wrong"),
    "0P": SqlstateRule(_REFUSE, "a role is wrong"),
    "0Z": SqlstateRule(_REFUSE, "diagnostics failed"),
    "10": SqlstateRule(_REFUSE, "an XQuery is wrong"),
    "20": SqlstateRule(_REFUSE, "a case was not found", _WRONG),
    "21": SqlstateRule(_REFUSE, "there are too many rows", _WRONG),
    "22": SqlstateRule(_REFUSE, "a value cannot be stored"),
    "23": SqlstateRule(_REFUSE, "a constraint is violated", _WRONG),
    "24": SqlstateRule(_REFUSE, "a cursor is in a wrong state"),
    "25": SqlstateRule(_REFUSE, "a transaction is in a wrong state"),
    "26": SqlstateRule(_REFUSE, "a prepared statement is unknown", "Does a pooler give statements to other sessions?"),
    "27": SqlstateRule(_REFUSE, "a trigger changed data that it must not", _WRONG),
    "28": SqlstateRule(_WAIT, "it does not let this user in", "Are the role and its password right?"),
    "2B": SqlstateRule(_REFUSE, "other objects depend on it"),
    "2D": SqlstateRule(_REFUSE, "a transaction cannot end there"),
    "2F": SqlstateRule(_REFUSE, "a function failed", _WRONG),
    "34": SqlstateRule(_REFUSE, "a cursor is unknown"),
    "38": SqlstateRule(_REFUSE, "an external function failed", _WRONG),
    "39": SqlstateRule(_REFUSE, "an external function cannot be called", _WRONG),
    "3B": SqlstateRule(_REFUSE, "a savepoint failed"),
    "3D": SqlstateRule(_WAIT, "there is no such database", "Is its name in the URL right?"),
    "3F": SqlstateRule(_REFUSE, "there is no such schema", _WRONG),
    "40": SqlstateRule(_REPEAT, "a transaction was rolled back"),
    "42": SqlstateRule(_REFUSE, "a statement does not fit the schema", _WRONG),
    "44": SqlstateRule(_REFUSE, "a view's check is violated", _WRONG),
    "53": SqlstateRule(_WAIT, "it has no resources left"),
    "54": SqlstateRule(_REFUSE, "that is more than it can do at once"),
    "55": SqlstateRule(_REFUSE, "an object is in a wrong state", _WRONG),
    "57": SqlstateRule(_WAIT, "an administrator has intervened"),
    "58": SqlstateRule(_WAIT, "its operating system reports an error", "Look at the server's log."),
    "72": SqlstateRule(_REPEAT, "a snapshot failed"),
    "F0": SqlstateRule(_WAIT, "its configuration is wrong", "Look at the server's log."),
    "HV": SqlstateRule(_REFUSE, "a foreign table failed"),
    "P0": SqlstateRule(_REFUSE, "a function or trigger refused it"),
    "SQ": SqlstateRule(_REFUSE, "a function of the journal refused it", _WRONG),
    "XX": SqlstateRule(_WAIT, "it has an internal error", "Look at the server's log."),
}

_UNKNOWN = SqlstateRule(_REFUSE, "it reports an error that is not known here")
_NOT_ANSWERED = SqlstateRule(_REFUSE, "the client library does not send that")

# Unique keys of which another session, or our own try whose answer was lost, may write the row first.
_FIRST_WINS = frozenset({"journal_commits_pkey", "backlog_pkey", "backlog_key"})


def sqlstate_rule(sqlstate: str | None, constraint: str | None = None) -> SqlstateRule:
    """Return the rule for an error of the database. None is an error without a code, which came from the client."""
    if sqlstate is None:
        return _NOT_ANSWERED
    if sqlstate == "23505" and constraint in _FIRST_WINS:
        return _CODES[BEGIN_AGAIN]
    return _CODES.get(sqlstate) or _CLASSES.get(sqlstate[:2]) or _UNKNOWN
