"""Runs the blocks of one document in order, as a reader would: in one directory, one Python and one shell.

A Python block whose first line names a file is that file; tests among them are run in the end, by pytest. `print(...)`
lines of other blocks are held to the comment behind them. Plain `squid` commands are run in this process, by the same
entry point; everything else by the shell.
"""

import ast
import contextlib
import importlib
import io
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from squid_dagster.cli import main
from tests.docs.blocks import ROOT, RUNNABLE, SHOWN, Block, Command, blocks, words_of
from tests.docs.comparison import fits

UPDATE = "SQUID_UPDATE_DOCS"  # set it to write what was printed into the documents; look at it before you commit it
PATIENCE_SECONDS = 60


@dataclass
class Counted:
    """How many blocks there were, how many of them were run, how many say why not; and commands outside of blocks."""

    blocks: int = 0
    run: int = 0
    skipped: int = 0
    inline: int = 0

    def __str__(self) -> str:
        return f"blocks={self.blocks} run={self.run} skipped={self.skipped} inline={self.inline}"


@dataclass
class Reader:
    """A reader who tries out one document. The current directory and the environment are this process's own."""

    document: str
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "document"})
    tests: list[str] = field(default_factory=list)
    behind: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    counted: Counted = field(default_factory=Counted)

    def read(self) -> Counted:
        """Run all blocks; tell how many."""
        for block in blocks(self.document):
            assert block.language in RUNNABLE | SHOWN, f"{block.place}: a block in {block.language or 'no language'}"
            if block.language in SHOWN:
                assert block.skip is None, f"{block.place}: there is nothing to skip"
                continue
            self.counted.blocks += 1
            if block.skip is not None:
                assert block.skip, f"{block.place} is skipped without a reason"
                self.counted.skipped += 1
            else:
                self.try_out(block)
                self.counted.run += 1
        if self.tests:
            self._shell(f"python -m pytest -q -W error -p no:cacheprovider {' '.join(self.tests)}", "the tests", 0)
        return self.counted

    def try_out(self, block: Block) -> None:
        """Run one block; whatever is not as it is written fails."""
        if block.file is not None:
            self._keep(block, block.file)
        match block.language:
            case "python" if block.file is None:
                self._python(block)
            case "console" | "sh" | "bash":
                *firsts, last = block.commands
                for command in firsts:
                    self._command(block, command, 0)
                self._command(block, last, block.exit_code)
            case "yaml":
                assert yaml.safe_load(block.text) is not None, block.place
            case "json":
                json.loads(block.text)

    # --- Python -----------------------------------------------------------------------------------------------------

    def _keep(self, block: Block, name: str) -> None:
        file = Path(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        before = file.read_text("utf-8") if file.exists() else ""
        file.write_text(before + block.text, "utf-8")
        if file.name.startswith("test_"):
            self.tests += [name] if name not in self.tests else []
        elif file.suffix == ".py":
            sys.modules.pop(file.stem, None)
            importlib.invalidate_caches()
            importlib.import_module(file.stem)

    def _python(self, block: Block) -> None:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile("\n" * block.line + block.text, block.document, "exec"), self.namespace)  # noqa: S102
        self._validate()
        printed = iter(said.getvalue().splitlines())
        for wanted in _promised(block.text):
            assert any(wanted == line for line in printed), (
                f"{block.place}: {wanted!r} was not printed: {said.getvalue()}"
            )

    def _validate(self) -> None:
        """Check what a block has left: locations load, journals are closed."""
        if "defs" in self.namespace:
            import dagster as dg

            dg.Definitions.validate_loadable(self.namespace.pop("defs"))
        for name in ("journal", "squid", "storage"):
            if hasattr(value := self.namespace.pop(name, None), "close"):
                value.close()

    # --- commands ---------------------------------------------------------------------------------------------------

    def _command(self, block: Block, command: Command, code: int) -> None:
        words = words_of(command.text)
        if words[:1] == ["squid"]:
            printed = self._squid(words[1:], block.place, code)
        elif words[:1] == ["export"] and len(words) == 2:
            name, _, value = words[1].partition("=")
            os.environ[name] = value
            return
        elif words[:1] == ["cd"] and len(words) == 2:
            os.chdir(words[1])
            sys.path.insert(0, str(Path.cwd()))  # put back by the monkeypatch of the reader
            return
        elif command.text.rstrip().endswith("&"):
            self._start(command.text)
            return
        else:
            printed = self._shell(command.text, block.place, code)
        if command.shown and not fits(command.shown, printed):
            assert UPDATE in os.environ, f"{block.place}: {command.text} printed\n" + "\n".join(printed)
            _update(block, command, printed)

    def _squid(self, arguments: list[str], place: str, code: int) -> list[str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
            main.main(arguments, prog_name="squid")
        said = out.getvalue() + err.getvalue()
        assert left.value.code == code, f"{place}: squid {shlex.join(arguments)} ended with {left.value.code}: {said}"
        return said.splitlines()

    @staticmethod
    def _shell(text: str, place: str, code: int) -> list[str]:
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail\n{text}"],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == code, f"{place}: {text} ended with {done.returncode}: {said}"
        return said.splitlines()

    def _start(self, text: str) -> None:
        command = ["bash", "-c", f"exec {text.rstrip().removesuffix('&')}"]
        with Path("behind.log").open("ab") as log:
            self.behind.append(subprocess.Popen(command, stdout=log, stderr=log))
        os.environ["WORKER_PID"] = str(self.behind[-1].pid)

    def close(self) -> None:
        """End what goes on in the background."""
        for process in self.behind:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_SECONDS)


def _promised(text: str) -> Iterator[str]:
    """Yield what a snippet says that it prints: the comments behind `print(...)`, outside of functions."""
    lines = text.splitlines()
    todo: list[ast.AST] = [ast.parse(text)]
    positions: list[int] = []
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            positions.append(node.end_lineno or node.lineno)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)
    for line in sorted(positions):
        _, mark, comment = lines[line - 1].rpartition(")  # ")
        if mark:
            yield comment


def _update(block: Block, command: Command, printed: list[str]) -> None:
    """Write into the document what a command has printed now."""
    file = ROOT / block.document
    shown = "".join(f"{line}\n" for line in command.shown)
    now = "".join(f"{line.rstrip()}\n" for line in printed)
    for ours, theirs in (
        (socket.gethostname(), "host-1"),
        (os.environ["SQUID_SCHEMA"], "squid"),
        (os.environ["SQUID_DATA_DIR"], "~/.local/share/squid_dagster"),
        ("(SQUID_DATA_DIR)", "(default)"),
    ):
        now = now.replace(ours, theirs)
    before = f"$ {command.text}\n"
    file.write_text(file.read_text("utf-8").replace(before + shown, before + now.rstrip("\n") + "\n", 1), "utf-8")


@contextlib.contextmanager
def reader(
    document: str, folder: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Reader]:
    """Yield a reader in a folder of its own, with this environment; restore everything afterwards."""
    known = set(sys.modules)
    with monkeypatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        for name in ("SQUID_DATABASE_URL", "DATABASE_URL", "SQUID_MODULES", "KUBERNETES_SERVICE_HOST"):
            patch.delenv(name, raising=False)
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("LOGNAME", "ada")  # who it is that types
        for name, value in environment.items():
            patch.setenv(name, value)
        before = dict(os.environ)
        made = Reader(document)
        try:
            yield made
        finally:
            made.close()
            os.environ.clear()
            os.environ.update(before)
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
