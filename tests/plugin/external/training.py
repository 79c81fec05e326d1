"""A module of workflows, as a component is given one: a step of our own, and one that Dagster does."""

from typing import Any

from squid_dagster import Workflow

training = Workflow("training", version="1")


@training.step
def collect() -> str:
    """Collect the account."""
    return "acc-1"


def run_config(collect: str) -> dict[str, Any]:
    """Return the configuration of the Dagster run."""
    return {"ops": {"train": {"config": {"account": collect}}}}


training.external(
    "train",
    "dagster_job",
    job="train_model",
    after=["collect"],
    run_config=run_config,
)
