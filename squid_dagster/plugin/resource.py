"""`SquidResource`: the journal as a Dagster resource.

It owns nothing: Dagster creates such objects for every tick, step and nested use. Connections belong to the process
(`engines`), so that a thousand ticks share one engine, and a child process never uses its parent's.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import dagster as dg
from pydantic import Field

from squid_dagster.agents import DispatchAgent
from squid_dagster.api import Squid
from squid_dagster.backlog import Backlog
from squid_dagster.journal import Storage
from squid_dagster.journal.contract.dispatch_store import DEFAULT_LEASE
from squid_dagster.journal.tiers import display_url
from squid_dagster.limits import MAX_LEASE
from squid_dagster.plugin.engines import Database, cached_squid, new_squid, storage_of
from squid_dagster.protocol.argument_checks import checks_arguments
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.runtime.adapters import definitions
from squid_dagster.runtime.commands.cloudevents import SOURCE
from squid_dagster.workflow import Workflow
from squid_dagster.workflow.definition import Definition
from squid_dagster.workflow.planner.schedule import DEFAULT_QUEUE

Workflows = Sequence[Workflow | Definition | str]  # objects, or names of modules that hold them
_SECRETS = ("url", "listen_url")


@checks_arguments
class SquidResource(dg.ConfigurableResource[Any]):
    """The journal and its workflows.

    Example:
        `SquidResource(url=dg.EnvVar("SQUID_DATABASE_URL"), workflow_modules=["orders.workflows"])`
    """

    url: str | None = Field(
        default=None,
        description="The Postgres that holds the journal, as dg.EnvVar('SQUID_DATABASE_URL'). None: what the "
        "environment names (SQUID_DATABASE_URL, DATABASE_URL, SQUID_DATA_DIR), else an embedded server.",
    )
    schema_name: str | None = Field(
        default=None, description="The schema of the journal's tables. None: SQUID_SCHEMA, else 'squid'."
    )
    listen_url: str | None = Field(
        default=None, description="Where to LISTEN, if the URL leads to a transaction pooler; as a dg.EnvVar."
    )
    workflow_modules: list[str] = Field(default=[], description="Dotted names of modules that hold workflows.")
    queue: str = Field(default=DEFAULT_QUEUE, description="The queue that is meant where none is named.")
    lease_seconds: float = Field(
        default=DEFAULT_LEASE.total_seconds(),
        gt=0,
        le=MAX_LEASE.total_seconds(),
        description="For how long a claim is held without a heartbeat: the time after which others take over.",
    )
    heartbeat_seconds: float | None = Field(
        default=None,
        gt=0,
        le=MAX_LEASE.total_seconds(),
        description="How often leases are extended while steps run. None: every third of a lease.",
    )

    event_sources: list[str] = Field(
        default=[SOURCE], description="The sources whose CloudEvents `squid.apply_signal` takes."
    )

    _given: ClassVar[Squid | None] = None

    @classmethod
    def for_testing(cls, squid: Squid) -> "SquidResource":
        """Return a resource whose `squid` is that very object, in this process; it is not closed."""
        # Stored on a class: Dagster copies resources by their fields, and a copy has the same class.
        bound = type(cls.__name__, (cls,), {"_given": squid, "__doc__": cls.__doc__, "__module__": cls.__module__})
        resource: SquidResource = bound(queue=squid.runtime.queue, lease_seconds=squid.runtime.lease.total_seconds())
        return resource

    @classmethod
    def _is_dagster_maintained(cls) -> bool:
        return False

    def get_resource_definition(self) -> Any:
        """Return the definition for a code location.

        Raises:
            InvalidArgument: a URL with a password in clear, which every view of the configuration would show.
        """
        for name in _SECRETS:
            value = getattr(self, name)
            if value is not None and "://" in value and display_url(value) != value:
                raise InvalidArgument(
                    f"{name} {display_url(value)!r} holds a credential that Dagster would show to everybody: put it "
                    f"into an environment variable and give {name}=dg.EnvVar('SQUID_DATABASE_URL')"
                )
        return super().get_resource_definition()

    def __repr_args__(self) -> Any:
        """Show the configuration without credentials."""
        for name, value in super().__repr_args__():
            hide = name in _SECRETS and isinstance(value, str) and "://" in value
            yield name, display_url(value) if hide else value

    # --- the journal ----------------------------------------------------------------------------------------------

    @property
    def squid(self) -> Squid:
        """The journal with the workflows of `workflow_modules`, to start, command and inspect runs. Not to be closed.

        Raises:
            StorageUnavailable, EmbeddedUnavailable: the database cannot be reached.
            SchemaOutdated, SchemaTooNew, ForeignSchema: its schema does not fit this code.
            InvalidArgument, InvalidWorkflow, WorkflowsNotLoaded: the configuration cannot be used.
        """
        return self.squid_for()

    @property
    def journal(self) -> Storage:
        """The storage that holds all facts. Raises as `squid`."""
        return self._given.journal if self._given is not None else storage_of(self._database())

    @property
    def backlog(self) -> Backlog:
        """The cards of this journal. Raises as `squid`."""
        return self.squid.backlog

    def dispatch_agent(self, queue: str | None = None) -> DispatchAgent:
        """Return the agent of a queue, or of the default queue. Raises as `squid`."""
        return self.squid.dispatch_agent(queue)

    def squid_for(self, workflows: Workflows = ()) -> Squid:
        """Return the `Squid` of these workflows and those of `workflow_modules`. Not to be closed. Raises as `squid`.

        It runs no steps: the resources of steps raise `MissingResource` when used.
        """
        if self._given is not None:
            return self._given
        return cached_squid(self._database(), (*self.workflow_modules, *workflows), self._options())

    def squid_running(self, workflows: Workflows, resources: Mapping[str, object]) -> Squid:
        """Create a `Squid` whose steps have these resources, on the shared storage. Close it after use.

        With `for_testing`, the workflows and the storage are those of the given one. Raises as `squid`, and:

        Raises:
            MissingResource: a step asks for a resource that is not among them.
        """
        if self._given is not None:
            runtime = self._given.runtime
            merged = {**runtime.resources, **resources}
            known = [*runtime.registry, *definitions(list(workflows))]
            return Squid(runtime.storage, known, resources=merged, queue=runtime.queue, lease=runtime.lease)
        return new_squid(self._database(), (*self.workflow_modules, *workflows), self._options(), resources)

    @property
    def lease(self) -> timedelta:
        """How long a claim is held without a heartbeat."""
        return timedelta(seconds=self.lease_seconds)

    @property
    def heartbeat(self) -> timedelta | None:
        """How often leases are extended; None: every third of a lease."""
        return None if self.heartbeat_seconds is None else timedelta(seconds=self.heartbeat_seconds)

    def _database(self) -> Database:
        return Database.resolve(_plain(self.url), self.schema_name)

    def _options(self) -> dict[str, Any]:
        return {
            "queue": self.queue,
            "lease": self.lease,
            "listen_url": _plain(self.listen_url),
            "event_sources": tuple(self.event_sources),
        }


def _plain(value: str | None) -> str | None:
    """Return the value: outside of an execution an `EnvVar` holds the name of its variable."""
    return value.get_value() if isinstance(value, dg.EnvVar) else value
