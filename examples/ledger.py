"""A system outside the journal, with a database of its own, that steps act on and that records every call.

It stands for a mail server or a bank: it takes an idempotency key, and acts once for each key.
"""

import getpass
import os
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

from squid_dagster import StepContext

LEDGER = "SQUID_DEMO_LEDGER"  # the environment variable that says where it is


def _open(path: str | Path | None = None) -> sqlite3.Connection:
    place = path or os.environ.get(LEDGER) or Path(tempfile.gettempdir()) / f"squid-ledger-{getpass.getuser()}.sqlite"
    ledger = sqlite3.connect(place, timeout=30, isolation_level=None)
    ledger.execute("CREATE TABLE IF NOT EXISTS calls (key TEXT, step TEXT, token INTEGER, pid INTEGER)")
    ledger.execute("CREATE TABLE IF NOT EXISTS effects (key TEXT, step TEXT)")
    return ledger


def call(ctx: StepContext) -> None:
    """Record that a step has begun, also one that never ends."""
    with closing(_open()) as ledger:
        row = (ctx.idempotency_key, ctx.step, ctx.fencing_token, os.getpid())
        ledger.execute("INSERT INTO calls VALUES (?, ?, ?, ?)", row)


def act(ctx: StepContext) -> bool:
    """Record the effect once for the idempotency key. Return whether it was recorded now."""
    with closing(_open()) as ledger:
        ledger.execute("BEGIN IMMEDIATE")
        known = ledger.execute("SELECT 1 FROM effects WHERE key = ?", (ctx.idempotency_key,)).fetchone()
        if known is None:
            ledger.execute("INSERT INTO effects VALUES (?, ?)", (ctx.idempotency_key, ctx.step))
        ledger.execute("COMMIT")
        return known is None


def read(path: Path) -> tuple[Counter[str], Counter[str]]:
    """Return how often each key was called with, and how many effects it has."""
    with closing(_open(path)) as ledger:
        calls: Counter[str] = Counter(row[0] for row in ledger.execute("SELECT key FROM calls"))
        effects: Counter[str] = Counter(row[0] for row in ledger.execute("SELECT key FROM effects"))
        return calls, effects


def callers(path: Path) -> list[tuple[str, int]]:
    """Return key and process of every call so far."""
    with closing(_open(path)) as ledger:
        return [(row[0], row[1]) for row in ledger.execute("SELECT key, pid FROM calls")]
