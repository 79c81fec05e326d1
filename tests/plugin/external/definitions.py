"""Dagster jobs and assets that external steps of tests are done by."""

from typing import Any

import dagster as dg

BROKEN: set[str] = set()  # accounts for which the job fails, until a test repairs them
TRAINED: list[str] = []  # what the job did, for tests to count


class TrainConfig(dg.Config):
    """What the job is told."""

    account: str


@dg.op
def train(context: dg.OpExecutionContext, config: TrainConfig) -> None:
    """Train, or break."""
    if config.account in BROKEN:
        raise ValueError(f"no data for {config.account}")
    TRAINED.append(config.account)


@dg.job
def train_model() -> None:
    """One op that takes the account."""
    train()


DAYS = dg.DailyPartitionsDefinition("2026-01-01")


@dg.asset(key_prefix="raw", partitions_def=DAYS)
def orders(context: dg.AssetExecutionContext) -> None:
    """One day of orders."""
    TRAINED.append(context.partition_key)


@dg.asset
def report() -> None:
    """Takes nothing."""


JOBS: list[Any] = [train_model]
ASSETS = [orders, report]
