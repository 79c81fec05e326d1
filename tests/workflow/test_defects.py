"""Defects of the original that are designed out where workflows are written, by their numbers."""

from datetime import timedelta
from typing import Any

from squid_dagster.workflow import Code, Workflow, bind, path
from tests.workflow.drafts import Order, nothing, problems_of, take_order


def test_defect_1_a_step_that_nothing_follows_is_refused_before_it_can_poison_a_queue() -> None:
    workflow = Workflow("orders", payload=Order)
    workflow.step(take_order)
    workflow.step(name="last")(nothing)
    workflow.route(take_order, to="last", when=path("amount") > 1)

    assert problems_of(workflow) == {
        ("steps", "take_order"): Code.MISSING_FALLBACK,
        ("steps", "last"): Code.MISSING_OK_ROUTE,
    }


def test_defect_9_payload_and_every_earlier_output_reach_a_join_and_what_follows_an_approval() -> None:
    workflow = Workflow("orders", payload=Order)

    @workflow.step
    def left(order_id: str) -> str:
        return order_id

    @workflow.step
    def last(order_id: str, amount: int, left: str, review: dict[str, Any]) -> None:
        """Receive what there is."""

    workflow.approval("review")
    workflow.wait("rest", timedelta(1))
    workflow.route(left, to="review")
    workflow.route("review", to="rest")
    workflow.route("review", on="error", to="fail")
    workflow.route("rest", to=last)
    workflow.route(last, to="complete")
    step = workflow.freeze().steps["last"]

    assert bind(step, {"order_id": "o", "amount": 1, "left": "o", "review": {"by": "ann"}}) == {
        "order_id": "o",
        "amount": 1,
        "left": "o",
        "review": {"by": "ann"},
    }


def test_defect_10_waits_payload_and_recovery_markers_are_part_of_the_fingerprint() -> None:
    def fingerprint(payload: Any = None, hours: int = 1, **markers: Any) -> str:
        workflow = Workflow("orders", payload=payload)
        workflow.step(name="first", **markers)(nothing)
        workflow.wait("rest", timedelta(hours=hours), after="first")
        return workflow.freeze().fingerprint

    variants: list[dict[str, Any]] = [
        {},
        {"payload": Order},
        {"hours": 2},
        {"irreversible": True},
        {"compensate": nothing},
    ]

    assert len({fingerprint(**variant) for variant in variants}) == len(variants)
