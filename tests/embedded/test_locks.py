"""The locks that carry the server's life."""

import os
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from squid_dagster.journal.embedded.deadline import Deadline
from squid_dagster.journal.embedded.locks import is_held, locked, release, try_lock
from squid_dagster.protocol.errors import EmbeddedUnavailable


def test_a_lock_that_stays_taken_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    deadline = Deadline(timedelta(milliseconds=30))
    with locked(path, Deadline(timedelta(0))), pytest.raises(EmbeddedUnavailable, match=str(path)):
        locked(path, deadline).__enter__()


def test_a_lock_lives_as_long_as_the_child_that_inherited_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    fd = try_lock(path)
    assert fd is not None
    with subprocess.Popen(["sleep", "60"], pass_fds=[fd]) as child:
        os.close(fd)
        assert is_held(path)
        child.kill()
    assert not is_held(path)


def test_a_released_lock_is_free_though_a_child_inherited_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    fd = try_lock(path)
    assert fd is not None
    with subprocess.Popen(["sleep", "60"], pass_fds=[fd]) as child:
        release(fd)
        assert not is_held(path)
        child.kill()


def test_a_lock_is_not_taken_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        try_lock(tmp_path / "lock")
    assert not (tmp_path / "elsewhere").exists()
