"""Servers, started once and shared: one embedded Postgres for the whole session, one schema per test.

Also the profile of property tests, and the list of helpers whose assertions pytest rewrites.
"""

import os
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.facts import T0
from tests.scratch import SCRATCH

pytest.register_assert_rewrite(
    "tests.journal.access",
    "tests.journal.dispatch_fixture",
    "tests.journal.query_plans",
    "tests.plan_states",
    "tests.protocol.fold_assertions",
    "tests.rules",
)

SERVER_VARIABLE = "SQUID_TEST_DATABASE_URL"  # a server to use instead of one of our own

# Spark's machines live for seconds here: the compiler that makes the fastest code would take longer than it saves.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Files of tests, and of the programs that they start, are where those of the server are.
os.environ["TMPDIR"] = tempfile.tempdir = SCRATCH

# xdist passes the width of the terminal on to its workers; what is printed here is for pipes.
os.environ.pop("COLUMNS", None)

# Under SQUID_MUTANTS every run uses the same examples and stops at the first failure, unshrunk. With CI=true the
# examples are the same, too, as is Hypothesis' default: the change alone decides. Elsewhere each run draws new ones.
_MUTANTS = bool(os.environ.get("SQUID_MUTANTS"))
_CI = os.environ.get("CI") == "true"
settings.register_profile(
    "squid",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=_MUTANTS or _CI,
    database=None if _MUTANTS or _CI else settings.get_profile("default").database,
    phases=(Phase.explicit, Phase.generate) if _MUTANTS else tuple(Phase),
)
settings.load_profile("squid")


# Longest first: of two processes, neither is to wait in the end for a file that the other has just begun.
_LONG = (
    "tests/spark/test_checks.py",
    "tests/spark/test_cluster.py",
    "tests/plugin/processes/test_storage_loss.py",
    "tests/recovery/test_windows.py",
    "tests/simulation/",
    "tests/spark/",
    "tests/plugin/",
    "tests/backlog/",
    "tests/cli/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the longest files to the front."""
    items.sort(key=lambda item: next((i for i, name in enumerate(_LONG) if item.nodeid.startswith(name)), len(_LONG)))


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL of a server of our own, in a directory that any user can traverse and that is gone afterwards.

    Thousands of schemas are created in it, and none outlives the tests: so it does not wait for the disk, and its log
    holds no whole pages. A crash of the server's processes loses nothing by that.
    """
    if SERVER_VARIABLE in os.environ:
        yield os.environ[SERVER_VARIABLE]
        return
    with tempfile.TemporaryDirectory(prefix="squid-tests-", dir=SCRATCH) as directory:
        Path(directory).chmod(0o755)
        server = EmbeddedPostgres(Path(directory) / "postgres")
        try:
            from tests.journal.access import plain_url  # its assertions are rewritten, as registered above

            url = server.ensure_running()
            with psycopg.connect(plain_url(url), autocommit=True) as connection:
                for setting in ("fsync = off", "full_page_writes = off", "max_wal_size = '1GB'", "jit = off"):
                    connection.execute(f"ALTER SYSTEM SET {setting}")
                connection.execute("SELECT pg_reload_conf()")
            yield url
        finally:
            server.stop()


@pytest.fixture
def clock() -> VirtualClock:
    """A clock that moves only when told to, for the storage under test."""
    return VirtualClock(T0)


@pytest.fixture(scope="session")
def schema_names() -> Iterator[str]:
    """Names of schemas that no other test uses."""
    return (f"t{os.getpid()}_{number}" for number in count(1))


@pytest.fixture
def schema(schema_names: Iterator[str]) -> str:
    """A schema name that no other test uses."""
    return next(schema_names)


@pytest.fixture
def postgres(postgres_url: str, schema: str) -> Iterator[PostgresStorage]:
    """A migrated journal on Postgres, by the database's own clock."""
    storage = PostgresStorage(postgres_url, schema)
    storage.upgrade()
    yield storage
    storage.close()


@pytest.fixture
def postgres_virtual(postgres_url: str, schema: str, clock: VirtualClock) -> Iterator[PostgresStorage]:
    """A migrated journal on Postgres, by a virtual clock."""
    storage = PostgresStorage(postgres_url, schema, clock=clock)
    storage.upgrade()
    yield storage
    storage.close()
