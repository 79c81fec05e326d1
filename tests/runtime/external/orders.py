"""A workflow whose step another system does, and the signals of that system."""

from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from squid_dagster import Signal
from squid_dagster.api import Squid
from squid_dagster.runtime.commands.external_outcomes import waiting_externals
from squid_dagster.workflow import StepContext, Workflow
from tests.runtime.runs import drain

MINUTE = timedelta(minutes=1)


class Order(BaseModel):
    day: str = "2026-11-16"
    amount: int = 3


def train_config(ctx: StepContext, amount: int) -> dict[str, Any]:
    return {"ops": {"train": {"config": {"amount": amount, "key": ctx.idempotency_key}}}}


def orders(**options: Any) -> Workflow:
    """Build one external step between two steps of workers."""
    workflow = Workflow("orders", payload=Order)

    @workflow.step
    def load(amount: int) -> int:
        return amount * 2

    workflow.external(
        "train", "dagster_job", job="train_model", run_config=train_config, partition_key_from="day", **options
    )

    @workflow.step
    def publish(train: dict[str, Any]) -> str:
        return str(train["model"])

    @workflow.step
    def apologise() -> None:
        return None

    workflow.route("load", to="train")
    workflow.route("train", to="publish")
    workflow.route("train", on="error", to="apologise")
    workflow.route("publish", to="complete")
    workflow.route("apologise", to="fail")
    return workflow


def started(squid: Squid, workflow: str = "orders") -> tuple[str, str]:
    """Start a run and let it come to its external step; give its id and the attempt that waits."""
    run_id = squid.start(workflow).run_id
    drain(squid)
    return run_id, f"{run_id}:train:1:1"


def done(run_id: str, key: str, *, idempotency_key: str | None = "dagster:1", **payload: Any) -> Signal:
    content = {"run_id": run_id, "runnable_key": key, "succeeded": True, "result": {"model": "m"}, **payload}
    return Signal(type="external_completed", payload=content, idempotency_key=idempotency_key)


def failed(run_id: str, key: str, idempotency_key: str = "dagster:1", **fields: Any) -> Signal:
    content = {"succeeded": False, "result": None, "error": {"code": "boom", "message": "it broke"}, **fields}
    return done(run_id, key, idempotency_key=idempotency_key, **content)


def waiting(squid: Squid, **options: Any) -> list[str]:
    return [external.attempt.runnable_key for external, _ in waiting_externals(squid.runtime, ["default"], **options)]
