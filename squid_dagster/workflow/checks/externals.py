"""Checks of external steps: what is asked for, and the function that makes the run config."""

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
    """Note everything that is wrong with a request, by itself."""

    def note(field: str, message: str) -> None:
        problems.add((*path, field), Code.INVALID_EXTERNAL, message)

    if not is_one_of(external.kind, EXTERNAL_KINDS):
        note("kind", f"must be one of {', '.join(EXTERNAL_KINDS)}, not {shown(external.kind)}")
    elif external.kind == "dagster_job":
        if not isinstance(external.job, str) or not external.job:
            note("job", f"must be the name of a Dagster job, not {shown(external.job)}")
        if external.assets:
            note("assets", "a step is one job or some assets: remove assets=, or use kind='dagster_assets'")
    else:
        if not external.assets:
            note("assets", "name at least one asset key, such as assets=['raw/orders']")
        for each in external.assets:
            if not isinstance(each, str) or not all(each.split("/")):
                note("assets", f"{shown(each)} is no asset key: write its parts with '/' between them")
        if external.job is not None:
            note("job", "a step is one job or some assets: remove job=, or use kind='dagster_job'")
    if not is_one_of(external.on_lost, ON_LOST):
        note("on_lost", f"must be one of {', '.join(ON_LOST)}, not {shown(external.on_lost)}")
    partition = external.partition_key_from
    if partition is not None and not (isinstance(partition, str) and partition.isidentifier()):
        note("partition_key_from", f"must be the name of a payload field or output, not {shown(partition)}")
    _check_mappings(external, note)


def _check_mappings(external: External, note: Any) -> None:
    tags = external.tags
    if not isinstance(tags, Mapping) or any(not isinstance(each, str) for pair in tags.items() for each in pair):
        note("tags", f"must be a mapping of texts to texts, not {shown(tags)}")
    if isinstance(external.run_config, Mapping):
        try:
            json_copy(dict(external.run_config), "run_config")
        except InvalidArgument as error:
            note("run_config", str(error))
    elif external.run_config is not None and not inspect.isfunction(external.run_config):
        note("run_config", f"must be a mapping or a function, not {shown(external.run_config)}")


def read_external(external: External, label: str, path: Path, problems: Problems) -> Task | None:
    """Give the task that binds the step's input: the parameters of the run config's function, and the partition's."""
    task: Task | None = Task(label, no_config, (), False)
    if inspect.isfunction(external.run_config):
        task = read_task(external.run_config, label, (*path, "run_config"), problems)
        for each in task.parameters if task is not None else ():
            if each.source not in _HERE:
                message = "a run config is made where no resource and no connection is: take values of the run only"
                problems.add((*path, "run_config", "parameters", each.name), Code.INVALID_EXTERNAL, message)
        if task is not None and task.is_async:
            problems.add((*path, "run_config"), Code.INVALID_EXTERNAL, "must be a plain function: write def, not async")
    partition = external.partition_key_from
    if task is None or not isinstance(partition, str):
        return task
    others = [each for each in task.parameters if each.name != partition]
    taken = next((each for each in task.parameters if each.name == partition), None)
    own = (
        Parameter(partition, Source.STATE, True, _TEXT, annotation=str)
        if taken is None
        else replace(taken, required=True)
    )
    return replace(task, parameters=(*others, own))


def no_config() -> dict[str, Any]:
    """Give no run config: the job's own defaults are all there is."""
    return {}


def unknown_targets(
    definition: Definition, jobs: Mapping[str, object], assets: Mapping[str, object] | None
) -> Iterator[Problem]:
    """Give a problem for each job and asset that a step names and that is not among these; None leaves assets be."""
    for step in definition.steps.values():
        if step.external is None:
            continue
        if step.external.kind == "dagster_job" and step.external.job not in jobs:
            yield _unknown(step.name, "job", f"Dagster job {step.external.job!r}", step.external.job or "", jobs)
        for each in step.external.assets if assets is not None else ():
            if assets is not None and each not in assets:
                yield _unknown(step.name, "assets", f"Dagster asset {each!r} that can be executed", each, assets)


def _unknown(step: str, field: str, what: str, wanted: str, known: Mapping[str, object]) -> Problem:
    message = f"the code location has no {what}{did_you_mean(wanted, known)}"
    return Problem(("steps", step, field), Code.UNKNOWN_EXTERNAL_TARGET, message)
