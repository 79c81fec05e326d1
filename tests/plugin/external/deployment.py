"""A code location with external steps and its Dagster instance, for tests that play the daemon."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import dagster as dg
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.plugin import SquidResource
from squid_dagster.plugin.external.sensor import build_external_sensor
from squid_dagster.workflow import Workflow
from tests.facts import T0
from tests.plugin.external.definitions import ASSETS, JOBS
from tests.runtime.runs import drain

RUN_KEY_TAG = "dagster/run_key"
DONE = "completed"


class Account(BaseModel):
    account: str = "a-1"
    day: str = "2026-01-02"


def config(account: str) -> dict[str, Any]:
    return {"ops": {"train": {"config": {"account": account}}}}


def bad_config(account: str) -> list[str]:
    return [account]


def one_job(**options: Any) -> Workflow:
    workflow = Workflow("learning", payload=Account)
    workflow.external("learn", "dagster_job", **{"job": "train_model", "run_config": config, **options})
    return workflow


class Deployment:
    """A code location with its Dagster instance. `tick` does what the daemon does: evaluate, then launch by run key."""

    cursor: str | None
    instance: dg.DagsterInstance

    def __init__(self, stack: ExitStack, workflow: Workflow, **options: Any) -> None:
        self.stack = stack
        self.clock = VirtualClock(T0)
        self.squid = Squid(MemoryStorage(self.clock), [workflow], random_unit=lambda: 0.0)
        self.wipe()
        self.sensor = build_external_sensor(workflows=[workflow], jobs=JOBS, assets=ASSETS, **options)
        self.definitions = dg.Definitions(
            assets=ASSETS,
            jobs=JOBS,
            sensors=[self.sensor],
            resources={"squid": SquidResource.for_testing(self.squid)},
        )
        self.repository = self.definitions.get_repository_def()

    def evaluate(self) -> list[dg.RunRequest]:
        """Evaluate the sensor as a code server does."""
        with dg.build_sensor_context(
            instance=self.instance,
            repository_def=self.repository,
            cursor=self.cursor,
            resources={"squid": SquidResource.for_testing(self.squid)},
        ) as context:
            data = self.sensor.evaluate_tick(context)
        self.cursor = data.cursor
        return list(data.run_requests or [])

    def launch(self, request: dg.RunRequest) -> str | None:
        """Execute a request, unless Dagster has a run under its key."""
        known = self.instance.get_runs(dg.RunsFilter(tags={RUN_KEY_TAG: request.run_key or ""}))
        if known:
            return None
        job = self.repository.get_job(request.job_name or "")
        tags = {**request.tags, RUN_KEY_TAG: request.run_key or ""}
        done = job.execute_in_process(
            run_config=request.run_config,
            tags=tags,
            partition_key=request.partition_key,
            instance=self.instance,
            raise_on_error=False,
        )
        return done.run_id

    def begin(self, request: dg.RunRequest) -> dg.DagsterRun:
        """Create a run that stays under way."""
        job = self.repository.get_job(request.job_name or "")
        tags = {**request.tags, RUN_KEY_TAG: request.run_key or ""}
        return self.instance.create_run_for_job(
            job, run_config=request.run_config, tags=tags, status=dg.DagsterRunStatus.STARTED
        )

    def tick(self) -> list[str | None]:
        """Evaluate and launch; return the ids of the runs."""
        return [self.launch(request) for request in self.evaluate()]

    def wipe(self) -> None:
        """Replace Dagster's storage by an empty one."""
        self.instance = self.stack.enter_context(dg.DagsterInstance.ephemeral())
        self.cursor = None

    def start(self, **payload: Any) -> str:
        """Start a run, and run workers, which find nothing to claim."""
        run_id = self.squid.start("learning", payload).run_id
        assert self.squid.worker(until_idle=True).claimed == 0
        return run_id

    def status(self, run_id: str) -> str:
        """Run workers until they are idle; return the status of the run."""
        drain(self.squid)
        return self.squid.inspect_run(run_id).status


Deploy = Callable[..., Deployment]
