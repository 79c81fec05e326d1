"""The server's life, seen by processes that come, go and are killed."""

import os
import signal
import stat
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, text

from squid_dagster.journal.embedded import EmbeddedPostgres, EmbeddedStatus
from squid_dagster.journal.embedded.account import account_for
from squid_dagster.journal.embedded.deadline import Deadline
from squid_dagster.journal.embedded.locks import locked
from squid_dagster.protocol.errors import EmbeddedUnavailable
from tests.embedded.conftest import STARTER, Start


def connect(server: EmbeddedPostgres) -> "psycopg.Connection[tuple[object, ...]]":
    return psycopg.connect(server.url.replace("+psycopg", ""))


def pid_of(server: EmbeddedPostgres) -> int:
    pid = server.status().pid
    assert pid is not None
    return pid


def postmasters(data_dir: Path) -> set[int]:
    """Return the processes that work on the cluster and are not children of another such process."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").samefile(data_dir / "pgdata"):
                parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return {pid for pid, parent in parents.items() if parent not in parents}


def test_ten_processes_that_start_at_once_share_one_server_and_leave_nothing_half_made(
    data_dir: Path, start: Start
) -> None:
    code = f"{STARTER} p.ensure_running(); print(p.status().pid)"
    processes = [start(code, data_dir) for _ in range(10)]
    pids = [int(process.communicate()[0]) for process in processes]
    assert {process.returncode for process in processes} == {0}
    assert set(pids) == postmasters(data_dir) == {pids[0]}
    assert {path.name for path in data_dir.iterdir()} <= {
        "pgdata",
        "run",
        "start.lock",
        "server.lock",
        "start.log",
        "bin",
    }


def test_the_server_outlives_the_process_group_that_started_it(stopped_server: EmbeddedPostgres, start: Start) -> None:
    code = f"{STARTER} p.ensure_running(); print(p.status().pid, flush=True); import time; time.sleep(60)"
    starter = start(code, stopped_server.data_dir, start_new_session=True)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    assert os.getsid(pid) not in (os.getsid(0), starter.pid)
    os.killpg(starter.pid, signal.SIGKILL)
    starter.wait()
    assert stopped_server.status().pid == pid
    with connect(stopped_server) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_the_server_outlives_a_client_that_is_killed_inside_a_transaction(
    server: EmbeddedPostgres, start: Start
) -> None:
    code = (
        f"{STARTER} import psycopg, time; c = psycopg.connect(p.ensure_running().replace('+psycopg', '')); "
        "c.execute('create table t (n int)'); print('ready', flush=True); time.sleep(60)"
    )
    client = start(code, server.data_dir)
    assert client.stdout is not None
    assert client.stdout.readline() == "ready\n"
    pid = server.status().pid
    client.kill()
    client.wait()
    server.ensure_running()
    assert server.status().pid == pid


def test_the_server_keeps_no_file_of_the_process_that_started_it(stopped_server: EmbeddedPostgres) -> None:
    code = f"import os; os.set_inheritable(1, True); {STARTER} p.ensure_running()"
    # This waits until the pipe is closed by every process that has it.
    subprocess.run(
        [sys.executable, "-c", code, stopped_server.data_dir], stdout=subprocess.PIPE, timeout=30, check=True
    )
    assert stopped_server.status().running


def test_what_was_committed_survives_the_death_of_the_postmaster(server: EmbeddedPostgres) -> None:
    with connect(server) as connection:
        connection.execute("create table committed (n int)")
        connection.execute("insert into committed values (42)")
    before = pid_of(server)
    os.kill(before, signal.SIGKILL)
    server.ensure_running()
    assert pid_of(server) != before
    with connect(server) as connection:
        assert connection.execute("select n from committed").fetchone() == (42,)


def test_a_server_is_not_started_beside_the_last_backends_of_a_dead_one(server: EmbeddedPostgres) -> None:
    with connect(server) as connection:
        backend = connection.info.backend_pid
        os.kill(backend, signal.SIGSTOP)  # it cannot notice that its postmaster dies
        try:
            os.kill(pid_of(server), signal.SIGKILL)
            impatient = EmbeddedPostgres(server.data_dir, timeout=timedelta(milliseconds=300))
            with pytest.raises(EmbeddedUnavailable, match=r"does not answer after 0\.3 s"):
                impatient.ensure_running()
            assert backend in postmasters(server.data_dir)
        finally:
            os.kill(backend, signal.SIGCONT)
    server.ensure_running()


def test_nobody_starts_or_stops_while_another_process_does(stopped_server: EmbeddedPostgres) -> None:
    impatient = EmbeddedPostgres(stopped_server.data_dir, timeout=timedelta(milliseconds=50))
    with locked(stopped_server.data_dir / "start.lock", Deadline(timedelta(0))):
        for act in (impatient.ensure_running, impatient.stop):
            with pytest.raises(EmbeddedUnavailable, match="another process is still starting or stopping"):
                act()
    stopped_server.ensure_running()


def test_a_server_that_hangs_is_reported_in_bounded_time_and_not_doubled(server: EmbeddedPostgres) -> None:
    pid = pid_of(server)
    os.kill(pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(EmbeddedUnavailable, match="does not answer"):
            EmbeddedPostgres(server.data_dir, timeout=timedelta(milliseconds=100)).ensure_running()
        assert time.monotonic() - began < 10
    finally:
        os.kill(pid, signal.SIGCONT)
    server.ensure_running()
    assert server.status().pid == pid


def test_a_server_without_a_free_connection_still_counts_as_running(server: EmbeddedPostgres) -> None:
    connections: list[psycopg.Connection[tuple[object, ...]]] = []
    try:
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            connections.extend(connect(server) for _ in range(201))
        assert server.status().running
        assert server.ensure_running() == server.url
    finally:
        for connection in connections:
            connection.close()


def test_stop_ends_open_sessions_and_every_process_and_keeps_the_data(server: EmbeddedPostgres) -> None:
    with connect(server) as writer:
        writer.execute("create table kept as select 42 as n")
    with connect(server) as idle:
        idle.execute("select 1")
        assert server.stop() is True
        assert postmasters(server.data_dir) == set()
        idle.close()
    assert server.stop() is False
    server.ensure_running()
    with connect(server) as reader:
        assert reader.execute("select n from kept").fetchone() == (42,)


def test_looking_and_stopping_make_nothing(data_dir: Path) -> None:
    server = EmbeddedPostgres(data_dir)
    expected = EmbeddedStatus(running=False, pid=None, major=None, data_dir=data_dir, socket_dir=data_dir / "run")
    assert server.status() == expected
    assert server.stop() is False
    assert not data_dir.exists()


def test_a_directory_that_cannot_be_made_is_an_error_that_names_it(home: Path) -> None:
    (home / "file").write_text("in the way")
    with pytest.raises(EmbeddedUnavailable, match=f"cannot use {home}/file/data: .*SQUID_DATABASE_URL"):
        EmbeddedPostgres(home / "file" / "data").ensure_running()


def test_only_the_owner_reaches_the_socket(server: EmbeddedPostgres) -> None:
    directory = server.status().socket_dir.stat()
    assert stat.S_IMODE(directory.st_mode) == 0o700
    assert directory.st_uid == account_for(server.data_dir / "pgdata").uid
    assert stat.S_IMODE((server.status().socket_dir / ".s.PGSQL.5432").stat().st_mode) == 0o700


def test_a_long_path_gets_a_short_socket_and_leaves_none_behind(home: Path) -> None:
    server = EmbeddedPostgres(home / ("long" * 25) / ("path" * 25))
    engine = create_engine(server.ensure_running())
    with engine.connect() as connection:
        assert connection.execute(text("select 1")).scalar() == 1
    engine.dispose()
    assert not server.status().socket_dir.is_relative_to(home)
    server.stop()
    assert not server.status().socket_dir.exists()


@pytest.mark.parametrize("name", ["one, two", "$HOME `id` \"and' %41+&#?é"])
def test_any_name_of_a_directory_will_do(home: Path, name: str) -> None:
    engine = create_engine(EmbeddedPostgres(home / name).ensure_running())
    with engine.connect() as connection:
        assert connection.execute(text("show data_directory")).scalar() == str(home / name / "pgdata")
    engine.dispose()


def test_postgres_variables_of_the_environment_do_not_lead_astray(
    stopped_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PGHOST": "db.example.com", "PGPORT": "6543", "PGUSER": "alice", "PGDATA": "/nowhere"}.items():
        monkeypatch.setenv(name, value)
    engine = create_engine(stopped_server.ensure_running())
    with engine.connect() as connection:
        assert connection.execute(text("select current_user")).scalar() == "postgres"
    engine.dispose()


def test_the_same_directory_by_another_name_is_the_same_server(home: Path, server: EmbeddedPostgres) -> None:
    (home / "link").symlink_to(server.data_dir)
    assert EmbeddedPostgres(home / "link").ensure_running() == server.url
