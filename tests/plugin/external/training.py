"""A module of workflows, as a component is given one: a step of our own, and one that Dagster does."""

from typing import Any

from squid_dagster import Workflow

training = Workflow("training", version="1")


@training.step
def collect() -> str:
    """Collect what to train with."""
    return "acc-1"


def told(collect: str) -> dict[str, Any]:
    """Give the configuration of the Dagster run."""
    return {"ops": {"train": {"config": {"account": collect}}}}


training.external(
    "train",
    "dagster_job",
    job="train_model",
    after=["collect"],
    run_config=told,
)
