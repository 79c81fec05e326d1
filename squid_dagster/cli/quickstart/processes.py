"""Child processes of a command, each the leader of a process group of its own; none outlives the command.

They are ended by id, with their whole group. A guard process ends them too if the command is killed.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_PATIENCE_SECONDS = 5.0  # Dagster takes ten to shut down, and loses nothing by SIGKILL
_LOOK_SECONDS = 0.05

# Reads "+group" and "-group"; when its stdin ends, it kills every group that was added and not removed.
_GUARD = """\
import os, signal, sys
held = set()
for line in sys.stdin:
    group = int(line[1:])
    held.add(group) if line.startswith("+") else held.discard(group)
for group in held:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""


class Processes:
    """The processes that were started, and their output: a file for each name, in one folder."""

    def __init__(self, logs: Path) -> None:
        """Store the folder for their output; nothing is started."""
        self._logs = logs
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        self._guard: subprocess.Popen[str] | None = None

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str], directory: Path) -> int:
        """Start a process whose output goes to `<name>.log`; return its id.

        Raises:
            OSError: it cannot be started, or the file cannot be written.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        with self.log(name).open("ab") as output:
            process = subprocess.Popen(  # noqa: S603  a command of our own
                command,
                cwd=directory,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started[process.pid] = process
        self._write_to_guard(f"+{process.pid}")
        return process.pid

    def log(self, name: str) -> Path:
        """Return the file that a process writes to."""
        return self._logs / f"{name}.log"

    def last_line(self, name: str) -> str:
        """Return the last line that a process has written, or an empty text."""
        path = self.log(name)
        lines = path.read_text("utf-8", "replace").split("\n") if path.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def ended(self) -> dict[int, int]:
        """Return the exit codes of processes that ended since the last call; kill what is left of their groups."""
        codes = {pid: code for pid, process in self._started.items() if (code := process.poll()) is not None}
        for pid in codes:
            self._end_group(pid, signal.SIGKILL)
            self._forget(pid)
        return codes

    def stop(self) -> None:
        """Terminate all of them: by SIGTERM, and after 5 s by SIGKILL."""
        for pid in self._started:
            self._end_group(pid, signal.SIGTERM)
        ends = time.monotonic() + _PATIENCE_SECONDS
        while self._started and time.monotonic() < ends:
            self.ended()
            time.sleep(_LOOK_SECONDS)
        for pid, process in list(self._started.items()):
            self._end_group(pid, signal.SIGKILL)
            process.wait()
            self._forget(pid)
        if self._guard is not None:
            assert self._guard.stdin is not None  # noqa: S101  it was given a pipe
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None

    @staticmethod
    def _end_group(pid: int, number: signal.Signals) -> None:
        try:
            os.killpg(pid, number)
        except (ProcessLookupError, PermissionError):  # the group is empty
            return

    def _forget(self, pid: int) -> None:
        del self._started[pid]
        self._write_to_guard(f"-{pid}")

    def _write_to_guard(self, line: str) -> None:
        if self._guard is None:
            command = [sys.executable, "-I", "-S", "-c", _GUARD]
            self._guard = subprocess.Popen(  # noqa: S603  a command of our own
                command, stdin=subprocess.PIPE, text=True, start_new_session=True
            )
        assert self._guard.stdin is not None  # noqa: S101  it was given a pipe
        self._guard.stdin.write(f"{line}\n")
        self._guard.stdin.flush()
