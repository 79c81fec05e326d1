"""A workflow whose step does not end when it is cancelled, for `squid worker -m tests.cli.modules.sleeper`."""

import time
from pathlib import Path

from pydantic import BaseModel

from squid_dagster import StepContext, Workflow

LONGER_THAN_ANY_TEST = 600  # seconds


class Noted(BaseModel):
    """Where a step says that it has begun."""

    directory: str


deaf = Workflow("deaf", payload=Noted)


@deaf.step
def step(ctx: StepContext, directory: str) -> None:
    """Create a file, then sleep on when cancelled."""
    Path(directory, ctx.run_id).touch()
    time.sleep(LONGER_THAN_ANY_TEST)
