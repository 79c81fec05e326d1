"""The launchpad's forms: the configuration of each command, with a description and a default for each field."""

from collections.abc import Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from squid_dagster.plugin.commands.payloads import example_text
from squid_dagster.workflow.definition import Definition

_STORED = (
    'Dagster stores it as it is typed: name a secret as {"$env": "NAME"}, which is the value of SQUID_PAYLOAD_NAME '
    "in the code location."
)


class CommandConfig(dg.Config):
    """What every command takes."""

    comment: str | None = Field(default=None, description="Why; kept with the command in the run's history.")
    actor: str | None = Field(
        default=None,
        description="Who asks. Dagster does not know its users: what is written here is recorded as it is, with "
        "`actor_source: dagster_launchpad`. Not used where the location names actors by itself.",
    )
    idempotency_key: str | None = Field(
        default=None,
        description="A second command with the same key does nothing and gives the first answer. "
        "Default: the id of the Dagster run, of a re-execution that of the first one.",
    )


class RunCommandConfig(CommandConfig):
    """What a command about one run takes."""

    run_id: str = Field(description="The run, by the id that `squid_start` and the listings show.")


class DecisionConfig(RunCommandConfig):
    """What `squid_approve`, `squid_reject` and `squid_resume` take."""

    step: str | None = Field(
        default=None, description="Only if the run waits at this step: the one that was looked at."
    )


class CancelConfig(RunCommandConfig):
    """What `squid_cancel` takes."""

    cascade: bool = Field(default=False, description="Also cancel the run's open children, and theirs.")


class ReplayConfig(RunCommandConfig):
    """What `squid_replay` takes."""

    allow_irreversible: bool = Field(
        default=False,
        description="Replay although steps that cannot be undone were completed: check by hand what they did.",
    )


class RetryConfig(RunCommandConfig):
    """What `squid_retry` takes."""

    runnable_key: str | None = Field(
        default=None, description="The dead letter, as `<run>:<step>:<visit>:<attempt>`. Default: the only one."
    )


class StartConfig(CommandConfig):
    """What `squid_start` takes; a location's own version of it knows its workflows."""

    workflow: str = Field(description="The name of the workflow to start.")
    payload: dict[str, Any] = Field(default={}, description=f"What the run is started with. {_STORED}")
    trigger: str | None = Field(default=None, description="The trigger to start by. Default: the manual one.")
    queue: str | None = Field(default=None, description="The queue to run on. Default: the one of the resource.")
    priority: int = Field(default=0, description="From -10 to 10; higher goes first.")
    version: str | None = Field(default=None, description="The version of the workflow. Default: the current one.")


def start_config(workflows: Sequence[Definition]) -> type[StartConfig]:
    """Return the configuration of `squid_start` for these workflows: the first is the default, examples are shown.

    The name is a text, not an enumeration: a wrong one makes a run that fails with our message.
    """
    if not workflows:
        return StartConfig
    names = ", ".join(f"`{workflow.name}`" for workflow in workflows)
    examples = "; ".join(f"`{workflow.name}`: `{example_text(workflow.payload)}`" for workflow in workflows)

    class LocationStartConfig(StartConfig):
        """What `squid_start` takes in this location."""

        workflow: str = Field(default=workflows[0].name, description=f"One of {names}.")
        payload: dict[str, Any] = Field(
            default={}, description=f"What the run is started with, for example {examples}. {_STORED}"
        )

    return LocationStartConfig
