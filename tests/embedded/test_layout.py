"""Which directories are used, and which are refused."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from squid_dagster.journal.embedded.account import Account
from squid_dagster.journal.embedded.layout import SOCKET_PATH_MAX_BYTES, Layout
from squid_dagster.protocol.errors import EmbeddedUnavailable

ME = Account(os.geteuid(), os.getegid())


@pytest.fixture
def long(tmp_path: Path) -> Iterator[Layout]:
    layout = Layout(tmp_path / ("long" * 30))
    yield layout
    if layout.socket_dir.is_symlink():
        layout.socket_dir.unlink()
    layout.remove_short_socket_dir()


def test_a_link_in_place_of_the_short_socket_directory_is_refused(long: Layout, tmp_path: Path) -> None:
    long.make_socket_dir(ME)
    long.socket_dir.rmdir()
    long.socket_dir.symlink_to(tmp_path)
    with pytest.raises(EmbeddedUnavailable, match="remove it"):
        long.make_socket_dir(ME)
    with pytest.raises(EmbeddedUnavailable, match="remove it"):
        long.has_trusted_socket_dir(ME)


def test_a_short_socket_directory_that_others_may_enter_is_refused(long: Layout) -> None:
    long.make_socket_dir(ME)
    long.socket_dir.chmod(0o755)
    with pytest.raises(EmbeddedUnavailable, match="drwxr-xr-x"):
        long.has_trusted_socket_dir(ME)


def test_a_socket_directory_of_somebody_else_is_refused(long: Layout) -> None:
    long.make_socket_dir(ME)
    with pytest.raises(EmbeddedUnavailable, match=f"of uid {ME.uid}"):
        long.has_trusted_socket_dir(Account(ME.uid + 1, ME.gid))


def test_the_cluster_of_another_server_is_not_taken_for_a_data_directory(tmp_path: Path) -> None:
    (tmp_path / "PG_VERSION").write_text("15\n")
    with pytest.raises(EmbeddedUnavailable, match="another Postgres"):
        Layout(tmp_path).make_data_dir()


def test_a_socket_path_always_fits() -> None:
    for length in range(1, 120):
        socket = Layout(Path("/" + "é" * length)).socket_dir / ".s.PGSQL.5432"
        assert len(os.fsencode(socket)) <= SOCKET_PATH_MAX_BYTES


def test_the_short_socket_directory_does_not_depend_on_the_environment(
    long: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = long.socket_dir
    for name in ("TMPDIR", "XDG_RUNTIME_DIR", "HOME"):
        monkeypatch.setenv(name, "/elsewhere")
    assert long.socket_dir == before


def test_missing_directories_are_made_closed_and_existing_ones_stay_as_they_are(home: Path) -> None:
    umask = os.umask(0o007)
    try:
        Layout(home / "a" / "b").make_data_dir()
    finally:
        os.umask(umask)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (home, home / "a", home / "a" / "b")]
    expected = 0o711 if os.geteuid() == 0 else 0o700
    assert modes == [0o711, expected, expected]
