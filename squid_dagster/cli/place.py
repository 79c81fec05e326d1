"""Which journal a command works on, and with which workflows: the options that nearly all commands share."""

import functools
import os
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


@dataclass(frozen=True, slots=True)
class Place:
    """What the command line says about the journal and the workflows; the rest is said by the environment."""

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
        """Collect the workflows of the modules; none where none was named. Raises as `load_workflows`."""
        from squid_dagster.workflow.loader import load_workflows

        if self.modules and "" not in sys.path:
            sys.path.insert(0, "")  # modules of the directory at hand, as `python -m` finds them
        return load_workflows(list(self.modules)) if self.modules else []

    @contextmanager
    def squid(
        self, resources: "Mapping[str, object] | None" = None, wait: timedelta | None = timedelta(0)
    ) -> "Iterator[Squid]":
        """Open the journal with the workflows of the modules, and what their steps ask for.

        Waits as `open_journal`; raises as that and `Squid`.
        """
        from squid_dagster.api import Squid

        workflows = self.workflows()
        with self.storage(wait) as storage:
            squid = Squid(storage, workflows, resources=resources)
            try:
                yield squid
            finally:
                squid.close()


def data_dir_option(command: _Command) -> _Command:
    """Add `--data-dir`."""
    return click.option("--data-dir", type=Directory(), help="The embedded server of this directory.")(command)


def schema_option(command: _Command) -> _Command:
    """Add `--schema`."""
    told = "The schema of the journal.  [default: squid]"
    return click.option("--schema", envvar="SQUID_SCHEMA", show_envvar=True, callback=name_option, help=told)(command)


def on_journal(command: _Command) -> _Command:
    """Add `--json`, `--schema` and `--data-dir`; the command is called with a `place` beside its own parameters."""
    return cast("_Command", _placed(command, with_modules=False))


def with_workflows(command: _Command) -> _Command:
    """As `on_journal`, and `-m/--module` for the modules that hold the workflows."""
    return cast("_Command", _placed(command, with_modules=True))


def _placed(command: Any, *, with_modules: bool) -> Any:
    @functools.wraps(command)
    def placed(*args: Any, schema: str | None, data_dir: Path | None, module: tuple[str, ...] = (), **more: Any) -> Any:
        return command(*args, place=Place(schema, data_dir, module), **more)

    placed = schema_option(data_dir_option(json_option(placed)))
    if with_modules:
        told = (
            "A module that holds workflows, by its dotted name; may be given more than once (in the variable with "
            "blanks between them)."
        )
        option = click.option(
            "-m", "--module", multiple=True, envvar="SQUID_MODULES", show_envvar=True, metavar="MODULE", help=told
        )
        placed = option(placed)
    return placed
