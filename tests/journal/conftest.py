"""Every adapter of the storage contract and both versions of dispatch, so that one suite runs them all."""

import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Answer, DispatchStore
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.journal.fold_store.dispatch_store import FoldDispatchStore
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.dispatch.dispatch_store import PostgresDispatchStore
from squid_dagster.journal.postgres.dispatch.settle_fast import settle_fast
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.facts import T0
from tests.journal.access import LossyProxy, Opener
from tests.journal.dispatch_fixture import DispatchFixture
from tests.scratch import SCRATCH

_shared = count(1)


def _storage(name: str, clock: VirtualClock, request: pytest.FixtureRequest) -> Storage:
    match name:
        case "memory":
            return MemoryStorage(clock)
        case "memory, thread by thread":
            return MemoryStorage(clock, atomic_across_threads=False)
    postgres = request.getfixturevalue("postgres_virtual")
    assert isinstance(postgres, PostgresStorage)
    return postgres


@pytest.fixture(params=["memory", "memory, thread by thread", "postgres"])
def storage(request: pytest.FixtureRequest, clock: VirtualClock) -> Storage:
    """An empty journal, in every adapter."""
    return _storage(request.param, clock, request)


@pytest.fixture(params=["fold on memory", "fold on memory, thread by thread", "fold on postgres", "postgres"])
def dispatch(request: pytest.FixtureRequest, clock: VirtualClock) -> DispatchFixture:
    """An empty journal with a dispatch store, in every combination."""
    storage = _storage(request.param.removeprefix("fold on "), clock, request)
    set_based = request.param == "postgres"
    return DispatchFixture(storage, dispatch_store(storage) if set_based else FoldDispatchStore(storage), clock)


@pytest.fixture
def postgres_dispatch(postgres_virtual: PostgresStorage, clock: VirtualClock) -> DispatchFixture:
    """An empty journal with the set-based dispatch store."""
    return DispatchFixture(postgres_virtual, PostgresDispatchStore(postgres_virtual), clock)


def dispatch_store(storage: Storage) -> DispatchStore:
    """Return the dispatch store that fits the storage best."""
    return PostgresDispatchStore(storage) if isinstance(storage, PostgresStorage) else FoldDispatchStore(storage)


@pytest.fixture
def fast_counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many members of each group took the fast way of a settlement."""
    counts: list[int] = []

    def counting(*arguments: Any) -> dict[int, Answer]:
        try:
            answers = settle_fast(*arguments)
        except Exception:
            counts.append(0)
            raise
        counts.append(len(answers))
        return answers

    monkeypatch.setattr(f"{PostgresDispatchStore.__module__}.settle_fast", counting)
    return counts


@pytest.fixture
def lossy_proxy(postgres_url: str) -> Iterator[LossyProxy]:
    """A proxy to the server that can lose an answer."""
    made = LossyProxy(postgres_url)
    yield made
    made.close()


@pytest.fixture
def behind_lossy_proxy(lossy_proxy: LossyProxy, postgres_virtual: PostgresStorage) -> Iterator[PostgresStorage]:
    """The same journal as `postgres_virtual`, reached through the proxy."""
    storage = PostgresStorage(lossy_proxy.url, postgres_virtual.schema, clock=postgres_virtual.clock)
    yield storage
    storage.close()


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedPostgres]:
    """A server that a module may stop, start and configure as it likes."""
    with tempfile.TemporaryDirectory(prefix="squid-own-", dir=SCRATCH) as directory:
        Path(directory).chmod(0o755)
        server = EmbeddedPostgres(Path(directory) / "postgres")
        server.ensure_running()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(scope="module")
def postgres_shared(postgres_url: str) -> Iterator[PostgresStorage]:
    """A journal on Postgres that the tests of a module share, for what needs no empty one."""
    storage = PostgresStorage(postgres_url, f"shared{next(_shared)}", clock=VirtualClock(T0))
    storage.upgrade()
    yield storage
    storage.close()


@pytest.fixture(scope="module")
def journal(postgres_url: str, schema_names: Iterator[str]) -> Iterator[PostgresStorage]:
    """A journal by the database's own clock for all examples of a module: each example deletes its contents."""
    storage = PostgresStorage(postgres_url, next(schema_names))
    storage.upgrade()
    yield storage
    storage.close()


@pytest.fixture
def open_storage(postgres_url: str, schema: str) -> Iterator[Opener]:
    """A function that opens a journal without a schema, by default on the shared server; all are closed at the end."""
    opened: list[PostgresStorage] = []

    def open_(url: str = postgres_url, name: str = schema, **options: Any) -> PostgresStorage:
        opened.append(PostgresStorage(url, name, **options))
        return opened[-1]

    yield open_
    for storage in opened:
        storage.close()
