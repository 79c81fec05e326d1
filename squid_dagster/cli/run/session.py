"""Opens the `Squid` that a command looks at and commands.

Without a module no definition is known, and runs are judged by facts alone. No command but `squid worker` executes
steps, so the resources that steps ask for need not be there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from squid_dagster.api import Squid
    from squid_dagster.cli.place import Place


@contextmanager
def open_squid(place: "Place") -> "Iterator[Squid]":
    """Open a journal with the workflows of the modules that were named.

    Raises:
        IncompatibleDefinition: a definition is needed that no module has: says to pass it with -m.
        WorkflowsNotLoaded, InvalidWorkflow: a module that cannot be used.
        SquidError: the journal cannot be opened.
    """
    unused = dict.fromkeys(key for workflow in place.workflows() for key in workflow.freeze().resources)
    with naming_modules(place), place.squid(resources=unused) as squid:
        yield squid


@contextmanager
def naming_modules(place: "Place") -> Iterator[None]:
    """Add to an error about a missing definition how to pass it.

    Raises:
        IncompatibleDefinition: as it was raised, and says to pass the module with -m.
    """
    from squid_dagster.protocol.errors import IncompatibleDefinition

    try:
        yield
    except IncompatibleDefinition as error:
        raise IncompatibleDefinition(f"{error}; {pass_module(place)}") from None


def pass_module(place: "Place") -> str:
    """Return how to make a missing definition known."""
    given = f"given: {', '.join(place.modules)}" if place.modules else "none was given"
    return f"pass the module that holds it with -m ({given})"


def need_modules(place: "Place", what: str) -> None:
    """Raise `click.UsageError` unless a module was named."""
    if not place.modules:
        raise click.UsageError(f"{what} needs workflows: pass the module that holds them with -m")
