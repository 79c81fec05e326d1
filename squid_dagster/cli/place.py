"""Which journal a command works on, and with which workflows: the options that nearly all commands share."""

import functools
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from squid_dagster.cli.app import json_option
from squid_dagster.cli.option_types import Directory, name_option

if TYPE_CHECKING:
    from squid_dagster.api import Squid
    from squid_dagster.journal import PostgresStorage
    from squid_dagster.workflow import Workflow

_Command = TypeVar("_Command", bound=Callable[..., Any])
_ANY_MODULE = " -m MODULE"


@dataclass(frozen=True, slots=True)
class Place:
    """The journal and the workflows that a command line names; what it does not name comes from the environment."""

    schema: str | None = None
    data_dir: Path | None = None
    modules: tuple[str, ...] = ()

    @contextmanager
    def storage(self, wait: timedelta | None = timedelta(0)) -> "Iterator[PostgresStorage]":
        """Open the journal alone. Waits and raises as `open_journal`."""
        from squid_dagster.journal import open_journal

        environ = dict(os.environ)
        if self.data_dir is not None:
            unset = ("SQUID_DATABASE_URL", "DATABASE_URL")
            environ = {name: value for name, value in environ.items() if name not in unset}
            environ["SQUID_DATA_DIR"] = str(self.data_dir.absolute())
        storage = open_journal(schema=self.schema, environ=environ, wait=wait)
        try:
            yield storage
        finally:
            storage.close()

    def workflows(self) -> "list[Workflow]":
        """Load the workflows of the modules; none if no module is named. Raises as `load_workflows`."""
        from squid_dagster.workflow.loader import load_workflows

        if self.modules and "" not in sys.path:
            sys.path.insert(0, "")  # the current directory, where `python -m` looks too
        return load_workflows(list(self.modules)) if self.modules else []

    @contextmanager
    def squid(
        self, resources: "Mapping[str, object] | None" = None, wait: timedelta | None = timedelta(0)
    ) -> "Iterator[Squid]":
        """Open the journal with the workflows of the modules, and the resources of their steps.

        Without a module no definition is known. Waits as `open_journal`; raises as that and `Squid`.
        """
        from squid_dagster.api import Squid

        workflows = self.workflows() if self.modules else None
        with self.storage(wait) as storage:
            squid = Squid(storage, workflows, resources=resources)
            try:
                yield squid
            finally:
                squid.close()

    def command_line(self, command: str) -> str:
        """Return a command with the options for this journal and these modules: to be pasted into the same shell.

        Options that the environment gives are left out. If workflows are needed and none is named, `-m MODULE` stays.
        """
        named = os.environ.get("SQUID_MODULES", "").split()
        if named and list(self.modules) in ([], named):
            command = command.replace(_ANY_MODULE, "")
        elif self.modules:
            command = command.replace(_ANY_MODULE, "".join(f" -m {shlex.quote(name)}" for name in self.modules))
        if self.schema not in (None, os.environ.get("SQUID_SCHEMA")):
            command += f" --schema {shlex.quote(str(self.schema))}"
        return command if self.data_dir is None else f"{command} --data-dir {shlex.quote(str(self.data_dir))}"


def data_dir_option(command: _Command) -> _Command:
    """Add `--data-dir`."""
    return click.option("--data-dir", type=Directory(), help="The embedded server of this directory.")(command)


def schema_option(command: _Command) -> _Command:
    """Add `--schema`."""
    text = "The schema of the journal.  [default: squid]"
    return click.option("--schema", envvar="SQUID_SCHEMA", show_envvar=True, callback=name_option, help=text)(command)


def on_journal(command: _Command) -> _Command:
    """Add `--json`, `--schema` and `--data-dir`; the command is called with a `place` beside its own parameters."""
    return cast("_Command", _placed(command, with_modules=False))


def with_workflows(command: _Command) -> _Command:
    """Add the options of `on_journal`, and `-m/--module` for the modules that hold the workflows."""
    return cast("_Command", _placed(command, with_modules=True))


def _placed(command: Any, *, with_modules: bool) -> Any:
    @functools.wraps(command)
    def wrapper(
        *args: Any, schema: str | None, data_dir: Path | None, module: tuple[str, ...] = (), **parameters: Any
    ) -> Any:
        return command(*args, place=Place(schema, data_dir, module), **parameters)

    placed = schema_option(data_dir_option(json_option(wrapper)))
    if with_modules:
        text = (
            "A module that holds workflows, by its dotted name; may be given more than once (in the variable with "
            "blanks between them)."
        )
        option = click.option(
            "-m", "--module", multiple=True, envvar="SQUID_MODULES", show_envvar=True, metavar="MODULE", help=text
        )
        placed = option(placed)
    return placed
