"""Checks of external steps: their requests, and the functions that make run configs."""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter

from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.workflow.authoring.signature import Parameter, Source, Task, read_task
from squid_dagster.workflow.checks.references import did_you_mean
from squid_dagster.workflow.definition import Definition
from squid_dagster.workflow.errors import Code, Path, Problem, Problems
from squid_dagster.workflow.external_step import EXTERNAL_KINDS, ON_LOST, External
from squid_dagster.workflow.values import is_one_of, json_copy, shown

_TEXT = TypeAdapter[Any](str)
_HERE = (Source.STATE, Source.CONTEXT)


def check_external(external: External, path: Path, problems: Problems) -> None:
    """Record everything that is wrong with a request by itself."""

    def record(field: str, message: str) -> None:
        problems.add((*path, field), Code.INVALID_EXTERNAL, message)

    if not is_one_of(external.kind, EXTERNAL_KINDS):
        record("kind", f"must be one of {', '.join(EXTERNAL_KINDS)}, not {shown(external.kind)}")
    elif external.kind == "dagster_job":
        if not isinstance(external.job, str) or not external.job:
            record("job", f"must be the name of a Dagster job, not {shown(external.job)}")
        if external.assets:
            record("assets", "a step is one job or some assets: remove assets=, or use kind='dagster_assets'")
    else:
        if not external.assets:
            record("assets", "name at least one asset key, such as assets=['raw/orders']")
        for asset in external.assets:
            if not isinstance(asset, str) or not all(asset.split("/")):
                record("assets", f"{shown(asset)} is no asset key: write its parts with '/' between them")
        if external.job is not None:
            record("job", "a step is one job or some assets: remove job=, or use kind='dagster_job'")
    if not is_one_of(external.on_lost, ON_LOST):
        record("on_lost", f"must be one of {', '.join(ON_LOST)}, not {shown(external.on_lost)}")
    partition = external.partition_key_from
    if partition is not None and not (isinstance(partition, str) and partition.isidentifier()):
        record("partition_key_from", f"must be the name of a payload field or output, not {shown(partition)}")
    _check_mappings(external, record)


def _check_mappings(external: External, record: Any) -> None:
    tags = external.tags
    if not isinstance(tags, Mapping) or any(not isinstance(text, str) for pair in tags.items() for text in pair):
        record("tags", f"must be a mapping of texts to texts, not {shown(tags)}")
    if isinstance(external.run_config, Mapping):
        try:
            json_copy(dict(external.run_config), "run_config")
        except InvalidArgument as error:
            record("run_config", str(error))
    elif external.run_config is not None and not inspect.isfunction(external.run_config):
        record("run_config", f"must be a mapping or a function, not {shown(external.run_config)}")


def read_external(external: External, label: str, path: Path, problems: Problems) -> Task | None:
    """Return a task with what the step takes: the parameters of the run config's function, and the partition key."""
    task: Task | None = Task(label, no_config, (), False)
    if inspect.isfunction(external.run_config):
        task = read_task(external.run_config, label, (*path, "run_config"), problems)
        for parameter in task.parameters if task is not None else ():
            if parameter.source not in _HERE:
                message = "a run config is made where no resource and no connection is: take values of the run only"
                problems.add((*path, "run_config", "parameters", parameter.name), Code.INVALID_EXTERNAL, message)
        if task is not None and task.is_async:
            problems.add((*path, "run_config"), Code.INVALID_EXTERNAL, "must be a plain function: write def, not async")
    partition = external.partition_key_from
    if task is None or not isinstance(partition, str):
        return task
    others = [parameter for parameter in task.parameters if parameter.name != partition]
    taken = next((parameter for parameter in task.parameters if parameter.name == partition), None)
    own = (
        Parameter(partition, Source.STATE, True, _TEXT, annotation=str)
        if taken is None
        else replace(taken, required=True)
    )
    return replace(task, parameters=(*others, own))


def no_config() -> dict[str, Any]:
    """Return an empty run config: the job's own defaults apply."""
    return {}


def unknown_targets(
    definition: Definition, jobs: Mapping[str, object], assets: Mapping[str, object] | None
) -> Iterator[Problem]:
    """Yield a problem for each job and asset that a step names and that is not among these; None skips the assets."""
    for step in definition.steps.values():
        if step.external is None:
            continue
        if step.external.kind == "dagster_job" and step.external.job not in jobs:
            yield _unknown(step.name, "job", f"Dagster job {step.external.job!r}", step.external.job or "", jobs)
        for asset in step.external.assets if assets is not None else ():
            if assets is not None and asset not in assets:
                yield _unknown(step.name, "assets", f"Dagster asset {asset!r} that can be executed", asset, assets)


def _unknown(step: str, field: str, what: str, wanted: str, known: Mapping[str, object]) -> Problem:
    message = f"the code location has no {what}{did_you_mean(wanted, known)}"
    return Problem(("steps", step, field), Code.UNKNOWN_EXTERNAL_TARGET, message)
