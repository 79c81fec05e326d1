"""Checks of a workflow without routes: what each step comes after, by `after=` and by parameters, without circles."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from squid_dagster.workflow.authoring.draft import MANUAL_KINDS, DeclaredStep, StepKind
from squid_dagster.workflow.authoring.signature import Source, Task
from squid_dagster.workflow.checks.references import References, Unknown
from squid_dagster.workflow.errors import Code, Problems
from squid_dagster.workflow.reachability import certain_after, cycles, reachable
from squid_dagster.workflow.values import shown

After = dict[str, tuple[str, ...]]


def check_dependencies(
    steps: Mapping[str, DeclaredStep],
    tasks: Mapping[str, Task | None],
    outputs: Mapping[str, str],
    problems: Problems,
) -> tuple[After, dict[str, frozenset[str]]]:
    """Check the edges; return what each step comes after, and the outputs that are certain when it begins."""
    declared = _declared(steps, problems)
    after = _with_producers(declared, steps, tasks, outputs, problems)
    has_after = any(step.after for step in steps.values())
    for name, step in steps.items():
        if step.kind in MANUAL_KINDS:
            message = f"{step.kind.value} needs a workflow with routes: a person's decision chooses what follows"
            problems.add(("steps", name), Code.MANUAL_STEP_IN_DEPENDENCY_MODE, message)
        elif step.kind is StepKind.WAIT and not has_after and len(steps) > 1:
            message = "nothing comes before or after this wait: declare routes, or after= on the steps around it"
            problems.add(("steps", name), Code.DETACHED_WAIT, message)
    for circle in cycles(after):
        message = f"{' after '.join([*circle, circle[0]])}: none of these steps could ever begin"
        problems.add(("steps", circle[0], "after"), Code.DEPENDENCY_CYCLE, message)
    own = {name: output for output, name in outputs.items()}
    # A step that requires its own output is recorded already.
    certain = {
        name: before | ({own[name]} if name in own else frozenset())
        for name, before in certain_after(after, own).items()
    }
    return after, certain


def _declared(steps: Mapping[str, DeclaredStep], problems: Problems) -> After:
    references = References(steps)
    after: After = {}
    for name, step in steps.items():
        names: list[str] = []
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
                names.append(dependency)
        after[name] = tuple(dict.fromkeys(names))
    return after


def _with_producers(
    declared: After,
    steps: Mapping[str, DeclaredStep],
    tasks: Mapping[str, Task | None],
    outputs: Mapping[str, str],
    problems: Problems,
) -> After:
    """Add the steps whose outputs a step takes to what it is declared to come after.

    An edge that `after=` implies is not added: definitions in which every step that takes something says so keep their
    fingerprint. Nor is one, beside `after=`, that would close a circle for a parameter with a default: as in releases
    in which `after=` on one step was all that ordered any, the default is what it takes.
    """
    implied = {name: reachable(names, declared) for name, names in declared.items()}
    taken = {
        name: [edge for edge in _taken(tasks.get(name), outputs) if edge.producer not in implied[name]]
        for name in steps
    }
    every = {name: [*names, *(edge.producer for edge in taken[name])] for name, names in declared.items()}
    has_after = any(step.after for step in steps.values())
    after: After = {}
    for name, edges in taken.items():
        producers: dict[str, None] = {}
        for edge in edges:
            if has_after and not edge.required and name in reachable([edge.producer], every):
                continue
            if edge.producer == name:
                path = ("steps", name, "parameters", edge.output)
                problems.add(path, Code.SELF_DEPENDENCY, "the step takes its own output: it could never begin")
            else:
                producers[edge.producer] = None
        after[name] = (*declared[name], *producers)
    return after


class _Edge(NamedTuple):
    """An output that a function takes, and the step that gives it."""

    output: str
    producer: str
    required: bool


def _taken(task: Task | None, outputs: Mapping[str, str]) -> Iterator[_Edge]:
    for parameter in task.parameters if task is not None else ():
        if parameter.source is Source.STATE and parameter.name in outputs:
            yield _Edge(parameter.name, outputs[parameter.name], parameter.required)
