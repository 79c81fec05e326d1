"""The `squid` command as a user types it, on a journal of the test's own: in this process, or in one of its own."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner

from squid_dagster.cli import main
from squid_dagster.journal import PostgresStorage
from tests.processes import REPOSITORY

MAIN = "from squid_dagster.cli import main; main(prog_name='squid')"
MODULES = ("-m", "tests.cli.workflows")


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout of a command that went well."""
        assert (self.code, self.out.count("\n")) == (0, 1), self
        return json.loads(self.out)

    def refused(self, code: int, *words: str) -> str:
        """Check that it failed with one line on stderr that holds these words, and printed nothing else."""
        assert (self.code, self.out, self.err.count("\n")) == (code, "", 1), self
        for word in words:
            assert word in self.err, self
        return self.err


class CommandLine:
    """The `squid` command on one journal."""

    def __init__(self, storage: PostgresStorage) -> None:
        """Store the journal; the environment names it, as a user would."""
        self.storage = storage
        url = storage.engine.url.render_as_string(hide_password=False)
        self.environ = {
            "SQUID_DATABASE_URL": url,
            "SQUID_SCHEMA": storage.schema,
            "SQUID_MODULES": "",
            "COLUMNS": "200",
        }

    def __call__(self, *args: object, input: str | None = None) -> Answer:  # noqa: A002  as click calls it
        """Run a command in this process."""
        done = CliRunner(env=self.environ).invoke(main, [str(argument) for argument in args], input=input)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Answer(done.exit_code, done.stdout, done.stderr)

    def process(self, *args: object, **options: Any) -> "subprocess.Popen[str]":
        """Start a command in a process of its own."""
        command = [sys.executable, "-c", MAIN, *map(str, args)]
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        return subprocess.Popen(command, cwd=REPOSITORY, env=os.environ | self.environ, **streams)

    def piped(self, *args: object, **environ: str | None) -> Answer:
        """Run a command in a process of its own.

        Variables are set from then on; None removes one.
        """
        for name, value in environ.items():
            self.environ = {key: before for key, before in self.environ.items() if key != name}
            self.environ |= {} if value is None else {name: value}
        with self.process(*args) as child:
            out, err = child.communicate()
        return Answer(child.returncode, out, err)

    def on_terminal(self, *args: object, columns: int = 80, both: bool = False) -> Answer:
        """Run a command on a terminal of so many columns; stderr is there too, or a pipe."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.environ.pop("COLUMNS", None)
        with self.process(*args, stdout=theirs, stderr=theirs if both else subprocess.PIPE) as child:
            os.close(theirs)
            shown = b""
            while part := _read(ours):
                shown += part
            _, err = child.communicate()
        os.close(ours)
        return Answer(child.returncode, shown.decode().replace("\r\n", "\n"), err or "")

    def facts(self) -> int:
        """Count all facts of the journal."""
        return len(self.storage.read_between(0, 2**62))


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # the other side is closed
        return b""
