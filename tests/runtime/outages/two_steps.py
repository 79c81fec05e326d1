"""A workflow of two steps that counts its calls, and the warnings of a worker."""

import threading
from collections import Counter
from datetime import timedelta

import pytest
from pydantic import BaseModel

from squid_dagster.workflow import StepContext, Workflow
from tests.runtime.workers import PATIENCE

OFTEN = timedelta(milliseconds=100)


class Item(BaseModel):
    """A number."""

    n: int = 0


class Steps:
    """A workflow of two steps, of which the first waits; counts calls."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.releases: list[threading.Event] = [threading.Event() for _ in range(100)]
        self.workflow = Workflow("two", payload=Item)

        @self.workflow.step
        def first(ctx: StepContext, n: int) -> int:
            self.calls[f"{ctx.run_id}:first"] += 1
            self.releases[n].wait(PATIENCE)
            return n

        @self.workflow.step(after=first)
        def second(ctx: StepContext, first: int) -> int:
            self.calls[f"{ctx.run_id}:second"] += 1
            return first


def warnings(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """Return the warnings that contain a text."""
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]
