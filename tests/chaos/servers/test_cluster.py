"""The servers of chaos themselves: a failover loses no commit, and what a fault leaves behind is undone."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest

from tests.chaos.servers.cluster import Cluster
from tests.journal.access import plain_url
from tests.scratch import SCRATCH


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A primary behind its proxy."""
    with TemporaryDirectory(prefix="squid-chaos-", dir=SCRATCH, ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        with closing(Cluster(Path(folder))) as made:
            yield made


def _write(cluster: Cluster, n: int) -> None:
    with psycopg.connect(plain_url(cluster.url), autocommit=True) as connection:
        connection.execute("INSERT INTO numbers VALUES (%s)", (n,))


def test_a_failover_loses_no_commit_and_leaves_one_primary(cluster: Cluster) -> None:
    with cluster.primary.connect() as connection:
        connection.execute("CREATE TABLE numbers (n integer)")
    for n in range(3):
        _write(cluster, n)
        cluster.fail_over()
    _write(cluster, 3)
    with cluster.primary.connect() as connection:
        assert connection.execute("SELECT n FROM numbers ORDER BY n").fetchall() == [(0,), (1,), (2,), (3,)]
        assert connection.execute("SHOW synchronous_standby_names").fetchone() == ("",)
    assert sum(server.data.exists() for server in cluster._servers[-2:]) == 1


def test_what_a_fault_has_left_behind_is_undone(cluster: Cluster) -> None:
    with cluster.primary.connect() as connection:
        connection.execute("CREATE TABLE numbers (n integer)")
        connection.execute("ALTER ROLE postgres SET default_transaction_read_only = on")
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        connection.execute("SELECT pg_reload_conf()")
    cluster.proxy.swallow()
    cluster.primary.crash()
    cluster.heal()
    _write(cluster, 1)
    with cluster.primary.connect() as connection:
        assert connection.execute("SELECT n FROM numbers").fetchall() == [(1,)]
