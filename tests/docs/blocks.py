"""The code blocks of a document: what they hold, where they stand, and what the document says about running them.

A comment right before a block speaks about it: `<!-- skip: reason -->` keeps it from being run, `<!-- exit: 1 -->` says
that its last command ends with that code.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

RUNNABLE = frozenset({"python", "console", "sh", "bash", "yaml", "json", "sql"})
SHOWN = frozenset({"mermaid", "text"})  # pictures, and what something looks like

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
_SAID = re.compile(r"<!--\s*(skip|exit):\s*((?:(?!-->).)*?)\s*-->\s*\Z", re.DOTALL)
_SHELL = re.compile(r"[|&;<>`$()*?~]|\\\n")
_FILE = re.compile(r"# (\S+\.(?:py|yaml|yml|toml))\n")


class Command(NamedTuple):
    """One command of a console block, and the lines that the document shows as its output."""

    text: str
    shown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """One block: `skip` is the reason not to run it, `exit_code` how its last command ends."""

    document: str
    line: int
    language: str
    text: str
    skip: str | None = None
    exit_code: int = 0

    @property
    def place(self) -> str:
        """Where it stands."""
        return f"{self.document}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that it is, as its first line says."""
        match = _FILE.match(self.text)
        return match[1] if match is not None else None

    @property
    def commands(self) -> list[Command]:
        """The commands of a console block; a shell block is one, unless each of its lines is one by itself."""
        if self.language in ("sh", "bash"):
            lines = [line for line in self.text.splitlines() if line and not line.startswith("#")]
            plain = all(line.startswith("squid ") and not line.endswith("\\") for line in lines)
            return [Command(line, ()) for line in lines] if plain else [Command(self.text, ())]
        commands: list[tuple[str, list[str]]] = []
        for line in self.text.rstrip("\n").split("\n"):
            if line.startswith("$ "):
                commands.append((line[2:], []))
            elif commands and not commands[-1][1] and commands[-1][0].endswith("\\"):
                commands[-1] = (f"{commands[-1][0]}\n{line.removeprefix('> ')}", [])
            else:
                assert commands, f"{self.place}: a console block begins with a command"
                commands[-1][1].append(line)
        return [Command(text, tuple(shown)) for text, shown in commands]


def documents() -> list[str]:
    """Name all documents, README first."""
    guides = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", *guides]


def read_document(document: str) -> str:
    """Read a document."""
    return (ROOT / document).read_text("utf-8")


def words_of(command: str) -> list[str]:
    """Split a plain command; nothing for one that the shell has to read."""
    bare = re.sub(r"'[^']*'|\"[^\"$`]*\"", "", command)
    return [] if _SHELL.search(bare.partition(" #")[0]) else shlex.split(command, comments=True)


def blocks(document: str) -> list[Block]:
    """Return the blocks of a document, in order."""
    text = read_document(document)
    blocks_found = []
    for fence in _FENCE.finditer(text):
        comment = _SAID.search(text[: fence.start()])
        said = {} if comment is None else {comment[1]: comment[2]}
        indent = len(fence["indent"])
        body = "".join(line[indent:] for line in fence["text"].splitlines(keepends=True))
        line = text.count("\n", 0, fence.start()) + 1
        exit_code = int(said.get("exit", "0"))
        blocks_found.append(Block(document, line, fence["language"], body, said.get("skip"), exit_code))
    return blocks_found
