"""Small workflows and ways to look at what is wrong with one."""

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
    """Do nothing."""


def problems_of(workflow: Workflow) -> dict[Path, Code]:
    """Give what is wrong with a workflow, by path; nothing when it is well."""
    problems: tuple[Problem, ...] = ()
    try:
        workflow.check()
    except InvalidWorkflow as refused:
        problems = refused.problems
    found = {problem.path: problem.code for problem in problems}
    assert len(found) == len(problems), "one mistake, one problem"
    return found


def message_of(workflow: Workflow) -> str:
    """Give the one message about what is wrong."""
    try:
        workflow.check()
    except InvalidWorkflow as refused:
        return str(refused)
    return ""


def routed(*names: str, payload: type[BaseModel] | None = None) -> Workflow:
    """Give a workflow of steps that take nothing, one after the other, up to the end."""
    workflow = Workflow("orders", payload=payload)
    for name, following in zip(names, [*names[1:], "complete"], strict=True):
        workflow.step(name=name)(nothing)
        workflow.route(name, to=following)
    return workflow
