"""Connections of this process: one storage, and with it one engine, per database and schema, however many ask.

Nothing here is ever closed: a code server, a run worker or a step process ends, and its connections with it. Entries
carry the process id, so that a forked child makes its own and leaves its parent's alone. (`close_all` is for tests.)
"""

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage, open_journal
from squid_dagster.journal.tiers import ServerTier, resolve_tier
from squid_dagster.runtime.adapters import definitions
from squid_dagster.workflow import MissingResource
from squid_dagster.workflow.definition import Definition


class Place(NamedTuple):
    """Where a journal is: a URL or the configuration's choice, and the schema. Never shown: it may hold a password."""

    url: str | None
    schema: str | None
    target: str  # what the two come to, so that two ways to name one database are one

    def __repr__(self) -> str:
        """Show nothing of it."""
        return "Place(***)"

    @classmethod
    def named(cls, url: str | None, schema: str | None) -> "Place":
        """Find out which database is meant. Raises `InvalidArgument` or `EmbeddedUnavailable`."""
        tier = resolve_tier(url)
        target = tier.url if isinstance(tier, ServerTier) else str(tier.data_dir)
        return cls(url, schema or os.environ.get("SQUID_SCHEMA") or None, target)


_lock = threading.RLock()
_storages: dict[tuple[int, str, str | None], PostgresStorage] = {}
_squids: dict[tuple[Any, ...], tuple[Squid, tuple[Any, ...]]] = {}  # with its workflows: they keep their ids so long


def _after_fork() -> None:
    # Another thread of the parent may have held it.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def storage_of(place: Place) -> PostgresStorage:
    """Give this process's storage there, opened once. Raises as `open_journal`, and tries again the next time."""
    key = (os.getpid(), place.target, place.schema)
    with _lock:
        if key not in _storages:
            _storages[key] = open_journal(place.url, schema=place.schema)
        return _storages[key]


def close_all() -> None:
    """Close what this process has opened; whoever asks again opens it anew. For tests, when nothing is in use."""
    with _lock:
        for key in [key for key in _squids if key[0] == os.getpid()]:
            _squids.pop(key)[0].close()
        for opened in [key for key in _storages if key[0] == os.getpid()]:
            _storages.pop(opened).close()


def cached_squid(place: Place, workflows: Sequence[Any], options: Mapping[str, Any]) -> Squid:
    """Give this process's `Squid` there with these workflows, made once. It runs no steps. Raises as `Squid`."""
    told = tuple(each if isinstance(each, str) else id(each) for each in workflows)
    key = (os.getpid(), place.target, place.schema, told, tuple(sorted(options.items(), key=lambda item: item[0])))
    with _lock:
        if key not in _squids:
            known = _definitions(workflows)
            absent = {name: Absent(name) for each in known for name in each.resources}
            squid = Squid(storage_of(place), known, resources=absent, **options)
            _squids[key] = (squid, tuple(workflows))
        return _squids[key][0]


def new_squid(
    place: Place, workflows: Sequence[Any], options: Mapping[str, Any], resources: Mapping[str, object]
) -> Squid:
    """Give a new `Squid` there that runs steps, on the storage that all share. Raises as `Squid`."""
    return Squid(storage_of(place), _definitions(workflows), resources=resources, **options)


def _definitions(workflows: Sequence[Any]) -> list[Definition]:
    return definitions(list(workflows)) if workflows else []


class Absent:
    """Stands for a resource where no steps run. Whoever uses it is told so."""

    def __init__(self, key: str) -> None:
        """Say which resource it stands for."""
        self._key = key

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse."""
        raise MissingResource(f"resource {self._key!r} is there only where steps run, in the job squid_dispatch")

    def __repr__(self) -> str:
        """Name the resource."""
        return f"Absent({self._key!r})"
