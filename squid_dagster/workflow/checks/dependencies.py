"""Checks of a workflow without routes: what each step comes after, declared or by its parameters, without circles."""

from collections.abc import Mapping

from squid_dagster.workflow.authoring.draft import MANUAL_KINDS, DeclaredStep, StepKind
from squid_dagster.workflow.authoring.signature import Task
from squid_dagster.workflow.checks.references import References, Unknown
from squid_dagster.workflow.errors import Code, Problems
from squid_dagster.workflow.reachability import certain_after, cycles
from squid_dagster.workflow.values import shown

After = dict[str, tuple[str, ...]]


def check_dependencies(
    steps: Mapping[str, DeclaredStep],
    tasks: Mapping[str, Task | None],
    outputs: Mapping[str, str],
    problems: Problems,
) -> tuple[After, dict[str, frozenset[str]]]:
    """Check the edges; give what each step comes after, and the outputs that are certain when it begins."""
    declared = any(step.after for step in steps.values())
    after = _declared(steps, problems) if declared else _by_parameters(steps, tasks, outputs, problems)
    for name, step in steps.items():
        if step.kind in MANUAL_KINDS:
            message = f"{step.kind.value} needs a workflow with routes: a person's decision chooses what follows"
            problems.add(("steps", name), Code.MANUAL_STEP_IN_DEPENDENCY_MODE, message)
        elif step.kind is StepKind.WAIT and not declared and len(steps) > 1:
            message = "nothing comes before or after this wait: declare routes, or after= on the steps around it"
            problems.add(("steps", name), Code.DETACHED_WAIT, message)
    for circle in cycles(after):
        message = f"{' after '.join([*circle, circle[0]])}: none of these steps could ever begin"
        problems.add(("steps", circle[0], "after"), Code.DEPENDENCY_CYCLE, message)
    gives = {name: output for output, name in outputs.items()}
    certain = certain_after(after, gives)
    if not declared:  # a step that takes its own output is noted already
        certain = {name: found | {gives[name]} if name in gives else found for name, found in certain.items()}
    return after, certain


def _declared(steps: Mapping[str, DeclaredStep], problems: Problems) -> After:
    references = References(steps)
    after: After = {}
    for name, step in steps.items():
        found: list[str] = []
        for index, reference in enumerate(step.after):
            path = ("steps", name, "after", index)
            if not isinstance(reference, str) and not callable(reference):
                problems.add(path, Code.INVALID_AFTER, f"{shown(reference)} is neither a name nor a function of a step")
                continue
            try:
                dependency = references.name_of(reference)
            except Unknown as unknown:
                problems.add(path, Code.UNKNOWN_DEPENDENCY, str(unknown))
                continue
            if dependency == name:
                problems.add(path, Code.SELF_DEPENDENCY, f"{name!r} cannot come after itself")
            else:
                found.append(dependency)
        after[name] = tuple(dict.fromkeys(found))
    return after


def _by_parameters(
    steps: Mapping[str, DeclaredStep],
    tasks: Mapping[str, Task | None],
    outputs: Mapping[str, str],
    problems: Problems,
) -> After:
    after: After = {}
    for name in steps:
        task = tasks.get(name)
        givers = [outputs[taken] for taken in (task.takes if task else ()) if taken in outputs]
        if name in givers:
            taken = next(taken for taken, giver in outputs.items() if giver == name)
            path = ("steps", name, "parameters", taken)
            problems.add(path, Code.SELF_DEPENDENCY, "the step takes its own output: it could never begin")
        after[name] = tuple(giver for giver in dict.fromkeys(givers) if giver != name)
    return after
