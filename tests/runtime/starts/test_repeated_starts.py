"""Starts, child starts and replays under the same key: one run, whenever they are repeated.

The tests named after a defect provoke one of the fifteen defects of the original, by its number; it is absent here.
"""

from datetime import timedelta

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.workflow import Retry, StepContext, Workflow
from tests.runtime.linear_workflow import Order, line
from tests.runtime.runs import MakeSquid, drain


def test_defect_02_starts_stop_being_idempotent(make_squid: MakeSquid, clock: VirtualClock) -> None:
    # The original: a repeated start, child start or replay is a conflict once the first successor was planned. Here it
    # gives the first receipt whenever it is repeated: in the middle, after the end, after the definition changed.
    parent = Workflow("parent")
    children: list[tuple[str, bool]] = []

    @parent.step(retry=Retry(max_attempts=2, initial=timedelta(0)))
    def spawn(ctx: StepContext) -> None:
        receipt = ctx.start_child_run("line", {"amount": 1}, child_key="only")
        children.append((receipt.run_id, receipt.repeated))
        drain(squid, "line-queue")
        if ctx.attempt == 1:
            raise ValueError("once more")

    squid = make_squid([line(), parent])
    first = squid.start("line", {"amount": 1}, idempotency_key="k", queue="slow")
    for _ in range(4):
        again = squid.start("line", {"amount": 1}, idempotency_key="k", queue="slow")
        assert (again.run_id, again.repeated) == (first.run_id, True)
        squid.execute_next("slow")
    assert squid.inspect_run(first.run_id).status == "completed"
    replays = [squid.replay(first.run_id, idempotency_key="r")]
    drain(squid, "slow")
    replays.append(squid.replay(first.run_id, idempotency_key="r"))
    assert [receipt.repeated for receipt in replays] == [False, True]
    assert len({receipt.run_id for receipt in replays}) == 1
    squid.start("parent", queue="line-queue")
    drain(squid, "line-queue")
    assert [repeated for _, repeated in children] == [False, True]
    assert len({run for run, _ in children}) == 1
    changed = Workflow("line", payload=Order)
    changed.step(name="other")(lambda: 1)
    assert make_squid(changed).start("line", {"amount": 1}, idempotency_key="k").run_id == first.run_id
