"""Entries: facts at their place in the journal, the two forms of an unreadable one, and digests of values."""

import hashlib
import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, NamedTuple

from squid_dagster.protocol.facts import RUN_FACT_TYPES, Fact


class UnknownFact(NamedTuple):
    """A fact of a type that this version does not know, with all its data: a newer version may have written it."""

    type: str
    run_id: str | None
    occurred_at: datetime
    data: dict[str, Any]


class MalformedFact(NamedTuple):
    """A fact that cannot be decoded. It is reported, never replayed."""

    type: str
    run_id: str | None
    occurred_at: datetime
    reason: str
    data: str


StoredFact = Fact | UnknownFact | MalformedFact


def run_of(fact: StoredFact) -> str | None:
    """Return the run that a fact is about, None if it is about no run."""
    if fact.type in RUN_FACT_TYPES or isinstance(fact, UnknownFact | MalformedFact):
        return fact.run_id  # type: ignore[union-attr]  # facts of these types have one
    return None


class Entry(NamedTuple):
    """A fact at its place: a thread, a sequence number there, and a position in the whole journal."""

    thread: str
    seq: int
    position: int
    fact: StoredFact


# The same text for equal JSON values, whatever the order of their keys.
canonical_text = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def digest(value: object) -> str:
    """Return a short digest of a JSON value that does not depend on the order of keys.

    Folds compare digests instead of values, so that a view can recognize a repeat without storing the value.
    """
    return _DIGEST_OF_NONE if value is None else digest_of_text(canonical_text(value))


def digest_of_text(text: str) -> str:
    """Return the digest of a value by its canonical text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


_DIGEST_OF_NONE = digest_of_text(canonical_text(None))  # the result of many steps


def by_run(entries: Iterable[Entry]) -> dict[str | None, list[Entry]]:
    """Group entries by run, each group in the order given. Queue facts are under None."""
    groups: dict[str | None, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(run_of(entry.fact), []).append(entry)
    return groups
