"""Child processes for tests: started in the repository, read line by line, and always killed at the end."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent


class Child:
    """A Python module in a process of its own, whose lines are collected as they come."""

    def __init__(self, module: str, *arguments: str, env: dict[str, str] | None = None) -> None:
        """Start the process."""
        self.lines: list[str] = []
        self._news = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=REPOSITORY,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line.strip())
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for_lines(self, count: int, timeout: float = 60) -> None:
        """Wait until so many lines came, or the process has ended."""
        with self._news:
            self._news.wait_for(lambda: len(self.lines) >= count or not self._reader.is_alive(), timeout)

    def kill(self) -> None:
        """Kill it by SIGKILL, and read what it printed before."""
        self.process.kill()
        self.end()

    def end(self, timeout: float = 120) -> int:
        """Wait for the process; return its exit code."""
        code = self.process.wait(timeout)
        self._reader.join(timeout)
        return code

    def errors(self) -> str:
        """Return what it wrote to stderr; only after its end."""
        assert self.process.stderr is not None
        return self.process.stderr.read()


@contextmanager
def children() -> Iterator[list[Child]]:
    """Yield a list for child processes; all of them are killed afterwards."""
    started: list[Child] = []
    try:
        yield started
    finally:
        for child in started:
            child.process.kill()
            child.process.wait()
            child._reader.join()
            for stream in (child.process.stdout, child.process.stderr):
                if stream is not None:
                    stream.close()
