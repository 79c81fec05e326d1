"""`load_workflows`: the one way to collect workflows, for the facade, the Dagster plugin and the command line alike."""

import importlib
from collections.abc import Iterable, Iterator
from types import ModuleType

from squid_dagster.workflow.authoring.workflow import Workflow
from squid_dagster.workflow.errors import WorkflowsNotLoaded
from squid_dagster.workflow.values import shown

Loadable = Workflow | ModuleType | str


def load_workflows(source: Loadable | Iterable[Loadable]) -> list[Workflow]:
    """Collect workflows: from a module or its dotted name all that stand in its namespace, or from several of these.

    They are in the order of their definition, each once, and not checked: `Squid` does that. Several workflows of one
    name are allowed if their versions differ: runs of the older one go on beside the new one.

    Raises:
        WorkflowsNotLoaded: a module cannot be imported or holds no workflow, something else was given, or two
            workflows have the same name and version.
    """
    workflows: list[Workflow] = []
    origin: dict[tuple[str, str | None], tuple[str, Workflow]] = {}
    for where, workflow in _collect(source):
        label, first = origin.setdefault((workflow.name, workflow.version), (where, workflow))
        if first is not workflow:
            raise WorkflowsNotLoaded(
                f"{workflow!r} is declared twice, in {label} and in {where}: give them different names, or different "
                "versions if one replaces the other"
            )
        if not any(known is workflow for known in workflows):
            workflows.append(workflow)
    return workflows


def _collect(source: object) -> Iterator[tuple[str, Workflow]]:
    match source:
        case Workflow():
            yield "the workflows given", source
        case ModuleType() | str():
            yield from _from_module(source)
        case bytes() | None:
            raise _unusable(source)
        case Iterable():
            for item in source:
                match item:
                    case Workflow() | ModuleType() | str():
                        yield from _collect(item)
                    case _:
                        raise _unusable(item)
        case _:
            raise _unusable(source)


def _from_module(source: ModuleType | str) -> Iterator[tuple[str, Workflow]]:
    module = _imported(source) if isinstance(source, str) else source
    workflows = [value for value in vars(module).values() if isinstance(value, Workflow)]
    if not workflows:
        raise WorkflowsNotLoaded(
            f"module {module.__name__!r} holds no workflow: define one there, such as orders = Workflow('orders')"
        )
    for workflow in workflows:
        yield f"module {module.__name__!r}", workflow


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise WorkflowsNotLoaded(
                f"there is no module {name!r}: give its dotted name, and see that its folder is on the Python path"
            ) from error
        raise WorkflowsNotLoaded(f"module {name!r} could not be imported: {error}") from error
    except SystemExit as error:
        raise WorkflowsNotLoaded(
            f"module {name!r} could not be imported: it ends the process (sys.exit); do that under "
            'if __name__ == "__main__"'
        ) from error
    except Exception as error:
        raise WorkflowsNotLoaded(f"module {name!r} could not be imported: {type(error).__name__}: {error}") from error


def _unusable(value: object) -> WorkflowsNotLoaded:
    return WorkflowsNotLoaded(
        f"{shown(value)} is neither a workflow, nor a module, nor the dotted name of one, nor a list of these"
    )
