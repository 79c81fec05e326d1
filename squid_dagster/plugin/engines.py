"""The storages and engines of this process: one per database and schema, shared by all resources.

Nothing is closed before the process (code server, run worker or step) ends. Keys hold the process id, so that a forked
child opens its own and leaves its parent's alone. (`close_all` is for tests.)
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


class Database(NamedTuple):
    """The database and schema of a journal. Never shown: the URL may hold a password."""

    url: str | None
    schema: str | None
    target: str  # what the URL resolves to: equal for all ways to name one database

    def __repr__(self) -> str:
        """Return a text without the URL."""
        return "Database(***)"

    @classmethod
    def resolve(cls, url: str | None, schema: str | None) -> "Database":
        """Resolve which database is meant. Raises `InvalidArgument` or `EmbeddedUnavailable`."""
        tier = resolve_tier(url)
        target = tier.url if isinstance(tier, ServerTier) else str(tier.data_dir)
        return cls(url, schema or os.environ.get("SQUID_SCHEMA") or None, target)


_lock = threading.RLock()
_storages: dict[tuple[int, str, str | None], PostgresStorage] = {}
# With the workflows: while they are referenced, no other object gets their ids.
_squids: dict[tuple[Any, ...], tuple[Squid, tuple[Any, ...]]] = {}


def _after_fork() -> None:
    # A thread of the parent, which does not exist here, may have held it.
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


def storage_of(database: Database) -> PostgresStorage:
    """Return this process's storage, opened once. Raises as `open_journal`; the next call tries again."""
    key = (os.getpid(), database.target, database.schema)
    with _lock:
        if key not in _storages:
            _storages[key] = open_journal(database.url, schema=database.schema)
        return _storages[key]


def close_all() -> None:
    """Close what this process has opened; the next call opens it again. For tests, when nothing is in use."""
    with _lock:
        for key in [key for key in _squids if key[0] == os.getpid()]:
            _squids.pop(key)[0].close()
        for opened in [key for key in _storages if key[0] == os.getpid()]:
            _storages.pop(opened).close()


def cached_squid(database: Database, workflows: Sequence[Any], options: Mapping[str, Any]) -> Squid:
    """Return this process's `Squid` for these workflows, created once. It runs no steps. Raises as `Squid`."""
    ids = tuple(workflow if isinstance(workflow, str) else id(workflow) for workflow in workflows)
    key = (os.getpid(), database.target, database.schema, ids, tuple(sorted(options.items(), key=lambda item: item[0])))
    with _lock:
        if key not in _squids:
            known = _definitions(workflows)
            absent = {name: Absent(name) for definition in known for name in definition.resources}
            squid = Squid(storage_of(database), known if workflows else None, resources=absent, **options)
            _squids[key] = (squid, tuple(workflows))
        return _squids[key][0]


def new_squid(
    database: Database, workflows: Sequence[Any], options: Mapping[str, Any], resources: Mapping[str, object]
) -> Squid:
    """Create a `Squid` that runs steps, on the shared storage. Raises as `Squid`."""
    return Squid(storage_of(database), _definitions(workflows), resources=resources, **options)


def _definitions(workflows: Sequence[Any]) -> list[Definition]:
    return definitions(list(workflows)) if workflows else []


class Absent:
    """Stand-in for a resource where no steps run; any use of it raises."""

    def __init__(self, key: str) -> None:
        """Store the name of the resource."""
        self._key = key

    def __getattr__(self, name: str) -> NoReturn:
        """Raise `MissingResource`."""
        raise MissingResource(f"resource {self._key!r} is there only where steps run, in the job squid_dispatch")

    def __repr__(self) -> str:
        """Return a text with the name of the resource."""
        return f"Absent({self._key!r})"
