"""Types of options of many commands: names and directories. A blank text is refused."""

from pathlib import Path
from typing import Any

import click


def name_option(_: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """Read the value of an option as a name.

    Raises:
        click.BadParameter: it is blank, or holds a control character.
    """
    problem = None if text is None else _problem(text)
    if problem is not None:
        raise click.BadParameter(problem, param=parameter)
    return text


class Directory(click.Path):
    """A directory that is there or is to be made, as a `Path`. Unlike click's, an empty text is not the current one."""

    def __init__(self) -> None:
        """Configure click's type."""
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. Raises `click.BadParameter`."""
        if isinstance(value, str) and (problem := _problem(value)) is not None:
            self.fail(problem, param, ctx)
        return super().convert(value, param, ctx)


def _problem(text: str) -> str | None:
    from squid_dagster.protocol.argument_checks import name_problem  # here, for `--help` needs no protocol

    return name_problem(text)
