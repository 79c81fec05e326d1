"""External steps that are refused: requests that make no sense, and targets that a code location does not have."""

from typing import Annotated, Any

import pytest

from squid_dagster.workflow import Code, InvalidWorkflow, Resource, Retry, Workflow
from squid_dagster.workflow.checks.externals import unknown_targets
from tests.workflow.test_external import job, with_external


def refused(workflow: Workflow) -> list[tuple[str, Code]]:
    with pytest.raises(InvalidWorkflow) as refusal:
        workflow.freeze()
    return [(".".join(map(str, problem.path)), problem.code) for problem in refusal.value.problems]


def taking_a_resource(slack: Annotated[Any, Resource("slack")]) -> dict[str, Any]:
    return {}


async def taking_its_time(day: str) -> dict[str, Any]:
    return {}


def taking_what_is_not_there(weather: str) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("workflow", "path"),
    [
        (with_external("spark"), "kind"),
        (with_external(None), "kind"),
        (with_external("dagster_job"), "job"),
        (with_external("dagster_job", job=""), "job"),
        (with_external("dagster_job", job=7), "job"),
        (job(assets=["a"]), "assets"),
        (with_external("dagster_assets"), "assets"),
        (with_external("dagster_assets", assets=["a//b"]), "assets"),
        (with_external("dagster_assets", assets=[7]), "assets"),
        (with_external("dagster_assets", assets=["a"], job="j"), "job"),
        (job(on_lost="retry"), "on_lost"),
        (job(partition_key_from=7), "partition_key_from"),
        (job(partition_key_from=""), "partition_key_from"),
        (job(tags={"a": 1}), "tags"),
        (job(tags="a"), "tags"),
        (job(run_config=7), "run_config"),
        (job(run_config={"ops": object()}), "run_config"),
        (job(run_config=taking_its_time), "run_config"),
        (job(run_config=taking_a_resource), "run_config.parameters.slack"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_by_its_field(workflow: Workflow, path: str) -> None:
    assert refused(workflow)[0] == (f"steps.train.{path}", Code.INVALID_EXTERNAL)


def test_what_a_run_config_or_partition_takes_must_be_there() -> None:
    assert refused(job(run_config=taking_what_is_not_there)) == [
        ("steps.train.parameters.weather", Code.UNPROVIDED_PARAMETER)
    ]
    assert refused(job(partition_key_from="weather")) == [("steps.train.parameters.weather", Code.UNPROVIDED_PARAMETER)]


def test_options_of_any_step_are_checked_too() -> None:
    assert refused(job(retry=Retry(max_attempts=0), priority=99)) == [
        ("steps.train.retry.max_attempts", Code.INVALID_RETRY),
        ("steps.train.priority", Code.INVALID_PRIORITY),
    ]


def test_jobs_and_assets_that_a_code_location_does_not_have_are_named() -> None:
    definition = job().freeze()
    (problem,) = unknown_targets(definition, {"train_models": None}, None)
    assert (problem.path, problem.code) == (("steps", "train", "job"), Code.UNKNOWN_EXTERNAL_TARGET)
    assert "did you mean 'train_models'" in problem.message
    assert list(unknown_targets(definition, {"train_model": None}, {})) == []
    definition = with_external("dagster_assets", assets=["a", "b"]).freeze()
    assert [problem.path for problem in unknown_targets(definition, {}, {"a": None})] == [("steps", "train", "assets")]
    assert list(unknown_targets(definition, {}, None)) == []
