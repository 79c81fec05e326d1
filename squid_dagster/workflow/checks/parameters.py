"""Checks that every parameter has something to take: a payload field, or an output that is certain to be there."""

from collections.abc import Mapping

from squid_dagster.workflow.authoring.signature import Source, Task
from squid_dagster.workflow.checks.references import did_you_mean
from squid_dagster.workflow.errors import Code, Path, Problems


def check_parameters(
    task: Task,
    path: Path,
    certain: frozenset[str],
    outputs: Mapping[str, str],
    fields: frozenset[str],
    problems: Problems,
) -> None:
    """Note each parameter without a default that may have nothing to take when the function is called."""
    provided = fields | certain
    for parameter in task.parameters:
        name = parameter.name
        if parameter.source is not Source.STATE or not parameter.required or name in provided:
            continue
        place = (*path, "parameters", name)
        if name in outputs:
            message = (
                f"{task.label} takes the output of step {outputs[name]!r}, which may not be there: a run can come here "
                "without it. Give the parameter a default, or let that step always come first"
            )
            problems.add(place, Code.UNCERTAIN_PARAMETER, message)
        else:
            known = dict.fromkeys(sorted({*provided, *outputs}))
            message = f"{task.label} takes {name!r}, but no payload field and no output is called so"
            problems.add(place, Code.UNPROVIDED_PARAMETER, message + did_you_mean(name, known))
