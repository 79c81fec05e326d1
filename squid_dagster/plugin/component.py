"""`SquidComponent`: the definitions of `squid_definitions`, from a `defs.yaml` of a `dg` project.

The YAML names an environment variable, never a URL: values of the YAML are part of the definitions, and Dagster shows
these.
"""

import importlib
import re
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from pydantic import BaseModel, Field

from squid_dagster.limits import MAX_LEASE
from squid_dagster.plugin.definitions import LAUNCH_GRACE_SECONDS, MAX_IN_FLIGHT, squid_definitions
from squid_dagster.plugin.dispatch.job import DrainConfig
from squid_dagster.plugin.dispatch.step_events import Policy
from squid_dagster.plugin.resource import SquidResource
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.workflow.planner.schedule import DEFAULT_QUEUE

_DRAIN = DrainConfig()
_RESOURCE = SquidResource()
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXAMPLE = '''"""Workflows of this project: all of this module can be started from the launchpad of `squid_start`."""

from pydantic import BaseModel

from squid_dagster import StepContext, Workflow


class Greeting(BaseModel):
    name: str = "world"


hello = Workflow("hello", payload=Greeting)


@hello.step
def greet(ctx: StepContext, name: str) -> str:
    ctx.log.info("greeting %s", name)
    return f"Hello, {name}!"
'''


def _doc(description: str, *examples: Any) -> dg.Resolver:
    """Return a resolver with a description, which Dagster puts into the schema; it drops those of pydantic."""
    resolver: dg.Resolver = dg.Resolver.default(description=description, examples=list(examples) or None)
    return resolver


class ProjectionsModel(dg.Resolvable, dg.Model):
    """The options of `projection_definitions`, for the tables that Spark makes of the journal."""

    spark_master: Annotated[
        str,
        _doc("Where Spark runs; one with a token in it belongs into a variable.", "local[2]", "spark://host:7077"),
    ] = "local[*]"
    spark_master_env: Annotated[
        str | None,
        dg.Resolver.passthrough(
            description="The name of the environment variable that holds it instead.", examples=["SPARK_MASTER"]
        ),
    ] = None
    warehouse: Annotated[
        str | None,
        _doc("The tables' directory, by path or URI. Default: SQUID_WAREHOUSE, else beside the embedded server's."),
    ] = None
    history_start: Annotated[
        str | None, _doc("The first day of runs' starts that can be asked for by itself.", "2026-01-01")
    ] = None

    def definitions(self) -> dg.Definitions:
        """Build the definitions. Raises `InvalidArgument` for a secret in YAML."""
        from squid_dagster.plugin.projections import SparkResource, WarehouseResource, projection_definitions

        if ";" in self.spark_master:
            raise InvalidArgument(
                "spark_master says something behind the port, which may be a token: put it into an environment "
                "variable, and write the name as spark_master_env"
            )
        variable = self.spark_master_env
        master = self.spark_master if variable is None else dg.EnvVar(_variable(variable, "spark_master_env"))
        history = {} if self.history_start is None else {"history_start": self.history_start}
        return projection_definitions(
            spark=SparkResource(spark_master=master), warehouse=WarehouseResource(path=self.warehouse), **history
        )


class SquidScaffoldParams(BaseModel):
    """The parameters of `dg scaffold defs`."""

    workflow_modules: list[str] = Field(default=[], description="Modules that hold workflows. None: one is written.")
    database_url_env: str | None = Field(default=None, description="The variable that holds the database URL.")


class SquidScaffolder(dg.Scaffolder[SquidScaffoldParams]):
    """Scaffolder of a `defs.yaml`, and of a module with a small workflow if no module is named."""

    @classmethod
    def get_scaffold_params(cls) -> type[SquidScaffoldParams]:
        """Return the class of the command's parameters."""
        return SquidScaffoldParams

    def scaffold(self, request: dg.ScaffoldRequest[SquidScaffoldParams]) -> None:
        """Write the files; an existing module is not changed."""
        modules = list(request.params.workflow_modules)
        if not modules:
            folder = request.target_path.parent if request.append else request.target_path
            module = folder / "workflows.py"
            if not module.exists():
                module.write_text(_EXAMPLE, "utf-8")
            modules = [_dotted(module, request.project_root)]
        attributes: dict[str, Any] = {"workflow_modules": modules, "queues": [DEFAULT_QUEUE]}
        if request.params.database_url_env is not None:
            attributes["database_url_env"] = _variable(request.params.database_url_env)
        if request.scaffold_format == "python":
            (request.target_path / "component.py").write_text(_python(attributes), "utf-8")
        else:
            dg.scaffold_component(request, attributes)


@dg.scaffold_with(SquidScaffolder)
class SquidComponent(dg.Component, dg.Resolvable, dg.Model):
    """Durable workflows on a Postgres journal: the resource `squid`, jobs, sensors and schedules for some modules.

    For hooks that YAML cannot say (`actor`, `on_message`), subclass it and override `options`.
    """

    workflow_modules: Annotated[
        list[str],
        Field(min_length=1),
        _doc("Dotted names of modules that hold workflows.", ["my_project.workflows"]),
    ]
    queues: Annotated[
        list[str],
        Field(min_length=1),
        _doc("The queues that are worked off here. `default` is meant where none is named, else the first."),
    ] = [DEFAULT_QUEUE]  # noqa: RUF012  pydantic copies it
    # Not resolved: the value of a template would be part of the definitions.
    database_url_env: Annotated[
        str | None,
        dg.Resolver.passthrough(
            description="The name of the environment variable that holds the URL of the journal's Postgres. Default: "
            "SQUID_DATABASE_URL, else DATABASE_URL, else an embedded server.",
            examples=["SQUID_DATABASE_URL"],
        ),
    ] = None
    schema_name: Annotated[str | None, _doc("The schema of the journal's tables. Default: `squid`.")] = None
    lease_seconds: Annotated[
        float,
        Field(gt=0, le=MAX_LEASE.total_seconds()),
        _doc("For how long a claim is held without a heartbeat: the time after which others take over."),
    ] = _RESOURCE.lease_seconds
    max_in_flight: Annotated[int, Field(ge=1), _doc("How many drain runs are alive at most.")] = MAX_IN_FLIGHT
    launch_grace_seconds: Annotated[
        float,
        Field(gt=0, le=MAX_LEASE.total_seconds()),
        _doc("For how long a launched run counts before it has shown itself."),
    ] = LAUNCH_GRACE_SECONDS
    concurrency: Annotated[int, Field(ge=1), _doc("How many steps a drain run runs at a time.")] = _DRAIN.concurrency
    linger_seconds: Annotated[
        float,
        Field(ge=0, le=MAX_LEASE.total_seconds()),
        _doc("How long a drain run stays when nothing is due."),
    ] = _DRAIN.linger_seconds
    events: Annotated[
        Policy,
        _doc("What drain runs log: failures, retries, dead letters and slow steps; every attempt; or nothing."),
    ] = _DRAIN.events
    external_jobs: Annotated[
        list[str],
        _doc("Dotted names of Dagster jobs that steps of kind `dagster_job` name.", ["my_project.jobs.train_model"]),
    ] = []  # noqa: RUF012

    projections: Annotated[
        ProjectionsModel | None,
        _doc("The tables that Spark makes of the journal, with their jobs and checks; `{}` for all defaults."),
    ] = None

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the definitions. Raises as `squid_definitions`, and `InvalidArgument` for an unknown name."""
        defs = squid_definitions(**self.options())
        return defs if self.projections is None else dg.Definitions.merge(defs, self.projections.definitions())

    def options(self) -> dict[str, Any]:
        """Return the arguments for `squid_definitions`; override it with `{**super().options(), ...}`."""
        variable = None if self.database_url_env is None else _variable(self.database_url_env)
        resource = SquidResource(
            url=None if variable is None else dg.EnvVar(variable),
            schema_name=self.schema_name,
            workflow_modules=self.workflow_modules,
            queue=DEFAULT_QUEUE if DEFAULT_QUEUE in self.queues else self.queues[0],
            lease_seconds=self.lease_seconds,
        )
        return {
            "resource": resource,
            "queues": self.queues,
            "max_in_flight": self.max_in_flight,
            "launch_grace_seconds": self.launch_grace_seconds,
            "drain": DrainConfig(concurrency=self.concurrency, linger_seconds=self.linger_seconds, events=self.events),
            "external_jobs": [_job(name) for name in self.external_jobs],
        }


def _variable(name: str, field: str = "database_url_env") -> str:
    """Return the name of a variable. Raises `InvalidArgument`, without the text, for what may be the secret itself."""
    if not _VARIABLE.fullmatch(name):
        raise InvalidArgument(
            f"{field} is not the name of an environment variable: write the name, such as SQUID_DATABASE_URL, "
            "and no URL and no '{{ env.X }}', which would put the credential into the definitions"
        )
    return name


def _job(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    try:
        job = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(
            f"external_jobs names {name!r}, which cannot be imported ({error}): give it as <module>.<job>"
        ) from error
    if not hasattr(job, "name"):
        raise InvalidArgument(f"external_jobs names {name!r}, which is no Dagster job but {type(job).__name__}")
    return job


def _dotted(module: Path, project_root: Path | None) -> str:
    """Return the name by which a module of a project is imported: from its `src`, else from its root."""
    root = project_root or module.parent
    source = root / "src"
    inside = module.relative_to(source if module.is_relative_to(source) else root)
    return ".".join(inside.with_suffix("").parts)


def _python(attributes: dict[str, Any]) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in attributes.items())
    return (
        "import dagster as dg\n\nfrom squid_dagster.plugin import SquidComponent\n\n\n"
        "@dg.component_instance\ndef load(context: dg.ComponentLoadContext) -> SquidComponent:\n"
        f"    return SquidComponent({arguments})\n"
    )
