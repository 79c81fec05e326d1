"""What follows a step: a successor on the run's own queue, with all inputs, or the end of the run.

The tests named after a defect provoke one of the fifteen defects of the original, by its number; it is absent here.
"""

from typing import Any

import pytest

from squid_dagster.journal import Completed, Settlement
from squid_dagster.protocol.errors import (
    InvalidArgument,
)
from squid_dagster.workflow import Code, InvalidWorkflow, StepContext, Workflow, path
from tests.runtime.linear_workflow import Order, line
from tests.runtime.runs import MakeSquid, drain
from tests.runtime.workers import facts_of


def test_defect_01_queue_poisoning_by_a_step_that_nothing_follows(make_squid: MakeSquid) -> None:
    # The original: a finished step without a matching route makes every later execution on its queue fail. Here such a
    # definition is refused when it is handed over, and whatever goes wrong after a step ends its own run.
    unfinished = Workflow("unfinished", payload=Order)
    unfinished.step(name="rate")(lambda: 1)
    unfinished.step(name="last")(lambda: 2)
    unfinished.route("rate", to="last", when=path("rate") > 100)
    with pytest.raises(InvalidWorkflow) as refused:
        make_squid(unfinished)
    assert {problem.code for problem in refused.value.problems} == {Code.MISSING_FALLBACK, Code.MISSING_OK_ROUTE}

    looping = Workflow("looping", payload=Order, entry="again")
    looping.step(name="again", max_visits=2)(lambda: 1)
    looping.route("again", to="again", when=path("again") == 1)
    looping.route("again", to="complete")
    squid = make_squid([looping, line()])
    bad, good = squid.start("looping").run_id, squid.start("line").run_id
    drain(squid)
    assert [squid.inspect_run(run).status for run in (bad, good)] == ["failed", "completed"]
    assert "max_visits" in str(squid.inspect_run(bad).error)


@pytest.mark.parametrize("way", ["recover", "repeated start", "agent"])
def test_defect_03_results_are_applied_without_a_successor(make_squid: MakeSquid, way: str) -> None:
    # The original: a result that is applied by recovery plans no successor: the run is stuck as `idle`, and nothing
    # repairs it.
    squid = make_squid(line())
    run_id = squid.start("line", idempotency_key="k").run_id
    # given a crash after the completion and before anything followed from it
    (claim,) = squid.runtime.dispatch.claim("default", "doomed")
    squid.runtime.dispatch.settle([Settlement(claim.ref, Completed(1))])[0].unwrap()
    assert squid.execute_next() is None
    match way:
        case "recover":
            assert squid.recover().applied == 1
        case "repeated start":
            squid.start("line", idempotency_key="k")
            squid.recover()
        case "agent":
            squid.workflow_agent(run_id).apply_pending_results()
    drain(squid)
    assert squid.inspect_run(run_id).status == "completed"
    assert squid.inspect_run(run_id).outputs == {"first": 1, "second": 2, "third": 3}


def test_defect_09_the_payload_is_lost_after_a_join_or_an_approval(make_squid: MakeSquid) -> None:
    # The original: a join sees only the outputs of steps, and an approval is seen by its direct successor only.
    joined = Workflow("joined", payload=Order)
    joined.step(name="left")(lambda: "l")
    joined.step(name="right")(lambda: "r")

    @joined.step(after=["left", "right"])
    def join(order_id: str, amount: int, left: str, right: str) -> list[Any]:
        return [order_id, amount, left, right]

    reviewed = Workflow("reviewed", payload=Order)
    reviewed.approval("review")
    reviewed.step(name="between")(lambda: 0)

    @reviewed.step
    def last(ctx: StepContext, order_id: str, review: dict[str, Any]) -> list[Any]:
        return [order_id, review["decision"], sorted(ctx.state)]

    reviewed.route("review", to="between")
    reviewed.route("review", on="error", to="fail")
    reviewed.route("between", to=last)
    reviewed.route(last, to="complete")
    squid = make_squid([joined, reviewed])
    one, two = squid.start("joined", {"order_id": "o-9"}).run_id, squid.start("reviewed", {"order_id": "o-9"}).run_id
    drain(squid)
    squid.approve(two, actor="ada")
    drain(squid)
    assert squid.inspect_run(one).outputs["join"] == ["o-9", 7, "l", "r"]
    assert squid.inspect_run(two).outputs["last"] == ["o-9", "approved", ["amount", "between", "order_id", "review"]]


def test_defect_13_a_control_moves_a_run_to_another_queue(make_squid: MakeSquid) -> None:
    # The original: after a manual step the successor goes to the queue that the control call names, and then no listing
    # works. Here a run stays on its own queue, and controls name none.
    workflow = Workflow("reviewed")
    workflow.approval("review")
    workflow.step(name="last")(lambda: 1)
    workflow.route("review", to="last")
    workflow.route("review", on="error", to="fail")
    workflow.route("last", to="complete")
    run_id = make_squid(workflow).start("reviewed", queue="billing").run_id
    elsewhere = make_squid(workflow, queue="elsewhere")
    with pytest.raises((InvalidArgument, TypeError)):
        elsewhere.approve(run_id, actor="ada", queue="elsewhere")  # type: ignore[call-arg]
    elsewhere.approve(run_id, actor="ada")
    assert elsewhere.execute_next() is None
    assert elsewhere.execute_next("billing") is not None
    assert {fact.queue for fact in facts_of(elsewhere.journal, run_id) if fact.type.startswith("attempt_")} == {
        "billing"
    }
    (listed,) = elsewhere.list_runs().runs
    assert (listed.run_id, listed.queue, listed.status) == (run_id, "billing", "completed")
