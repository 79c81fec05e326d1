"""Calls of `squid_dagster.workflow`."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from squid_dagster import workflow
from squid_dagster.workflow import Cancellation, Cron, Deadline, Defer, Fail, Manual, Resource, Retry, Workflow, path
from tests.api.fixture import workflows
from tests.api.wrong_values import Call, Make


def authoring_calls() -> dict[str, Make]:
    return {
        "Workflow": lambda w: Call(
            _frozen(lambda **k: _stepped(Workflow(k.pop("name"), **k)), Workflow), {"name": "w"}
        ),
        "Workflow.step": lambda w: Call(_frozen(_step, Workflow.step, "self", "function"), {"name": "s"}),
        "Workflow.route": lambda w: Call(
            _frozen(_route, Workflow.route, "self"), {"source": "check", "to": "complete"}
        ),
        "Workflow.approval": lambda w: Call(_frozen(_declare("approval"), Workflow.approval, "self"), {"name": "s"}),
        "Workflow.pause": lambda w: Call(_frozen(_declare("pause"), Workflow.pause, "self"), {"name": "s"}),
        "Workflow.wait": lambda w: Call(
            _frozen(_declare("wait"), Workflow.wait, "self"), {"name": "s", "duration": timedelta(1)}
        ),
        "Workflow.log": lambda w: Call(_frozen(_declare("log"), Workflow.log, "self"), {"name": "s", "message": "m"}),
        "Workflow.external": lambda w: Call(
            _frozen(_declare("external"), Workflow.external, "self"), {"name": "s", "kind": "dagster_job", "job": "j"}
        ),
        "Workflow.check": lambda w: Call(_stepped(Workflow("w")).check),
        "Workflow.draft": lambda w: Call(_stepped(Workflow("w")).draft),
        "Workflow.freeze": lambda w: Call(_stepped(Workflow("w")).freeze),
        "Retry": lambda w: Call(_frozen(lambda **k: _with(retry=Retry(**k)), Retry), {}),
        "Deadline": lambda w: Call(
            _frozen(lambda **k: _with(deadline=Deadline(**k)), Deadline), {"within": timedelta(1)}
        ),
        "Cron": lambda w: Call(
            _frozen(lambda **k: _stepped(Workflow("w", triggers=[Cron(**k)])), Cron), {"expression": "0 4 * * *"}
        ),
        "Manual": lambda w: Call(_frozen(lambda **k: _stepped(Workflow("w", triggers=[Manual(**k)])), Manual), {}),
        "Resource": lambda w: Call(Resource, {"key": "slack"}),
        "Defer": lambda w: Call(Defer, {"reason": "busy", "after": timedelta(seconds=1)}),
        "Fail": lambda w: Call(Fail, {"message": "no", "details": {"a": 1}}),
        "path": lambda w: Call(path, {"place": "item"}),
        "load_workflows": lambda w: Call(workflow.load_workflows, {"source": workflows()}),
        "delay": lambda w: Call(workflow.delay, {"policy": Retry(), "failed_attempt_number": 1, "random_unit": 0.5}),
        "Cancellation.wait": lambda w: Call(
            Cancellation().wait, {"timeout": 0.0}, {"timeout": "threading's own, and None waits for ever"}
        ),
        "Cancellation.set": lambda w: Call(Cancellation().set),
        "Cancellation.is_set": lambda w: Call(Cancellation().is_set),
        "Definition.accept_payload": lambda w: Call(
            w.runtime.registry.select("orders", None).accept_payload, {"values": {}}
        ),
    }


def _stepped(made: Workflow) -> Workflow:
    made.step(name="first")(_free)
    return made


def _free() -> None:
    """Return nothing."""


def _with(**options: Any) -> Workflow:
    made = Workflow("w")
    made.step(name="s", **options)(_free)
    return made


def _step(**options: Any) -> Workflow:
    made = Workflow("w")
    made.step(**options)(_free)
    return made


def _route(**options: Any) -> Workflow:
    made = Workflow("w")
    made.step(name="check")(_free)
    made.route(**options)
    return made


def _declare(kind: str) -> Callable[..., Workflow]:
    def declared(**options: Any) -> Workflow:
        made = Workflow("w", entry="first")
        made.step(name="first")(_free)
        getattr(made, kind)(**options)
        made.route("first", to="s")
        made.route("s", to="complete")
        if kind == "approval":
            made.route("s", on="error", to="fail")
        return made

    return declared


def _frozen(declare: Callable[..., Workflow], of: Any, *without: str) -> Callable[..., Any]:
    """Declare and freeze: a declaration is checked when the workflow is frozen, all of it at once."""

    def frozen(**options: Any) -> Any:
        return declare(**options).freeze()

    signature = inspect.signature(of)
    parameters = [parameter for name, parameter in signature.parameters.items() if name not in without]
    frozen.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return frozen
