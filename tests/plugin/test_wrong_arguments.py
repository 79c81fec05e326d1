"""Every argument of every public call of the plugin is tried with every kind of wrong value, as `tests/api`.

Configuration is Dagster's to judge: its classes refuse a value with Dagster's errors, which are pydantic's.
"""

import inspect
import threading
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest
from pydantic import BaseModel, ValidationError

from squid_dagster import plugin
from squid_dagster.plugin import (
    DrainConfig,
    SparkResource,
    SquidComponent,
    SquidResource,
    WarehouseResource,
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
    projections,
    squid_definitions,
)
from squid_dagster.plugin.commands import launchpad
from squid_dagster.plugin.component import ProjectionsModel
from squid_dagster.plugin.projections.views_job import RebuildViewsConfig
from squid_dagster.protocol.errors import SquidError
from squid_dagster.testing import make_squid
from tests.api.fixture import workflows
from tests.api.wrong_values import Call, Make, complaints

MODULES = (plugin, projections)
_DAGSTERS = (SquidError, dg.DagsterError, ValidationError)
_KNOWN = [workflow.freeze() for workflow in workflows()]


def builders() -> dict[str, Make]:
    """Return a call that works for each function that builds definitions."""
    job = build_dispatch_job(workflows=_KNOWN)
    recovery = build_recovery_job(workflows=_KNOWN)
    checks = projections.build_projection_checks()
    calls = [
        Call(build_attention_sensor, {"workflows": _KNOWN}),
        Call(build_command_jobs, {"workflows": _KNOWN}),
        Call(build_cron_schedules, {"workflows": _KNOWN}),
        Call(build_dispatch_job, {"workflows": _KNOWN}),
        Call(build_dispatch_sensor, {"job": job, "workflows": _KNOWN}),
        Call(build_external_sensor, {"workflows": _KNOWN}),
        Call(build_projection_assets),
        Call(build_recovery_job, {"workflows": _KNOWN}),
        Call(build_recovery_schedule, {"job": recovery}),
        Call(projection_definitions),
        Call(squid_definitions, {"workflows": _KNOWN, "resource": SquidResource(url=dg.EnvVar("NO_SUCH_URL"))}),
        Call(projections.build_checks_job, {"checks": checks}),
        Call(projections.build_checks_schedule, {"job": projections.build_checks_job(checks=checks)}),
        Call(projections.build_journal_asset),
        Call(projections.build_projection_checks),
        Call(projections.build_projections_job),
        Call(projections.build_projections_schedule, {"job": projections.build_projections_job()}),
        Call(projections.build_rebuild_views_job),
    ]
    return {call.called.__name__: lambda _, call=call: call for call in calls}  # type: ignore[misc]


def methods() -> dict[str, Make]:
    """Return a call that works for each method of a resource."""
    squid = make_squid(workflows())
    resource = SquidResource.for_testing(squid)
    given: dict[str, Call] = {
        "SquidResource.for_testing": Call(SquidResource.for_testing, {"squid": squid}),
        "SquidResource.dispatch_agent": Call(resource.dispatch_agent, {"queue": "default"}),
        "SquidResource.squid_for": Call(resource.squid_for, {"workflows": _KNOWN}),
        "SquidResource.squid_running": Call(resource.squid_running, {"workflows": _KNOWN, "resources": {}}),
    }
    return {name: lambda _, call=call: call for name, call in given.items()}  # type: ignore[misc]


def configured() -> dict[str, Make]:
    """Return a call that works for each class of Dagster's configuration."""
    modules = ["tests.plugin.drain_workflows"]
    given: dict[type[BaseModel], dict[str, Any]] = {
        DrainConfig: {},
        SparkResource: {},
        SquidComponent: {"workflow_modules": modules},
        SquidResource: {},
        WarehouseResource: {},
        ProjectionsModel: {},
        projections.ProjectionConfig: {},
        RebuildViewsConfig: {},
        launchpad.CommandConfig: {},
        launchpad.RunCommandConfig: {"run_id": "r"},
        launchpad.CancelConfig: {"run_id": "r"},
        launchpad.ReplayConfig: {"run_id": "r"},
        launchpad.RetryConfig: {"run_id": "r"},
        launchpad.StartConfig: {"workflow": "orders"},
    }
    return {kind.__name__: lambda _, kind=kind, kwargs=kwargs: _of(kind, kwargs) for kind, kwargs in given.items()}  # type: ignore[misc]


def _of(kind: type[BaseModel], kwargs: dict[str, Any]) -> Call:
    """Return the call of a constructor, with the fields as its parameters; a resource or a component is also used."""

    def made(**given: Any) -> Any:
        configured = kind(**given)
        if isinstance(configured, dg.ConfigurableResource):
            configured.get_resource_definition()
        for name, field in kind.model_fields.items():
            if name.endswith("_seconds") and (seconds := getattr(configured, name)) is not None:
                assert timedelta(seconds=seconds) < timedelta(seconds=threading.TIMEOUT_MAX), field
        if isinstance(configured, SquidComponent):
            return configured.build_defs(dg.ComponentTree.for_test().load_context)
        return configured.definitions() if isinstance(configured, ProjectionsModel) else configured

    parameters = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in kind.model_fields]
    made.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return Call(made, kwargs, {"payload": "Dagster walks through all of it before anything of ours"})


BUILDERS, METHODS, CONFIGURED = builders(), methods(), configured()


def _exported(kind: Any) -> set[str]:
    exports = ((name, getattr(module, name)) for module in MODULES for name in module.__all__)
    return {name for name, export in exports if kind(export)}


def test_every_function_that_builds_definitions_is_tried() -> None:
    assert _exported(inspect.isfunction) == BUILDERS.keys()


def test_every_class_of_configuration_is_tried() -> None:
    assert _exported(_is_model) <= CONFIGURED.keys()


def _is_model(exported: object) -> bool:
    return inspect.isclass(exported) and issubclass(exported, BaseModel)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_wrong_argument_is_refused_in_our_words(name: str) -> None:
    assert list(complaints(name, BUILDERS[name], lambda: None, lambda _: 0)) == []


@pytest.mark.parametrize("name", METHODS)
def test_a_wrong_argument_of_a_resource_is_refused_in_our_words(name: str) -> None:
    assert list(complaints(name, METHODS[name], lambda: None, lambda _: 0)) == []


@pytest.mark.parametrize("name", CONFIGURED)
def test_a_wrong_value_in_a_configuration_is_refused(name: str) -> None:
    assert list(complaints(name, CONFIGURED[name], lambda: None, lambda _: 0, _DAGSTERS)) == []
