"""External steps as they are declared: what they take, what they mean, and the lane they wait in."""

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from squid_dagster.protocol.facts import AttemptScheduled, RunnablesPlanned, RunStarted
from squid_dagster.protocol.folds.attempt import definition_key
from squid_dagster.workflow import Definition, Retry, StepContext, StepKind, Workflow
from squid_dagster.workflow.external_step import external_lane, target_of
from squid_dagster.workflow.planner.planner import plan_start
from squid_dagster.workflow.planner.schedule import schedule

NOW = datetime(2026, 11, 16, tzinfo=UTC)


class Order(BaseModel):
    day: str
    amount: int = 1


def with_external(*arguments: Any, **options: Any) -> Workflow:
    workflow = Workflow("orders", payload=Order)
    workflow.external("train", *arguments, **options)
    return workflow


def job(**options: Any) -> Workflow:
    return with_external("dagster_job", **{"job": "train_model", **options})


def config(ctx: StepContext, day: str, load: dict[str, Any]) -> dict[str, Any]:
    return {"day": day, "rows": load, "key": ctx.idempotency_key}


def test_the_names_that_a_run_config_takes_make_the_graph() -> None:
    workflow = job(run_config=config, partition_key_from="day")

    @workflow.step
    def load(day: str) -> dict[str, Any]:
        return {}

    @workflow.step
    def publish(train: dict[str, Any]) -> None:
        return None

    definition = workflow.freeze()
    train = definition.steps["train"]
    assert (train.kind, train.output, train.after) == (StepKind.EXTERNAL, "train", ("load",))
    assert train.task is not None
    assert sorted(train.task.takes) == ["day", "load"]
    assert definition.steps["publish"].after == ("train",)


def frozen(**options: Any) -> Definition:
    return job(**options).freeze()


def test_the_fingerprint_covers_what_is_done_and_not_how() -> None:
    same = [
        frozen(on_lost="fail"),
        frozen(tags={"team": "ml"}),
        frozen(run_config={"ops": {}}),
        frozen(retry=Retry(max_attempts=3)),
    ]
    other = [
        frozen(job="other"),
        frozen(partition_key_from="day"),
        with_external("dagster_assets", assets="a").freeze(),
    ]
    assert {variant.fingerprint for variant in same} == {frozen().fingerprint}
    assert len({frozen().fingerprint, *(variant.fingerprint for variant in other)}) == 4
    order = [with_external("dagster_assets", assets=some).freeze().fingerprint for some in (["a", "b"], ["b", "a"])]
    assert order[0] == order[1]


def test_a_definition_without_external_steps_has_no_lane_for_them() -> None:
    workflow = Workflow("plain")
    workflow.log("hello", "hello")
    assert workflow.freeze().external_keys == ()
    assert frozen().external_keys == (definition_key("orders", external_lane(frozen().fingerprint)),)


def test_the_plan_carries_what_is_asked_for_and_the_schedule_its_lane() -> None:
    definition = frozen(on_lost="fail", partition_key_from="day")
    start = RunStarted(
        run_id="r-1",
        workflow="orders",
        input={"day": "2026-01-01", "amount": 1},
        definition_fingerprint=definition.fingerprint,
        occurred_at=NOW,
    )
    facts = plan_start(definition, start)
    (planned,) = [fact for fact in facts if isinstance(fact, RunnablesPlanned)]
    (scheduled,) = [fact for fact in facts if isinstance(fact, AttemptScheduled)]
    (runnable,) = planned.runnables
    assert runnable.external == {"kind": "dagster_job", "job": "train_model", "on_lost": "fail"}
    assert runnable.input == {"day": "2026-01-01"}
    assert definition_key("orders", scheduled.definition_fingerprint) in definition.external_keys
    assert schedule(runnable, start, NOW) == scheduled, "recovery, which has only the plan, schedules the same"


def test_targets_are_named_in_words() -> None:
    assert target_of({"kind": "dagster_job", "job": "j"}) == "Dagster job 'j'"
    assert target_of({"kind": "dagster_assets", "assets": ["a", "b/c"]}) == "Dagster assets 'a', 'b/c'"
