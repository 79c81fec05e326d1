"""`WorkerOptions`: the keywords of `Worker`, for calls that pass them on. `Worker` has their defaults."""

from collections.abc import Mapping
from datetime import timedelta
from typing import TypedDict

from pydantic import JsonValue

from squid_dagster.runtime.worker.committer import OnSettled


class WorkerOptions(TypedDict, total=False):
    """The options of a `Worker`, which says what they mean."""

    concurrency: int
    until_idle: bool
    lease: timedelta | None
    poll: timedelta
    grace: timedelta
    max_age: timedelta | None
    housekeeping: timedelta | None
    worker_id: str | None
    kind: str
    details: Mapping[str, JsonValue] | None
    heartbeat: timedelta | None
    on_settled: OnSettled | None
    abandon_after: timedelta
    max_abandoned: int | None
