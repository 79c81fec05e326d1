"""The reference of the `squid` command, from its code: `python -m squid_dagster.cli.reference > docs/cli.md`."""

import re
import sys
from collections.abc import Iterator

import click

from squid_dagster.cli import main

_HEAD = """\
# The `squid` command

<!-- Written by `python -m squid_dagster.cli.reference > docs/cli.md`; do not edit. -->

Every command takes `--help`. With `--json` a command prints one JSON document (commands that follow something: one per
line) and nothing else on stdout; its keys are stable, times are ISO 8601 with a zone, and secrets are redacted.

Which journal a command works on: [`SQUID_DATABASE_URL`, else `DATABASE_URL`, else an embedded
Postgres](../README.md#where-the-journal-is), unless `--data-dir` names one; `squid quickstart` always takes an embedded
one. Workflows come from modules, named by `-m` or, with blanks between them, by `SQUID_MODULES`; a module of the
current directory is found, as `python -m` finds it.

## Exit codes

| code | meaning |
|---|---|
| 0 | done |
| 1 | refused because of how things stand, or something was found that is not well; or an unforeseen error |
| 2 | bad input: nothing was changed |
| 3 | not found |
| 4 | no database that can be used |
| 130 | interrupted |
| 141 | the output could not be written: the reader went away, or stdout is closed or full |

An error is one line on stderr; with `--json` it is `{"error": ..., "message": ..., "exit_code": ...}`.
`SQUID_DEBUG=1` shows the traceback before it. What modules and steps print goes to stderr with `--json`.

For people, times are in UTC. On a terminal, or where `COLUMNS` says how wide it is, tables are made to fit: ids are
never cut, less important columns are left out, and times lose their year and seconds. In a pipe everything is shown.
Ids, keys, comments and errors are shown as they are; what would steer a terminal in them, such as an escape sequence,
is shown as an escape.

## Completion

The shell completes commands and options with this line; `zsh_source` and `fish_source` are for the other shells:

```sh
eval "$(_SQUID_COMPLETE=bash_source squid)"
```
"""


def reference() -> str:
    """Return the whole reference as Markdown. Imports every command."""
    with click.Context(main, info_name="squid") as context:
        commands = list(_walk(main, context))
    index = ["## Commands", "", "| command | |", "|---|---|"]
    index += [f"| [`{path}`](#{_anchor(path)}) | {_first(command)} |" for path, command, _ in commands]
    parts = [_HEAD, "\n".join(index), *(_section(path, command, context) for path, command, context in commands)]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _walk(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield all commands below a group, by their full names, in the order of `--help`."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        below = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _walk(command, below)
        else:
            yield below.command_path, command, below


def _section(path: str, command: click.Command, context: click.Context) -> str:
    usage = " ".join([path, *command.collect_usage_pieces(context)])
    lines = [f"### {path}", "", *_text(command), "", "```text", usage, "```"]
    rows = [row for parameter in command.get_params(context) if (row := _row(parameter, context)) is not None]
    if rows:
        lines += ["", "| option | |", "|---|---|", *rows]
    return "\n".join(lines)


def _text(command: click.Command) -> list[str]:
    """Return a command's help as paragraphs; a paragraph that click must not wrap stays a block."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", (command.help or "").partition("\f")[0].strip()):
        if paragraph.startswith("\b"):
            block = [line.rstrip() for line in paragraph.split("\n")[1:]]
            lines += ["```text", *block, "```", ""]
        else:
            lines += [" ".join(paragraph.split()), ""]
    return lines[:-1]


def _first(command: click.Command) -> str:
    """Return the first sentence of a command's help."""
    text = " ".join((command.help or "").strip().split("\n\n")[0].split())
    return _cell(text.partition(". ")[0].rstrip("."))


def _row(parameter: click.Parameter, context: click.Context) -> str | None:
    """Return the row of one option; None for arguments, which the usage and the text describe."""
    record = parameter.get_help_record(context)
    if record is None or isinstance(parameter, click.Argument) or "--help" in parameter.opts:
        return None
    option, text = record
    return f"| `{_cell(option)}` | {_cell(text)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _anchor(path: str) -> str:
    return path.replace(" ", "-")


if __name__ == "__main__":
    sys.stdout.write(reference())
