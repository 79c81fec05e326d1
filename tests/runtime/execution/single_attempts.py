"""One attempt of a function, executed as the only step of a workflow."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.workflow import Workflow
from tests.runtime.workers import facts_of, status_of


class Item(BaseModel):
    """A number."""

    n: int = 0


def do(journal: Storage, function: Callable[..., Any], payload: dict[str, Any] | None = None, **options: Any) -> Any:
    """Execute one attempt of a function; give the last fact about it."""
    workflow = Workflow("one", payload=Item)
    workflow.step(name="step", **options)(function)
    squid = Squid(journal, workflow, resources={"box": ["a thing"]})
    run_id = squid.start("one", payload).run_id
    assert squid.execute_next() is not None
    assert status_of(journal, run_id) in ("completed", "failed", "running")
    settled = ("attempt_completed", "attempt_failed", "attempt_released")
    return next(fact for fact in reversed(facts_of(journal, run_id)) if fact.type in settled)
