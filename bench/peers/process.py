"""One process of one system: started with an order, read line by line, and ended if it does not end by itself."""

import json
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import Any

from bench.peers.wire import Order

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 180.0
_TAIL_LINES = 15


class BenchError(Exception):
    """A benchmark that has no figure; the message names the system, and has its last output."""


class Process:
    """A process that executes one order. A `with` block ends it, and waits for that."""

    def __init__(self, command: Sequence[str], order: Order) -> None:
        """Start it in the project's directory."""
        self._name = f"{command[-1]} {order.command}"
        self._messages: Queue[dict[str, Any] | None] = Queue()
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [*command, order.text()],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        self._errors.close()
        # Closing flushes, and the process that reads may have ended.
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            return

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def wait_for(self, event: str, patience_seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """Return the next message of that kind; others before it are skipped.

        Raises:
            BenchError: the process ended, or sent nothing for too long.
        """
        while True:
            try:
                message = self._messages.get(timeout=patience_seconds)
            except Empty:
                raise self._failure(f"said nothing for {patience_seconds:g} s, waited for {event!r}") from None
            if message is None:
                raise self._failure(f"ended before it said {event!r}")
            if message["event"] == event:
                return message

    def ask(self) -> None:
        """Send one line, which requests one more job."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def finish(self) -> None:
        """Close stdin and wait until it ends by itself.

        Raises:
            BenchError: it did not end in time, or with a status other than 0.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            status = self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._failure("did not end") from None
        if status != 0:
            raise self._failure(f"ended with status {status}")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # libraries may print too
                self._messages.put(json.loads(line))
        self._messages.put(None)

    def _failure(self, what: str) -> BenchError:
        self._errors.seek(0)
        tail = "".join(self._errors.readlines()[-_TAIL_LINES:])
        return BenchError(f"{self._name} {what}\n{tail}")
