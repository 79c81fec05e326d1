"""Every argument of every function that builds definitions is tried with every kind of wrong value, as `tests/api`."""

import inspect

import dagster as dg
import pytest

from squid_dagster import plugin
from squid_dagster.plugin import (
    SquidResource,
    build_attention_sensor,
    build_command_jobs,
    build_cron_schedules,
    build_dispatch_job,
    build_dispatch_sensor,
    build_external_sensor,
    build_projection_assets,
    build_recovery_job,
    build_recovery_schedule,
    projection_definitions,
    squid_definitions,
)
from tests.api.calls import workflows
from tests.api.wrong import Call, Make, complaints

_DAGSTER = "what Dagster itself hands over"


def table() -> dict[str, Make]:
    """Give a call that works for each."""
    known = [each.freeze() for each in workflows()]
    job = build_dispatch_job(workflows=known)
    recovery = build_recovery_job(workflows=known)
    found = [
        Call(build_attention_sensor, {"workflows": known}),
        Call(build_command_jobs, {"workflows": known}),
        Call(build_cron_schedules, {"workflows": known}),
        Call(build_dispatch_job, {"workflows": known}),
        Call(build_dispatch_sensor, {"job": job, "workflows": known}),
        Call(build_external_sensor, {"workflows": known}),
        Call(build_projection_assets),
        Call(build_recovery_job, {"workflows": known}),
        Call(build_recovery_schedule, {"job": recovery}),
        Call(projection_definitions),
        Call(squid_definitions, {"workflows": known, "resource": SquidResource(url=dg.EnvVar("NO_SUCH_URL"))}),
    ]
    return {each.called.__name__: lambda _, each=each: each for each in found}  # type: ignore[misc]


TABLE = table()


def test_every_function_that_builds_definitions_is_tried() -> None:
    assert {name for name in plugin.__all__ if inspect.isfunction(getattr(plugin, name))} == TABLE.keys()


@pytest.mark.parametrize("name", TABLE)
def test_a_wrong_argument_is_refused_in_our_words(name: str) -> None:
    assert list(complaints(name, TABLE[name], lambda: None, lambda _: 0)) == []
