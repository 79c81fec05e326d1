"""The commands that a document names in its text and tables, and whether `squid` would take them.

They are read as the command line is, with all options, values and choices, up to but not including what they do.
"""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

import click

from squid_dagster.cli import main
from tests.docs.blocks import blocks, read_document, words_of

_FENCE = re.compile(r"^(?P<indent> *)```.*?^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)`(squid(?: [^`]*)?)`(?!`)")
_STANDS_FOR = {"N": "3"}  # a number, where a number is needed


class Inline(NamedTuple):
    """One command, and where it stands."""

    place: str
    text: str


def inline_commands(document: str) -> Iterator[Inline]:
    """Yield the commands that no test runs: those outside of blocks, and those of skipped blocks."""
    for block in blocks(document):
        if block.skip is not None and block.language in ("console", "sh", "bash"):
            plain = (command.text for command in block.commands if words_of(command.text)[:1] == ["squid"])
            yield from (Inline(block.place, text) for text in plain)
    text = _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), read_document(document))
    for match in _CODE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield Inline(f"{document}:{line}", " ".join(match[1].replace("\\|", "|").split()))


def read_command(text: str) -> None:
    """Read a command as `squid` would; the name of a command alone may lack its arguments.

    Raises:
        click.UsageError: it would be refused.
    """
    words = [_STANDS_FOR.get(word, word) for word in shlex.split(text, comments=True)[1:]]
    context = click.Context(main, info_name="squid")
    command: click.Command = main
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, subcommand, words = command.resolve_command(context, words)
        assert subcommand is not None
        command, context = subcommand, click.Context(subcommand, context, info_name=name)
    if words:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(click.exceptions.Exit):  # --help, --version
            command.make_context(context.info_name, words, parent=context.parent)
