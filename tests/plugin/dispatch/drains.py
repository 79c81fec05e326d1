"""Drain runs for tests: the location that they run in, one run in this process, and one as a process of its own.

As a module it runs the dispatch job in its main thread, on a Dagster instance in a directory, on the journal that the
environment names: `python -m tests.plugin.dispatch.drains DIRECTORY RUN_ID SCHEMA LEASE_SECONDS [LINGER_SECONDS]`.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

import dagster as dg

from squid_dagster.plugin import SquidResource
from squid_dagster.plugin.dispatch.job import DRAIN_OP, DrainConfig, build_dispatch_job
from tests.plugin import drain_workflows
from tests.plugin.conftest import URL_VARIABLE
from tests.runtime.processes import process_deaths

WORKFLOWS = (drain_workflows.quick, drain_workflows.talking, drain_workflows.failing, drain_workflows.holding)
SCHEMA_VARIABLE = "SQUID_PLUGIN_TEST_SCHEMA"


def location(resource: SquidResource, workflows: Sequence[Any] = WORKFLOWS, **options: Any) -> dg.Definitions:
    """Build a location with the dispatch job."""
    resources = options.pop("resources", {})
    job = build_dispatch_job(workflows=workflows, **options)
    return dg.Definitions(jobs=[job], resources={"squid": resource, **resources})


def configured(**fields: Any) -> dg.RunConfig:
    """Return the configuration of a drain run that ends soon after it has nothing to do."""
    return dg.RunConfig(ops={DRAIN_OP: DrainConfig(**{"linger_seconds": 0.3, **fields})})


def drain(
    resource: SquidResource, instance: dg.DagsterInstance, workflows: Sequence[Any] = WORKFLOWS, **fields: Any
) -> dg.ExecuteInProcessResult:
    """Run the dispatch job in this process, until nothing is due."""
    job = location(resource, workflows).resolve_job_def("squid_dispatch")
    return job.execute_in_process(instance=instance, run_config=configured(**fields), raise_on_error=False)


def messages(instance: dg.DagsterInstance, run_id: str) -> list[tuple[int | str, str]]:
    """Read level and text of a run's log."""
    return [(record.level, record.user_message) for record in instance.all_logs(run_id)]


def failure_text(result: dg.ExecuteInProcessResult) -> str:
    """Return the text at the top of a run that failed."""
    data = result.failure_data_for_node(DRAIN_OP)
    assert data is not None
    assert data.user_failure_data is not None
    return data.user_failure_data.description or ""


def metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Return the output metadata of the run."""
    (output,) = [event for event in result.events_for_node(DRAIN_OP) if event.event_type_value == "STEP_OUTPUT"]
    return {key: value.value for key, value in output.step_output_data.metadata.items()}


def in_processes() -> dg.JobDefinition:
    """Build the dispatch job on the multiprocess executor, for the journal that the environment names."""
    resource = SquidResource(url=dg.EnvVar(URL_VARIABLE), schema_name=os.environ[SCHEMA_VARIABLE])
    return location(resource, executor_def=dg.multiprocess_executor).resolve_job_def("squid_dispatch")


def main(directory: str, run_id: str, schema: str, lease_seconds: str, linger_seconds: str = "60") -> None:
    """Run the dispatch job in the main thread, as a run worker does."""
    resource = SquidResource(
        url=dg.EnvVar(URL_VARIABLE), schema_name=schema, lease_seconds=float(lease_seconds), heartbeat_seconds=0.3
    )
    job = location(resource, (*WORKFLOWS, process_deaths.deadly)).resolve_job_def("squid_dispatch")
    config = configured(linger_seconds=float(linger_seconds), grace_seconds=0.2)
    with dg.DagsterInstance.local_temp(directory) as instance:
        job.execute_in_process(instance=instance, run_id=run_id, run_config=config, raise_on_error=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
