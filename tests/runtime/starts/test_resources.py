"""Resources by annotation: what a worker holds is handed to steps, and what it lacks is said before any run starts."""

from typing import Annotated, Any

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.workflow import MissingResource, Resource, Workflow
from tests.runtime.runs import MakeSquid, complete_run, facts


class Slack:
    """Something that no journal can hold."""

    def __init__(self) -> None:
        self.said: list[str] = []


def announce() -> Workflow:
    wf = Workflow("announce")

    def take_back(slack: Annotated[Slack, Resource("slack")], tell: str) -> None:
        slack.said.append(f"not {tell}")

    @wf.step(compensate=take_back)
    def tell(slack: Annotated[Slack, Resource("slack")]) -> str:
        slack.said.append("done")
        return "done"

    @wf.step
    async def pay(bank: Annotated[Any, Resource("bank")], tell: str) -> None:
        raise ValueError(bank)

    return wf


def test_steps_and_compensations_get_the_resources_that_they_ask_for(
    make_squid: MakeSquid, clock: VirtualClock
) -> None:
    slack = Slack()
    squid = make_squid(announce(), resources={"slack": slack, "bank": "closed", "unused": object()})
    snapshot = complete_run(squid, clock, "announce")
    assert slack.said == ["done", "not done"]
    assert snapshot.error is not None
    assert snapshot.error["message"] == "closed"
    inputs = {fact.step: fact.input for fact in facts(squid, snapshot.run_id, "attempt_scheduled")}
    assert inputs == {"tell": {}, "pay": {"tell": "done"}, "compensate:tell": {"tell": "done"}}, (
        "nothing of them is data"
    )


def test_missing_resources_are_all_named_when_the_workflow_is_handed_over(make_squid: MakeSquid) -> None:
    with pytest.raises(MissingResource, match=r"'bank'.*'announce'.*'slack'.*resources="):
        make_squid(announce())
    with pytest.raises(MissingResource) as refused:
        make_squid(announce(), resources={"slack": Slack()})
    assert "'slack'" not in str(refused.value)


def test_a_resource_with_a_default_need_not_be_there(make_squid: MakeSquid, clock: VirtualClock) -> None:
    wf = Workflow("announce")

    @wf.step
    def tell(slack: Annotated[str, Resource("slack")] = "nobody") -> str:
        return slack

    assert complete_run(make_squid(wf), clock, "announce").outputs == {"tell": "nobody"}
    given = make_squid(wf, resources={"slack": "all"})
    assert complete_run(given, clock, "announce").outputs == {"tell": "all"}
