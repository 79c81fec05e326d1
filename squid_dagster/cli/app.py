"""Frame of the `squid` command: commands are imported when they are used, and an error is one line on stderr.

Exit codes: 0 done; 1 refused because of how things stand, or something was found that is not well; 2 bad input; 3 not
found; 4 no usable database; 130 interrupted; 141 the output could not be written. A traceback is printed only with
SQUID_DEBUG=1.
"""

import functools
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar, cast

import click

from squid_dagster.cli.terminal.printable_text import printable
from squid_dagster.cli.terminal.streams import OutputClosed, end_stdout, flush, is_unwritable, open_streams, own_stdout

_Command = TypeVar("_Command", bound=Callable[..., Any])

REFUSED, BAD_INPUT, NOT_FOUND, NO_DATABASE, INTERRUPTED, CLOSED = 1, 2, 3, 4, 130, 141


class Refused(click.ClickException):
    """A command that cannot be done as things stand."""

    exit_code = REFUSED


class LazyGroup(click.Group):
    """A group of commands by "module:attribute" and line for `--help`. A command is imported when it is used."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **options: Any) -> None:
        """Store `lazy`: "module:attribute" and line by the command's name. The rest are a click group's arguments."""
        super().__init__(*args, **options)
        self._lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which they were declared."""
        return [*self._lazy, *(name for name in super().list_commands(ctx) if name not in self._lazy)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, name = self._lazy[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)  # noqa: S101  declared by us
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing the lazy ones."""
        rows = []
        for name in self.list_commands(ctx):
            command = None if name in self._lazy else super().get_command(ctx, name)
            rows.append((name, self._lazy[name][1] if command is None else command.get_short_help_str()))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class Root(LazyGroup):
    """The outermost group: every error is one line on stderr, JSON with `--json`, and an exit code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line.

        Raises:
            click.UsageError: an argument is no text, which no command could store or print.
        """
        for argument in args:
            if not is_text(argument):
                raise click.UsageError(f"{argument!r:.80} is not UTF-8: every argument must be")
        return super().parse_args(ctx, args)

    def make_context(self, *args: Any, **options: Any) -> click.Context:
        """Read the command line; `--help` and `--version` print here."""
        with _click_errors():
            return super().make_context(*args, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
        with _click_errors():
            return super().invoke(ctx)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line and exit with its code; without `standalone_mode`, return the command's result."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        open_streams()
        arguments = list(sys.argv[1:] if args is None else args)
        exit_with = _ErrorExit(as_json="--json" in arguments)
        try:
            code = super().main(arguments, prog_name, complete_var, standalone_mode=False, **extra)
            with _click_errors():
                flush()
        except click.exceptions.Exit as asked:
            sys.exit(asked.exit_code)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            exit_with(type(error).__name__, error.format_message(), error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            exit_with.interrupted()
        except OutputClosed as error:
            exit_with.unwritten(error)
        except Exception as error:  # noqa: BLE001  there is never a traceback
            exit_with.failed(error)
        finally:
            if exit_with.as_json:
                end_stdout(discard=False)
        sys.exit(code if isinstance(code, int) else 0)


@contextmanager
def _click_errors() -> Iterator[None]:
    """Raise errors that click handles badly as others: it exits with 1 without a message, or prints an empty line."""
    try:
        yield
    except (KeyboardInterrupt, EOFError) as error:
        raise click.Abort from error
    except OSError as error:
        if not is_unwritable(error):
            raise
        reason = "the reader went away before its end" if isinstance(error, BrokenPipeError) else error.strerror
        raise OutputClosed(reason) from error


class _ErrorExit:
    """Exit of the process after an error: a line on stderr, and the code."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def __call__(self, name: str, message: str, code: int) -> NoReturn:
        from squid_dagster.redaction import redacted_text

        line = printable(" ".join(redacted_text(message).split()))
        document = {"error": name, "message": line, "exit_code": code}
        with suppress(OSError):  # stderr may be full too: the exit code is what is left
            click.echo(json.dumps(document) if self.as_json else f"Error: {line}", err=True)
        sys.exit(code)

    def interrupted(self) -> NoReturn:
        if sys.stderr.isatty():
            click.echo(err=True)  # the terminal has shown ^C on this line
        self("Interrupted", "interrupted", INTERRUPTED)

    def unwritten(self, error: OutputClosed) -> NoReturn:
        end_stdout(discard=True)
        self("OutputClosed", f"the output could not be written: {error}", CLOSED)

    def failed(self, error: Exception) -> NoReturn:
        from squid_dagster.protocol.errors import SquidError

        if os.environ.get("SQUID_DEBUG") == "1":
            import traceback

            from squid_dagster.redaction import redacted_text

            trace = redacted_text("".join(traceback.format_exception(error)))
            click.echo(printable(trace), err=True, nl=False)
        if isinstance(error, SquidError):
            self(type(error).__name__, str(error), _exit_code(error))
        message = f"{type(error).__name__}: {error} (this was not foreseen: SQUID_DEBUG=1 shows where it comes from)"
        self("Unforeseen", message, REFUSED)


def _exit_code(error: Exception) -> int:
    from squid_dagster.protocol import errors
    from squid_dagster.workflow import errors as authoring

    if isinstance(error, errors.NotFound):
        return NOT_FOUND
    bad = errors.InvalidArgument | errors.InvalidFact | errors.InvalidThread | errors.InvalidPayload
    written = authoring.InvalidWorkflow | authoring.InvalidInput | authoring.WorkflowsNotLoaded
    if isinstance(error, bad | written | authoring.MissingResource):
        return BAD_INPUT
    unusable = errors.StorageUnavailable | errors.EmbeddedUnavailable | errors.SchemaOutdated | errors.SchemaTooNew
    if isinstance(error, unusable | errors.ForeignSchema | errors.ViewsMissing | errors.StorageRefused):
        return NO_DATABASE
    return REFUSED


def is_text(value: str) -> bool:
    """Return whether a text can be stored and printed: it holds no NUL, and no byte that was not UTF-8."""
    return "\0" not in value and not any("\ud800" <= character <= "\udfff" for character in value)


def json_option(command: _Command) -> _Command:
    """Add `--json` to a command, as the parameter `as_json`: with it, nothing but the command prints on stdout."""

    @functools.wraps(command)
    def wrapper(*args: Any, as_json: bool, **parameters: Any) -> Any:
        if not as_json:
            return command(*args, as_json=False, **parameters)
        with own_stdout():
            return command(*args, as_json=True, **parameters)

    option = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
    return cast("_Command", option(wrapper))
