"""The cluster on disk, and what an earlier server left of itself."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from squid_dagster.journal.embedded import EmbeddedPostgres, wheel
from squid_dagster.journal.embedded.account import account_for
from squid_dagster.protocol.errors import EmbeddedUnavailable
from tests.embedded.conftest import STARTER, Start


@pytest.fixture
def other_process(stopped_server: EmbeddedPostgres) -> Iterator["subprocess.Popen[bytes]"]:
    """A live process of the server's user that has nothing to do with it."""
    uid = account_for(stopped_server.data_dir / "pgdata").uid
    with subprocess.Popen(["sleep", "60"], user=None if uid == os.geteuid() else uid) as process:
        yield process
        process.kill()


def _leave_behind(server: EmbeddedPostgres, pid: int) -> None:
    """Write the files that a server of that pid would leave when it is killed."""
    pgdata, socket_dir = server.data_dir / "pgdata", server.status().socket_dir
    lines = f"{pid}\n{pgdata}\n1700000000\n5432\n{socket_dir}\n\n  0 0\nready\n"
    for path in (pgdata / "postmaster.pid", socket_dir / ".s.PGSQL.5432.lock"):
        path.write_text(lines)
        shutil.chown(path, account_for(pgdata).uid, account_for(pgdata).gid)


def test_a_pid_file_whose_number_now_belongs_to_another_process_does_not_stop_a_start(
    stopped_server: EmbeddedPostgres, other_process: "subprocess.Popen[bytes]"
) -> None:
    _leave_behind(stopped_server, other_process.pid)
    assert stopped_server.stop() is False
    stopped_server.ensure_running()
    assert other_process.poll() is None


def test_a_pid_file_whose_number_belongs_to_a_zombie_does_not_stop_a_start(
    stopped_server: EmbeddedPostgres, other_process: "subprocess.Popen[bytes]"
) -> None:
    os.kill(other_process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, other_process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
    _leave_behind(stopped_server, other_process.pid)
    stopped_server.ensure_running()


@pytest.mark.parametrize("rubbish", ["", "not a number\n", "-1\n", "99999999999999999999\n"])
def test_a_damaged_pid_file_does_not_stop_a_start(stopped_server: EmbeddedPostgres, rubbish: str) -> None:
    (stopped_server.data_dir / "pgdata" / "postmaster.pid").write_text(rubbish)
    stopped_server.ensure_running()


def test_a_server_that_somebody_started_by_hand_is_left_alone(stopped_server: EmbeddedPostgres, home: Path) -> None:
    pgdata, elsewhere = stopped_server.data_dir / "pgdata", home / "elsewhere"
    account = account_for(pgdata)
    elsewhere.mkdir(mode=0o700)
    shutil.chown(elsewhere, account.uid, account.gid)
    postgres = wheel.installed()[18].program("postgres")
    by_hand = (
        f"'{postgres}' -D '{pgdata}' -k '{elsewhere}' -h '' & while [ ! -S '{elsewhere}/.s.PGSQL.5432' ]; do :; done"
    )
    account.run(["/bin/sh", "-c", by_hand], output=subprocess.DEVNULL)
    with pytest.raises(EmbeddedUnavailable, match=r'lock file "postmaster.pid" already exists'):
        stopped_server.ensure_running()
    with psycopg.connect(host=str(elsewhere), user="postgres", dbname="postgres") as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_an_initdb_that_fails_says_why_and_leaves_nothing(data_dir: Path, start: Start) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)); "  # as a disk that is full
    failed = start(f"{limit} {STARTER} p.ensure_running()", data_dir, stderr=subprocess.PIPE)
    _, said = failed.communicate()
    assert f"EmbeddedUnavailable: initdb failed in {data_dir}: " in said
    assert "File too large" in said or "could not" in said
    assert not [path.name for path in data_dir.iterdir() if path.name.startswith("pgdata")]
    EmbeddedPostgres(data_dir).ensure_running()


def test_a_starter_that_dies_in_the_middle_of_initdb_leaves_nothing_that_stops_the_next(
    data_dir: Path, start: Start
) -> None:
    first = start(f"{STARTER} p.ensure_running()", data_dir)
    while not (data_dir / "pgdata.new" / "PG_VERSION").exists():
        assert first.poll() is None
        time.sleep(0.001)
    first.kill()
    assert not (data_dir / "pgdata").exists()
    server = EmbeddedPostgres(data_dir)
    server.ensure_running()
    assert server.status().running
    assert not (data_dir / "pgdata.new").exists()


def test_the_rubbish_of_an_unfinished_cluster_is_removed(data_dir: Path) -> None:
    rubbish = data_dir / "pgdata.new" / "base"
    rubbish.mkdir(parents=True)
    data_dir.chmod(0o711)
    (rubbish / "1").write_text("half")
    EmbeddedPostgres(data_dir).ensure_running()
    assert not (data_dir / "pgdata.new").exists()


def test_a_server_that_cannot_start_shows_the_end_of_its_log(stopped_server: EmbeddedPostgres) -> None:
    configuration = stopped_server.data_dir / "pgdata" / "postgresql.auto.conf"
    before = configuration.read_text()
    configuration.write_text("no_such_setting = 1\n")
    with pytest.raises(
        EmbeddedUnavailable, match=r'did not start: .*unrecognized configuration parameter "no_such_set'
    ):
        stopped_server.ensure_running()
    configuration.write_text(before)
    assert not stopped_server.status().running


def test_a_damaged_cluster_is_named(stopped_server: EmbeddedPostgres) -> None:
    version = stopped_server.data_dir / "pgdata" / "PG_VERSION"
    before = version.read_text()
    version.write_text("?")
    with pytest.raises(EmbeddedUnavailable, match="is damaged"):
        stopped_server.ensure_running()
    version.write_text(before)


def test_a_log_that_grew_too_long_is_dropped_at_the_next_start(stopped_server: EmbeddedPostgres) -> None:
    log = stopped_server.data_dir / "pgdata" / "log" / "postgres-Old.log"
    log.write_bytes(b"")
    os.truncate(log, 9 * 1024 * 1024)
    stopped_server.ensure_running()
    assert not log.exists()


def test_the_cluster_is_durable_and_sorts_by_code_point(server: EmbeddedPostgres) -> None:
    url = server.url.replace("+psycopg", "")
    expected = {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "data_checksums": "on",
        "max_connections": "200",
        "shared_buffers": "128MB",
        "server_encoding": "UTF8",
        "TimeZone": "UTC",
        "listen_addresses": "",
        "log_min_error_statement": "panic",
    }
    with psycopg.connect(url) as connection:
        for name, value in expected.items():
            assert connection.execute("select current_setting(%s)", [name]).fetchone() == (value,)
        collation = "select datcollate, datctype from pg_database where datname = current_database()"
        assert connection.execute(collation).fetchone() == ("C", "C")
