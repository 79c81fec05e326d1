"""A code location full of secrets. `python -m tests.plugin.secrets_location` runs its jobs in a process of its own."""

import os
import sys
from typing import Any

import dagster as dg

from squid_dagster.plugin import SquidResource, squid_definitions
from squid_dagster.plugin.dispatch.job import DRAIN_OP
from tests.planted_secrets import workflows

HIDDEN = "told-nobody-about-it"  # the value of SQUID_PAYLOAD_ENDPOINT: no shape and no name gives it away


@dg.op(config_schema={"endpoint": str})
def load() -> None:
    """Fail as a call to another system does."""
    raise RuntimeError("never launched here")


@dg.job(name="load")
def load_job() -> None:
    """Run the op that the external step names."""
    load()


resource = SquidResource(url=dg.EnvVar("SQUID_DATABASE_URL"), schema_name=os.environ.get("SQUID_SCHEMA", "squid"))
defs = squid_definitions(workflows=workflows, resource=resource, external_jobs=[load_job], events="all")


def get(name: str) -> dg.JobDefinition:
    """Return a job by its name; Dagster reconstructs it by this."""
    return defs.resolve_job_def(name)


def run(name: str, op: str, config: dict[str, Any]) -> None:
    """Execute a job as a run worker does, with everything that Dagster stores."""
    job = dg.build_reconstructable_job("tests.plugin.secrets_location", "get", (name,))
    with dg.execute_job(job, dg.DagsterInstance.get(), run_config={"ops": {op: {"config": config}}}) as result:
        print(name, result.success)


def main() -> None:
    """Start runs of every kind, drain them, and evaluate the sensors."""
    for how in ("give", "raise", "fail", "defer"):
        payload = {"endpoint": {"$env": "ENDPOINT"}, "how": how}
        run("squid_start", "squid_start_run", {"workflow": "calling", "payload": payload})
    run("squid_start", "squid_start_run", {"workflow": "calling", "payload": {"how": 5}})
    run("squid_start", "squid_start_run", {"workflow": "outside", "payload": {}})
    run("squid_dispatch", DRAIN_OP, {"linger_seconds": 0})
    run("squid_cancel", "squid_cancel_run", {"run_id": sys.argv[1]})
    with dg.DagsterInstance.get() as instance:
        for name in ("squid_attention_sensor", "squid_dispatch_sensor"):
            context = dg.build_sensor_context(instance, resources={"squid": resource}, definitions=defs)
            print(name, defs.resolve_sensor_def(name).evaluate_tick(context))


if __name__ == "__main__":
    main()
