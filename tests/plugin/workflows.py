"""Workflows for the tests of the plugin, and the few things that all of them do with a Dagster job."""

from datetime import timedelta
from typing import Any, NoReturn

import dagster as dg
from pydantic import BaseModel, Field

from squid_dagster.api import Squid
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.plugin.resource import SquidResource
from squid_dagster.workflow import Workflow


class Claim(BaseModel):
    account: str = Field(examples=["acc-1"])
    amount: int
    api_token: str = "none"


def claims(version: str | None = "1", *, with_error_route: bool = False) -> Workflow:
    """Return a workflow that reads a claim, waits for an approval, then pays irreversibly."""
    wf = Workflow("claims", payload=Claim, version=version)
    wf.step(name="read")(_read)
    wf.approval("review")
    wf.step(name="pay", irreversible=True)(_nothing)
    wf.step(name="refuse")(_nothing)
    wf.route("read", to="review")
    wf.route("review", to="pay")
    wf.route("review", on="error", to="refuse")
    wf.route("pay", to="complete")
    wf.route("refuse", to="complete")
    if with_error_route:
        wf.step(name="tell")(_nothing)
        wf.route("read", on="error", to="tell")
        wf.route("tell", to="complete")
    return wf


def halted() -> Workflow:
    """Return a workflow that pauses at once until it is resumed."""
    wf = Workflow("halted", version="1")
    wf.pause("stop")
    wf.step(name="go_on")(_nothing)
    wf.route("stop", to="go_on")
    wf.route("go_on", to="complete")
    return wf


def deadly() -> Workflow:
    """Return a workflow of one step that is delivered once, and then given up."""
    wf = Workflow("deadly", version="1")
    wf.step(name="kill", max_deliveries=1)(_nothing)
    wf.route("kill", to="complete")
    return wf


def failing() -> Workflow:
    """Return a workflow of one step that fails for good."""
    wf = Workflow("failing", version="1")
    wf.step(name="break_down")(_fail)
    wf.route("break_down", to="complete")
    return wf


def every() -> list[Workflow]:
    return [claims(), halted(), deadly(), failing()]


def _read(account: str, amount: int, api_token: str) -> dict[str, Any]:
    return {"account": account, "amount": amount, "api_token": api_token}


def _nothing() -> None:
    """Return at once."""


def _fail() -> NoReturn:
    raise RuntimeError("it broke down")


def launch(
    job: dg.JobDefinition, squid: Squid | SquidResource, config: dict[str, Any] | None = None, **options: Any
) -> dg.ExecuteInProcessResult:
    """Run a job in this process, as the launchpad would, and let it fail if it does."""
    resource = SquidResource.for_testing(squid) if isinstance(squid, Squid) else squid
    op = next(iter(job.graph.node_defs)).name
    given = {"ops": {op: {"config": config}}} if config is not None else {}
    options.setdefault("raise_on_error", False)
    return job.execute_in_process(run_config=given, resources={"squid": resource}, **options)


def failure(result: dg.ExecuteInProcessResult) -> str:
    """Return the text at the top of a failed run, which is the same in the event of the step and of the run."""
    assert not result.success
    (event,) = [event for event in result.all_events if event.is_step_failure]
    data = event.step_failure_data
    assert data.user_failure_data is not None
    assert data.error is not None
    assert (
        data.error.message.strip() == f"dagster._core.definitions.events.Failure: {data.user_failure_data.description}"
    )
    assert data.error.cause is None
    assert data.error.context is None
    return str(data.user_failure_data.description)


def metadata(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    """Return the output metadata of a run's op."""
    assert result.success
    (event,) = [event for event in result.all_events if event.is_successful_output]
    return {name: value.value for name, value in event.step_output_data.metadata.items()}


def count_facts(squid: Squid) -> int:
    """Count everything that the journal holds."""
    storage = squid.journal
    assert isinstance(storage, PostgresStorage)
    return int(storage.rows("SELECT count(*) FROM {schema}.journal_entries")[0][0])


def finish(squid: Squid) -> None:
    """Execute all due attempts."""
    while squid.execute_next() is not None:
        pass


def give_up(squid: Squid, clock: Any, run_id: str) -> str:
    """Expire the one delivery of a `deadly` run, which makes a dead letter; return its key."""
    agent = squid.dispatch_agent()
    assert agent.claim_next("somebody", lease=timedelta(minutes=1)) is not None
    clock.advance(timedelta(minutes=2))
    squid.recover()
    return f"{run_id}:kill:1:1"
