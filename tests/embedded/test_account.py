"""Under which user the server runs."""

import os
from pathlib import Path

import pytest

from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.journal.embedded.account import UNPRIVILEGED_ID, Account, account_for
from squid_dagster.protocol.errors import EmbeddedUnavailable
from tests.embedded.conftest import STARTER, OrdinaryPython

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root changes users")


@as_root
def test_a_directory_that_the_server_cannot_reach_is_named_and_left_untouched(home: Path) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(EmbeddedUnavailable, match=f"may not enter {closed}\\. Set SQUID_DATA_DIR"):
        EmbeddedPostgres(closed / "data").ensure_running()
    assert closed.stat().st_mode & 0o777 == 0o700
    assert list(closed.iterdir()) == []


@as_root
def test_data_of_root_are_refused_with_the_remedy(data_dir: Path) -> None:
    (data_dir / "pgdata").mkdir(parents=True)
    with pytest.raises(EmbeddedUnavailable, match=f"chown -R {UNPRIVILEGED_ID}"):
        EmbeddedPostgres(data_dir).ensure_running()


@as_root
def test_root_acts_for_the_owner_of_the_data(tmp_path: Path) -> None:
    os.chown(tmp_path, 12345, 54321)
    assert account_for(tmp_path) == Account(12345, 54321)


def test_a_user_without_a_name_is_told_so() -> None:
    with pytest.raises(EmbeddedUnavailable, match="uid 3999999999 has no entry in /etc/passwd"):
        Account(3999999999, 3999999999).require_name()


def test_an_ordinary_user_can_start_and_stop_the_server(home: Path, ordinary_python: OrdinaryPython) -> None:
    own = home / "own"
    own.mkdir()
    if os.geteuid() == 0:
        os.chown(own, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
    connect = "import psycopg; psycopg.connect(p.url.replace('+psycopg', '')).close(); "
    done = ordinary_python(f"{STARTER} p.ensure_running(); {connect} print(p.stop(), p.status().running)", own / "data")
    assert (done.stdout, done.stderr) == ("True False\n", "")


def test_an_ordinary_user_without_write_permission_is_told_so(home: Path, ordinary_python: OrdinaryPython) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o555)
    done = ordinary_python(f"{STARTER} p.ensure_running()", closed / "data")
    assert f"EmbeddedUnavailable: the embedded Postgres cannot use {closed}/data" in done.stderr
    assert "Permission denied" in done.stderr
    assert "SQUID_DATABASE_URL" in done.stderr


@as_root
def test_an_ordinary_user_is_kept_out_of_the_data_of_another(home: Path, ordinary_python: OrdinaryPython) -> None:
    foreign = home / "data" / "pgdata"
    foreign.mkdir(parents=True)
    done = ordinary_python(f"{STARTER} p.ensure_running()", home / "data")
    assert f"{foreign} belongs to uid 0, this process is uid {UNPRIVILEGED_ID}" in done.stderr


def test_the_server_sees_nothing_of_our_environment(
    stopped_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUID_DATABASE_PASSWORD", "hunter2")
    stopped_server.ensure_running()
    assert b"hunter2" not in Path(f"/proc/{stopped_server.status().pid}/environ").read_bytes()
