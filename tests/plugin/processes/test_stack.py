"""Dagster's processes as `make dev`, `make demo` and tests run them: what fails is told, and nothing stays behind."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.stack import Stack, StackError
from tests.plugin.processes.daemon import is_running, wait_for
from tests.processes import Child, children
from tests.scratch import SCRATCH


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: the path of a Unix socket has little room."""
    with tempfile.TemporaryDirectory(prefix="squid-stack-", dir=SCRATCH) as made:
        yield Path(made)


def test_a_location_that_cannot_be_loaded_is_told_with_its_error_and_nothing_runs(folder: Path) -> None:
    stack = Stack(folder, "tests.plugin.no_such_location", {})
    with pytest.raises(StackError, match="code process ended with exit code") as raised, stack:
        pass
    assert "No module named 'tests.plugin.no_such_location'" in str(raised.value)
    assert stack.ended() == []


def test_processes_end_when_whoever_started_them_is_killed(folder: Path) -> None:
    with children() as started:
        child = Child("tests.plugin.processes.test_stack", str(folder))
        started.append(child)
        child.wait_for_lines(1)
        assert child.lines, "it did not start"
        pid = int(child.lines[0])
        assert is_running(pid)
        child.process.send_signal(signal.SIGKILL)
        child.end()
        wait_for(lambda: not is_running(pid), Stack(folder, "", {}))


def test_a_signal_that_is_ignored_here_is_not_ignored_there(folder: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    stack = Stack(folder, "tests.plugin.external.definitions", {})
    try:
        stack.start("code")
        os.kill(stack.pid("code"), signal.SIGINT)
        wait_for(lambda: stack.ended() == ["code"], stack, seconds=20)
    finally:
        signal.signal(signal.SIGINT, before)
        stack.close()


if __name__ == "__main__":
    made = Stack(Path(sys.argv[1]), "tests.plugin.external.definitions", {})
    made.start("code")
    print(made.pid("code"), flush=True)
    signal.pause()
