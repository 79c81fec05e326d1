"""What to do about each SQLSTATE: repeat the transaction at once, wait and repeat it, or give up. Pure.

The table covers every class of Postgres' Appendix A. A code of its own comes before its class; what is in neither is
refused, so that a forgotten code is told and never repeated for ever.
"""

from enum import Enum
from typing import NamedTuple

CONFLICT, BEGIN_AGAIN, NOT_NEW, TOO_MANY = "SQ001", "SQ002", "SQ003", "SQ004"
"""Raised by our own SQL functions: a revision is not the expected one, begin again, not new, too many facts at once."""
LOCK_TIMEOUT = "55P03"
"""Raised for a lock that another session holds for longer than `lock_timeout`."""


class Disposition(Enum):
    """What a failed transaction calls for."""

    REPEAT = "repeat"
    """It was rolled back by chance, such as by a deadlock or a cancelled statement: repeat it at once, a few times."""
    WAIT = "wait"
    """The database cannot do it now, whoever asks: wait until an administrator, or time, has changed that."""
    REFUSE = "refuse"
    """The database never does it: what was asked is wrong, or the schema is."""


class Meaning(NamedTuple):
    """What a SQLSTATE calls for, in which words, and what helps."""

    disposition: Disposition
    words: str
    remedy: str = ""


_REPEAT, _WAIT, _REFUSE = Disposition.REPEAT, Disposition.WAIT, Disposition.REFUSE

_CODES = {
    "25006": Meaning(_WAIT, "it is read-only", "It is a standby, or was made read-only: is the primary up?"),
    "25P03": Meaning(_REPEAT, "a transaction was idle for too long"),
    "25P04": Meaning(_REPEAT, "a transaction took too long", "Raise transaction_timeout for this role."),
    "42501": Meaning(_WAIT, "it does not let this user do that", "Grant the rights, or connect as the owner."),
    "53100": Meaning(_WAIT, "its disk is full", "Free some space."),
    "53200": Meaning(_WAIT, "it has no memory left", "Raise max_locks_per_transaction if the message is about locks."),
    "53300": Meaning(_WAIT, "it has no connection left", "Raise max_connections, or use fewer."),
    "55000": Meaning(_WAIT, "it is not ready for that"),
    "55006": Meaning(_REPEAT, "something is in use"),
    LOCK_TIMEOUT: Meaning(_REPEAT, "a lock is held by another session", "Look for a transaction left open."),
    "57014": Meaning(_REPEAT, "a statement was cancelled", "By a person, or by statement_timeout: raise it."),
    "57P01": Meaning(_WAIT, "it shuts down"),
    "57P02": Meaning(_WAIT, "it has crashed and starts again"),
    "57P03": Meaning(_WAIT, "it starts, or shuts down"),
    "57P04": Meaning(_WAIT, "the database was dropped"),
    "57P05": Meaning(_WAIT, "a session was idle for too long"),
    "72000": Meaning(_REPEAT, "a snapshot was too old"),
    "XX001": Meaning(_REFUSE, "data on its disk is damaged", "Restore it from a backup."),
    "XX002": Meaning(_REFUSE, "an index is damaged", "Run REINDEX."),
    BEGIN_AGAIN: Meaning(_REPEAT, "another writer was first"),
}

_WRONG = "Is the schema as `squid db upgrade` made it? `squid doctor` compares."

_CLASSES = {
    "00": Meaning(_REFUSE, "it reports success as an error"),
    "01": Meaning(_REFUSE, "it reports a warning as an error"),
    "02": Meaning(_REFUSE, "there is no data"),
    "03": Meaning(_REFUSE, "a statement was not complete"),
    "08": Meaning(_WAIT, "the connection failed"),
    "09": Meaning(_REFUSE, "a trigger failed", _WRONG),
    "0A": Meaning(_REFUSE, "it does not support that", "Postgres 14 or newer is needed."),
    "0B": Meaning(_REFUSE, "a transaction cannot begin"),
    "0F": Meaning(_REFUSE, "a locator is wrong"),
    "0L": Meaning(_REFUSE, "a grantor is wrong"),
    "0P": Meaning(_REFUSE, "a role is wrong"),
    "0Z": Meaning(_REFUSE, "diagnostics failed"),
    "10": Meaning(_REFUSE, "an XQuery is wrong"),
    "20": Meaning(_REFUSE, "a case was not found", _WRONG),
    "21": Meaning(_REFUSE, "there are too many rows", _WRONG),
    "22": Meaning(_REFUSE, "a value cannot be stored"),
    "23": Meaning(_REFUSE, "a constraint is violated", _WRONG),
    "24": Meaning(_REFUSE, "a cursor is in a wrong state"),
    "25": Meaning(_REFUSE, "a transaction is in a wrong state"),
    "26": Meaning(_REFUSE, "a prepared statement is unknown", "Does a pooler give statements to other sessions?"),
    "27": Meaning(_REFUSE, "a trigger changed data that it must not", _WRONG),
    "28": Meaning(_WAIT, "it does not let this user in", "Are the role and its password right?"),
    "2B": Meaning(_REFUSE, "other objects depend on it"),
    "2D": Meaning(_REFUSE, "a transaction cannot end there"),
    "2F": Meaning(_REFUSE, "a function failed", _WRONG),
    "34": Meaning(_REFUSE, "a cursor is unknown"),
    "38": Meaning(_REFUSE, "an external function failed", _WRONG),
    "39": Meaning(_REFUSE, "an external function cannot be called", _WRONG),
    "3B": Meaning(_REFUSE, "a savepoint failed"),
    "3D": Meaning(_WAIT, "there is no such database", "Is its name in the URL right?"),
    "3F": Meaning(_REFUSE, "there is no such schema", _WRONG),
    "40": Meaning(_REPEAT, "a transaction was rolled back"),
    "42": Meaning(_REFUSE, "a statement does not fit the schema", _WRONG),
    "44": Meaning(_REFUSE, "a view's check is violated", _WRONG),
    "53": Meaning(_WAIT, "it has no resources left"),
    "54": Meaning(_REFUSE, "that is more than it can do at once"),
    "55": Meaning(_REFUSE, "an object is in a wrong state", _WRONG),
    "57": Meaning(_WAIT, "an administrator has intervened"),
    "58": Meaning(_WAIT, "its operating system reports an error", "Look at the server's log."),
    "72": Meaning(_REPEAT, "a snapshot failed"),
    "F0": Meaning(_WAIT, "its configuration is wrong", "Look at the server's log."),
    "HV": Meaning(_REFUSE, "a foreign table failed"),
    "P0": Meaning(_REFUSE, "a function or trigger refused it"),
    "SQ": Meaning(_REFUSE, "a function of the journal refused it", _WRONG),
    "XX": Meaning(_WAIT, "it has an internal error", "Look at the server's log."),
}

_UNKNOWN = Meaning(_REFUSE, "it reports an error that is not known here")
_NOT_ANSWERED = Meaning(_REFUSE, "the client library does not send that")

# A row of this key was written by another session, or by our own lost try, while this one waited for it.
_FIRST_WINS = frozenset({"journal_commits_pkey", "backlog_pkey", "backlog_key"})


def meaning(sqlstate: str | None, constraint: str | None = None) -> Meaning:
    """Return what an error of the database means. None is an error without a code: the database was not asked."""
    if sqlstate is None:
        return _NOT_ANSWERED
    if sqlstate == "23505" and constraint in _FIRST_WINS:
        return _CODES[BEGIN_AGAIN]
    return _CODES.get(sqlstate) or _CLASSES.get(sqlstate[:2]) or _UNKNOWN
