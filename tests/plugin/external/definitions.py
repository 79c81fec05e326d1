"""Dagster jobs and assets that external steps of tests are done by."""

from typing import Any

import dagster as dg

BROKEN: set[str] = set()  # accounts for which the job fails, until a test repairs them
TRAINED: list[str] = []  # accounts and days, for tests to count


class TrainConfig(dg.Config):
    """Config of the job."""

    account: str


@dg.op
def train(context: dg.OpExecutionContext, config: TrainConfig) -> None:
    """Append the account, or raise."""
    if config.account in BROKEN:
        raise ValueError(f"no data for {config.account}")
    TRAINED.append(config.account)


@dg.job
def train_model() -> None:
    """Run the one op."""
    train()


DAYS = dg.DailyPartitionsDefinition("2026-01-01")


@dg.asset(key_prefix="raw", partitions_def=DAYS)
def orders(context: dg.AssetExecutionContext) -> None:
    """Append the day."""
    TRAINED.append(context.partition_key)


@dg.asset
def report() -> None:
    """Return at once."""


JOBS: list[Any] = [train_model]
ASSETS = [orders, report]
