"""A success is recorded as a success, whatever cannot follow from it: the run fails, in words, and is undone whole."""

from typing import Any

import pytest
import sqlalchemy
from pydantic import BaseModel

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage, Storage
from squid_dagster.workflow import Fail, StepContext, Workflow
from tests.runtime.runs import MakeSquid
from tests.runtime.workers import facts_of

MOST = 20_000  # bytes of a fact in these tests
BIG = "ü" * 4_500  # 9,000 bytes: two fit into a fact, three do not


@pytest.fixture
def small(storage: Storage) -> Storage:
    """A storage whose facts may have no more than 20,000 bytes."""
    storage.max_fact_bytes = MOST  # type: ignore[misc]
    return storage


def _work(squid: Squid, workflow: str, payload: dict[str, Any] | None = None) -> str:
    run_id = squid.start(workflow, payload).run_id
    squid.worker(until_idle=True, concurrency=4)
    return run_id


def _error(squid: Squid, run_id: str) -> dict[str, Any]:
    run = squid.inspect_run(run_id)
    assert run.status == "failed"
    assert run.anomalies == ()
    return dict(run.error or {})


def _completed(storage: Storage, run_id: str) -> set[str]:
    return {fact.runnable_key.split(":", 1)[1] for fact in facts_of(storage, run_id, "attempt_completed")}


def _length(value: str) -> int:
    return len(value)


def _never(a: str, text: str) -> None:
    raise AssertionError("never called")


def _never_of_three(a: str, b: str, c: str) -> None:
    raise AssertionError("never called")


def _fan_in(undone: list[str]) -> Workflow:
    workflow = Workflow("wide")
    for name in ("a", "b", "c"):

        def undo(ctx: StepContext) -> None:
            undone.append(ctx.step)

        workflow.step(name=name, output=name, compensate=undo)(lambda: BIG)
    workflow.step(name="join", after=["a", "b", "c"])(_never_of_three)
    return workflow


def test_a_join_whose_input_is_too_large_fails_and_all_siblings_have_succeeded_and_are_undone(
    small: Storage, make_squid: MakeSquid
) -> None:
    undone: list[str] = []
    squid = make_squid(_fan_in(undone))
    run_id = _work(squid, "wide")
    error = _error(squid, run_id)
    assert error["code"] == "invalid_input"
    assert "'join'" in error["message"]
    assert "'a' has 9,002 bytes" in error["message"], "it names what is large"
    assert "20,000 allowed" in error["message"]
    assert "store it elsewhere" in error["message"]
    assert not facts_of(small, run_id, "attempt_failed")
    assert sorted(undone) == ["compensate:a", "compensate:b", "compensate:c"]
    assert {"a:1:1", "b:1:1", "c:1:1"} < _completed(small, run_id)


def test_it_is_so_one_step_at_a_time_too(small: Storage, make_squid: MakeSquid) -> None:
    undone: list[str] = []
    squid = make_squid(_fan_in(undone))
    run_id = squid.start("wide").run_id
    while squid.execute_next() is not None:
        pass
    assert _error(squid, run_id)["code"] == "invalid_input"
    assert len(undone) == 3


def test_a_route_to_a_step_whose_input_is_too_large_fails_the_run(small: Storage, make_squid: MakeSquid) -> None:
    workflow = Workflow("routed")
    for name in ("a", "b", "c"):
        workflow.step(name=name, output=name)(lambda: BIG)
    workflow.step(name="last")(_never_of_three)
    for here, there in (("a", "b"), ("b", "c"), ("c", "last"), ("last", "complete")):
        workflow.route(here, to=there)
    squid = make_squid(workflow)
    run_id = _work(squid, "routed")
    assert "'last'" in _error(squid, run_id)["message"]
    assert _completed(small, run_id) == {"a:1:1", "b:1:1", "c:1:1"}


def test_inputs_that_fit_one_by_one_are_planned_in_several_facts(small: Storage, make_squid: MakeSquid) -> None:
    workflow = Workflow("out")
    workflow.step(name="first", output="value")(lambda: BIG)
    for i in range(4):
        workflow.step(name=f"s{i}", after=["first"])(_length)
    squid = make_squid(workflow)
    run_id = _work(squid, "out")
    assert squid.inspect_run(run_id).status == "completed"
    assert len(_completed(small, run_id)) == 5
    assert len(facts_of(small, run_id, "runnables_planned")) == 3, "one for the first step, two for the four of them"


def test_inputs_that_are_too_much_together_fail_the_run_and_say_so(small: Storage, make_squid: MakeSquid) -> None:
    workflow = Workflow("out")
    workflow.step(name="first", output="value")(lambda: BIG)
    for i in range(8):
        workflow.step(name=f"s{i}", after=["first"])(_length)
    squid = make_squid(workflow)
    run_id = _work(squid, "out")
    assert "bytes together" in _error(squid, run_id)["message"]
    assert _completed(small, run_id) == {"first:1:1"}


def test_a_compensation_that_cannot_be_planned_is_told_and_stops_no_other(
    small: Storage, make_squid: MakeSquid
) -> None:
    undone: list[str] = []
    workflow = Workflow("saga")

    def undo_a(ctx: StepContext) -> None:
        undone.append(ctx.step)

    workflow.step(name="a", output="a", compensate=undo_a)(lambda: BIG)
    workflow.step(name="b", output="b", after=["a"])(lambda: BIG)
    workflow.step(name="c", output="c", after=["b"], compensate=_never_of_three)(lambda: BIG)

    @workflow.step(after=["c"])
    def last() -> None:
        raise Fail("no")

    squid = make_squid(workflow)
    run_id = _work(squid, "saga")
    error = _error(squid, run_id)
    assert error["message"] == "no"
    (failure,) = error["compensation_failures"]
    assert (failure["step"], failure["error"]["code"]) == ("c", "invalid_input")
    assert undone == ["compensate:a"]


def test_a_large_error_is_shortened_where_it_is_repeated(small: Storage, make_squid: MakeSquid) -> None:
    workflow = Workflow("loud")
    undone: list[str] = []

    def undo(ctx: StepContext) -> None:
        undone.append(ctx.step)
        raise Fail("cannot", {"why": BIG})

    workflow.step(name="a", compensate=undo)(lambda: None)
    workflow.step(name="b", after=["a"], compensate=undo)(lambda: None)

    @workflow.step(after=["b"])
    def last() -> None:
        raise Fail("no", {"why": BIG})

    squid = make_squid(workflow)
    run_id = _work(squid, "loud")
    error = _error(squid, run_id)
    assert (error["type"], error["message"]) == ("Fail", "no")
    assert undone == ["compensate:b", "compensate:a"]


def test_details_that_are_no_error_map_any_more_are_left_out(make_squid: MakeSquid) -> None:
    workflow = Workflow("loud")

    @workflow.step
    def step() -> None:
        raise Fail("no", {"why": "x" * 2_000_000})

    squid = make_squid(workflow)
    run_id = _work(squid, "loud")
    error = _error(squid, run_id)
    assert error["message"] == "no"
    assert "more than 1 MiB" in str(error["details"])


def test_a_result_that_leaves_no_room_for_its_application_is_a_failure_that_says_so(
    small: Storage, make_squid: MakeSquid
) -> None:
    workflow = Workflow("one")
    workflow.step(name="step")(lambda: "x" * (MOST + 1))
    squid = make_squid(workflow)
    run_id = _work(squid, "one")
    error = _error(squid, run_id)
    assert error["code"] == "unwritable_outcome"
    assert "20,000 allowed" in error["message"]


class Item(BaseModel):
    """What a person decides about."""

    text: str


def test_an_approval_before_a_step_that_cannot_be_entered_fails_the_run(small: Storage, make_squid: MakeSquid) -> None:
    workflow = Workflow("asked", payload=Item)
    workflow.step(name="a", output="a")(lambda: BIG)
    workflow.approval("review")
    workflow.step(name="last")(_never)
    for here, there in (("a", "review"), ("review", "last"), ("last", "complete")):
        workflow.route(here, to=there)
    workflow.route("review", on="error", to="fail")
    squid = make_squid(workflow)
    run_id = _work(squid, "asked", {"text": "x" * 15_000})
    squid.approve(run_id, actor="ada")
    assert "'last'" in _error(squid, run_id)["message"]


def test_a_transactional_step_before_a_join_that_is_too_large_has_written_its_rows(
    postgres_virtual: PostgresStorage,
) -> None:
    postgres_virtual.max_fact_bytes = MOST
    workflow = Workflow("paid")
    workflow.step(name="a", output="a")(lambda: BIG)
    workflow.step(name="b", output="b", after=["a"])(lambda: BIG)

    @workflow.step(transactional=True, output="c", after=["b"])
    def c(connection: sqlalchemy.Connection) -> str:
        connection.execute(sqlalchemy.text("CREATE TABLE IF NOT EXISTS paid_rows (n int)"))
        return BIG

    workflow.step(name="join", after=["c"])(_never_of_three)
    squid = Squid(postgres_virtual, workflow)
    run_id = _work(squid, "paid")
    assert "'join'" in _error(squid, run_id)["message"]
    assert _completed(postgres_virtual, run_id) == {"a:1:1", "b:1:1", "c:1:1"}
