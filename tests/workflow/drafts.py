"""Small workflows, and the problems of one."""

from typing import Any

from pydantic import BaseModel

from squid_dagster.workflow import Code, InvalidWorkflow, Problem, Workflow
from squid_dagster.workflow.errors import Path


class Order(BaseModel):
    order_id: str
    amount: int = 1


def take_order(order_id: str) -> dict[str, Any]:
    return {"order_id": order_id}


def ship() -> None:
    """Ship something."""


def nothing() -> None:
    """Return nothing."""


def problems_of(workflow: Workflow) -> dict[Path, Code]:
    """Return the problems of a workflow by path; none when it is well."""
    problems: tuple[Problem, ...] = ()
    try:
        workflow.check()
    except InvalidWorkflow as refused:
        problems = refused.problems
    codes = {problem.path: problem.code for problem in problems}
    assert len(codes) == len(problems), "one mistake, one problem"
    return codes


def message_of(workflow: Workflow) -> str:
    """Return the message about all problems; empty when there is none."""
    try:
        workflow.check()
    except InvalidWorkflow as refused:
        return str(refused)
    return ""


def routed(*names: str, payload: type[BaseModel] | None = None) -> Workflow:
    """Return a workflow of steps that take nothing, one after the other, up to the end."""
    workflow = Workflow("orders", payload=payload)
    for name, following in zip(names, [*names[1:], "complete"], strict=True):
        workflow.step(name=name)(nothing)
        workflow.route(name, to=following)
    return workflow
