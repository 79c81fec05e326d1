"""Opening a journal to look at runs, or to command them: what differs is what must be known of the workflows.

Looking works without any workflow, and then judges by facts alone: an unknown definition is not a missing one. Commands
execute no step, so the resources that steps ask for need not be there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import click

if TYPE_CHECKING:
    from squid_dagster.api import Squid
    from squid_dagster.cli.place import Place
    from squid_dagster.inspection import Explanation, RunGraph, RunPage, RunSnapshot, TimelineEvent
    from squid_dagster.journal import Storage
    from squid_dagster.journal.contract.queries import JournalQueries
    from squid_dagster.journal.contract.worker_liveness import WorkerLiveness, WorkerRow
    from squid_dagster.workflow.registry import Registry


class Sides(Protocol):
    """The sides of a journal that are looked at."""

    @property
    def queries(self) -> "JournalQueries":
        """Questions about the whole journal."""

    @property
    def liveness(self) -> "WorkerLiveness":
        """Who is alive."""


@dataclass(frozen=True, slots=True)
class Looking:
    """A journal to look at. `registry` is None where no module was named: then nothing is said of definitions."""

    storage: "Storage"
    sides: Sides
    registry: "Registry | None"

    def workers(self) -> "list[WorkerRow]":
        """Give the workers that are alive."""
        from squid_dagster.api import ALIVE_WITHIN

        return self.sides.liveness.workers(ALIVE_WITHIN)

    def list_runs(self, **wanted: Any) -> "RunPage":
        """List runs. Raises as `inspection.list_runs`."""
        from squid_dagster.inspection import list_runs

        return list_runs(self.sides.queries, registry=self.registry, workers=self.workers(), **wanted)

    def inspect(self, run_id: str, at_revision: int | None = None, include_history: bool = False) -> "RunSnapshot":
        """Show a run. Raises as `inspection.inspect_run`."""
        from squid_dagster.inspection import inspect_run

        return inspect_run(
            self.storage,
            run_id,
            now=self.storage.now(),
            registry=self.registry,
            workers=self.workers() if at_revision is None else None,
            at_revision=at_revision,
            include_history=include_history,
        )

    def explain(self, run_id: str) -> "Explanation":
        """Say why a run is where it is. Raises as `inspection.explain_run`."""
        from squid_dagster.inspection import explain_run

        queries, now = self.sides.queries, self.storage.now()
        return explain_run(self.storage, queries, run_id, now=now, registry=self.registry, workers=self.workers())

    def graph(self, run_id: str, at_revision: int | None = None) -> "RunGraph":
        """Show a run as a graph. Raises as `inspection.inspect_run_graph`."""
        from squid_dagster.inspection import inspect_run_graph

        now = self.storage.now()
        return inspect_run_graph(self.storage, run_id, now=now, registry=self.registry, at_revision=at_revision)

    def timeline(self, run_id: str, at_revision: int | None = None) -> "list[TimelineEvent]":
        """Tell a run's story. Raises as `inspection.inspect_run_timeline`."""
        from squid_dagster.inspection import inspect_run_timeline

        return inspect_run_timeline(self.storage, run_id, at_revision=at_revision)


@contextmanager
def looking(place: "Place") -> Iterator[Looking]:
    """Open a journal to look at it, with the workflows of the modules that were named.

    Raises:
        WorkflowsNotLoaded, InvalidWorkflow: a module that cannot be used.
        SquidError: the journal cannot be opened.
    """
    from squid_dagster.runtime.adapters import adapters, definitions
    from squid_dagster.workflow.registry import Registry

    registry = Registry(definitions(place.workflows())) if place.modules else None
    with place.storage() as storage:
        yield Looking(storage, adapters(storage), registry)


def looking_around(squid: "Squid", place: "Place") -> Looking:
    """Look at the journal that one commands."""
    return Looking(squid.journal, squid.runtime, squid.runtime.registry if place.modules else None)


@contextmanager
def commanding(place: "Place") -> "Iterator[Squid]":
    """Open a journal for commands, which execute no step and so need no resources.

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
    """Let whoever lacks a definition be told how to pass it.

    Raises:
        IncompatibleDefinition: as it was raised, and says to pass the module with -m.
    """
    from squid_dagster.protocol.errors import IncompatibleDefinition

    try:
        yield
    except IncompatibleDefinition as error:
        raise IncompatibleDefinition(f"{error}; {pass_module(place)}") from None


def pass_module(place: "Place") -> str:
    """Say how a definition that is missing is made known."""
    given = f"given: {', '.join(place.modules)}" if place.modules else "none was given"
    return f"pass the module that holds it with -m ({given})"


def need_modules(place: "Place", what: str) -> None:
    """Raise `click.UsageError` unless a module was named."""
    if not place.modules:
        raise click.UsageError(f"{what} needs workflows: pass the module that holds them with -m")
