"""Faults of the database and of the way to it. Each is over when its function returns, and returns what it did."""

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

import psycopg

from tests.chaos.servers.cluster import Cluster

Fault = Callable[[Cluster, random.Random], str]

_DBA_SETTINGS = (
    ("statement_timeout", "20ms"),
    ("lock_timeout", "5ms"),
    ("idle_in_transaction_session_timeout", "50ms"),
    ("idle_session_timeout", "300ms"),
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_read_only", "on"),
)


def restart_immediately(cluster: Cluster, chance: random.Random) -> str:
    """Stop Postgres without a checkpoint, leave it down for a moment, and start it."""
    cluster.primary.stop_immediately()
    time.sleep(chance.uniform(0.0, 2.0))
    cluster.primary.start()
    return "immediate restart"


def kill_postmaster(cluster: Cluster, chance: random.Random) -> str:
    """Kill the postmaster by SIGKILL, and start it."""
    cluster.primary.crash()
    time.sleep(chance.uniform(0.0, 1.0))
    cluster.primary.start()
    return "kill -9 of the postmaster"


def kill_backend(cluster: Cluster, chance: random.Random) -> str:
    """Kill a session's process, or a helper of the server, by SIGKILL: Postgres ends all sessions and recovers."""
    pids = cluster.primary.processes()[:-1]
    if pids:
        with suppress(ProcessLookupError):
            os.kill(chance.choice(pids), signal.SIGKILL)
    time.sleep(0.1)  # until the postmaster has noticed; `start` then waits for the end of its recovery
    cluster.primary.start()
    return "kill -9 of a backend"


def suspend_postgres(cluster: Cluster, chance: random.Random) -> str:
    """Suspend some processes of Postgres, at times for longer than a lease: of sessions, helpers, the postmaster."""
    pids = cluster.primary.processes()
    hit = chance.sample(pids, min(len(pids), 3))
    for pid in hit:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    time.sleep(chance.uniform(0.5, 4.0))
    for pid in hit:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return f"SIGSTOP of {len(hit)} processes of Postgres"


def _to_backends(cluster: Cluster, chance: random.Random, function: str, seconds: float) -> int:
    """Call a function of Postgres on sessions of clients, again and again for a while."""
    hits = 0
    ends = time.monotonic() + seconds
    with cluster.primary.connect() as connection:
        while time.monotonic() < ends:
            connection.execute(
                f"SELECT {function}(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' "
                "AND pid <> pg_backend_pid() AND random() < 0.4"
            )
            hits += 1
            time.sleep(chance.uniform(0.01, 0.1))
    return hits


def cancel_statements(cluster: Cluster, chance: random.Random) -> str:
    """Cancel whatever sessions are doing, for two seconds."""
    return f"pg_cancel_backend, {_to_backends(cluster, chance, 'pg_cancel_backend', 2.0)} rounds"


def terminate_sessions(cluster: Cluster, chance: random.Random) -> str:
    """Terminate sessions, for a second."""
    return f"pg_terminate_backend, {_to_backends(cluster, chance, 'pg_terminate_backend', 1.0)} rounds"


def hold_rows(cluster: Cluster, chance: random.Random) -> str:
    """Lock the rows of some open runs for a while, at times for longer than a lease, as a session that hangs does."""
    with cluster.primary.connect() as connection, connection.transaction():
        held = connection.execute(
            "SELECT run_id FROM squid.runs WHERE terminal_status IS NULL ORDER BY random() LIMIT 3 "
            "FOR UPDATE SKIP LOCKED"
        ).fetchall()
        time.sleep(chance.uniform(0.5, 5.0))
    return f"{len(held)} rows of runs held"


def cut_connections(cluster: Cluster, chance: random.Random) -> str:
    """Break all connections, several times."""
    for _ in range(chance.randint(1, 5)):
        cluster.proxy.cut()
        time.sleep(chance.uniform(0.05, 0.5))
    return "connections cut"


def swallow_connections(cluster: Cluster, chance: random.Random) -> str:
    """Swallow all connections for a while, without a sign to either end; they stay dead."""
    cluster.proxy.swallow()
    time.sleep(chance.uniform(0.5, 2.0))
    cluster.proxy.resume()
    return "connections swallowed"


def swallow_commits(cluster: Cluster, chance: random.Random) -> str:
    """Swallow connections in the middle of commits: the server gets the COMMIT or not, and its answer gets lost."""
    happened = 0
    for _ in range(chance.randint(2, 6)):
        happened += cluster.proxy.swallow_after(b"COMMIT", delivered=chance.random() < 0.5).wait(1.0)
        cluster.proxy.resume()
    return f"{happened} commits swallowed"


def cut_commits(cluster: Cluster, chance: random.Random) -> str:
    """Break connections in the middle of commits, or anywhere: the server gets the request or not, both ends notice."""
    happened = 0
    for _ in range(chance.randint(2, 6)):
        trigger = b"COMMIT" if chance.random() < 0.7 else chance.randint(1, 20_000)
        happened += cluster.proxy.swallow_after(trigger, delivered=chance.random() < 0.5).wait(1.0)
        cluster.proxy.cut()
        cluster.proxy.resume()
    return f"{happened} commits cut"


def fill_disk(cluster: Cluster, chance: random.Random) -> str:
    """Fill the database's disk for a while; the server may end because of it."""
    if not cluster.disk.limited:
        return ""
    cluster.disk.fill()
    time.sleep(chance.uniform(1.0, 3.0))
    cluster.disk.free()
    cluster.primary.start()
    return "disk full"


def exhaust_connections(cluster: Cluster, chance: random.Random) -> str:
    """Open all connections that the server allows, and terminate other sessions, so that they must connect again."""
    with ExitStack() as held:
        admin = held.enter_context(cluster.primary.connect())
        with suppress(psycopg.Error):
            for _ in range(200):
                held.enter_context(cluster.primary.connect())
        for _ in range(3):
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'squid_dagster'"
            )
            with suppress(psycopg.Error):
                for _ in range(200):
                    held.enter_context(cluster.primary.connect())
        time.sleep(chance.uniform(0.5, 2.0))
    return "connections exhausted"


def set_hostile_defaults(cluster: Cluster, chance: random.Random) -> str:
    """Set defaults of an unkind DBA for new sessions, for a while."""
    chosen = chance.sample(_DBA_SETTINGS, 2)
    with cluster.primary.connect() as connection:
        for name, value in chosen:
            connection.execute(f"ALTER ROLE postgres SET {name} = '{value}'")
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'squid_dagster'"
        )
        time.sleep(chance.uniform(1.0, 2.5))
        for name, _ in chosen:
            connection.execute(f"ALTER ROLE postgres RESET {name}")
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'squid_dagster'"
        )
    return "defaults of the role: " + ", ".join(f"{name}={value}" for name, value in chosen)


def fail_over(cluster: Cluster, _: random.Random) -> str:
    """Kill the primary, and promote its standby."""
    cluster.fail_over()
    return "failover to the standby"


# How often each is drawn, beside the others.
WEIGHTS: dict[Fault, int] = {
    restart_immediately: 3,
    kill_postmaster: 3,
    kill_backend: 3,
    suspend_postgres: 3,
    cancel_statements: 4,
    terminate_sessions: 4,
    hold_rows: 3,
    cut_connections: 4,
    swallow_connections: 2,
    swallow_commits: 4,
    cut_commits: 4,
    fill_disk: 2,
    exhaust_connections: 2,
    set_hostile_defaults: 3,
    fail_over: 2,
}
