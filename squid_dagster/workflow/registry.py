"""The definitions that this process can execute, also several versions of one workflow."""

from collections.abc import Iterable, Iterator

from squid_dagster.protocol.errors import IncompatibleDefinition, NotFound
from squid_dagster.protocol.folds.attempt import definition_key
from squid_dagster.workflow.authoring.workflow import Workflow
from squid_dagster.workflow.definition import Definition
from squid_dagster.workflow.errors import WorkflowsNotLoaded


class Registry:
    """Definitions by name, fingerprint and version. The one of a name that was given last is used for new runs."""

    def __init__(self, definitions: Iterable[Definition] = ()) -> None:
        """Register definitions.

        Raises:
            WorkflowsNotLoaded: two definitions of one name carry the same version, and are not the same.
        """
        versions: dict[tuple[str, str | None], Definition] = {}
        self._by_key: dict[str, list[Definition]] = {}
        self._current: dict[str, Definition] = {}
        for definition in definitions:
            identity = (definition.name, definition.version)
            if identity in versions:
                _check_same(versions[identity], definition)
            versions[identity] = definition
            self._current[definition.name] = definition
        self._definitions = tuple(versions.values())
        for definition in self._definitions:
            for key in definition.keys:
                self._by_key.setdefault(key, []).append(definition)
        self._keys = frozenset(self._by_key)

    def __iter__(self) -> Iterator[Definition]:
        """Iterate over all definitions."""
        return iter(self._definitions)

    @property
    def keys(self) -> frozenset[str]:
        """What a worker with this registry may claim."""
        return self._keys

    def current(self, workflow: str) -> Definition | None:
        """Return the definition that new runs of a workflow use, if it is registered."""
        return self._current.get(workflow)

    def find(self, workflow: str | None, fingerprint: str | None, version: str | None = None) -> Definition | None:
        """Return the definition that a run was started with, if it is registered.

        Of several with that fingerprint, which differ in what it does not cover (function bodies, retries), the one
        of that version; without it, the last one given.
        """
        same = self._by_key.get(definition_key(workflow, fingerprint), ())
        if len(same) <= 1:
            return same[0] if same else None
        ranks = [(d.version == version, d.fingerprint == fingerprint, place) for place, d in enumerate(same)]
        return same[max(ranks)[2]]

    def select(self, workflow: "str | Workflow | Definition", version: str | None = None) -> Definition:
        """Return the definition to start a new run with: the current one of that name, or the one of that version.

        Raises:
            NotFound: no such workflow, or no such version of it, is registered.
        """
        name = workflow if isinstance(workflow, str) else workflow.name
        versions = [definition for definition in self._definitions if definition.name == name]
        wanted = version if version is not None or isinstance(workflow, str) else workflow.version
        matching = [definition for definition in versions if wanted is None or definition.version == wanted]
        if not matching:
            known = ", ".join(sorted(f"{one.name} {one.version or ''}".strip() for one in self)) or "none"
            of = f"version {wanted!r} of workflow {name!r}" if wanted is not None and versions else f"workflow {name!r}"
            raise NotFound(f"{of} is not registered (registered: {known}): name it in workflows=[...], or with -m")
        return self._current[name] if self._current[name] in matching else matching[-1]

    def require(self, run_id: str, workflow: str | None, version: str | None, fingerprint: str | None) -> Definition:
        """Return the definition that a run was started with.

        Raises:
            IncompatibleDefinition: it is not registered; says which one is.
        """
        definition = self.find(workflow, fingerprint, version)
        if definition is not None:
            return definition
        current = self.current(workflow or "")
        have = "it is not registered at all"
        if current is not None:
            have = f"registered is version {current.version!r} (fingerprint {current.fingerprint[:12]})"
        raise IncompatibleDefinition(
            f"run {run_id!r} was started with version {version!r} of workflow {workflow!r} "
            f"(fingerprint {(fingerprint or 'none')[:12]}), but {have}: register that version beside the new one"
        )


def _check_same(first: Definition, second: Definition) -> None:
    """Raise `WorkflowsNotLoaded` unless two definitions of one version are the same, functions included."""
    given = f"workflow {first.name!r} is given twice with version {first.version!r}"
    if first.fingerprint != second.fingerprint:
        raise WorkflowsNotLoaded(f"{given} and different content: give the new one another version")
    theirs = _functions(second)
    for name, function in _functions(first).items():
        if theirs[name] is not function:
            raise WorkflowsNotLoaded(
                f"{given}, and different functions of step {name!r}: give the new one another version"
            )


def _functions(definition: Definition) -> dict[str, object]:
    """Return the functions that workers call, by step, without those of external steps: each freeze makes new ones."""
    tasks = {name: step.task for name, step in definition.steps.items() if step.external is None}
    undoing = {f"compensate:{name}": step.compensation for name, step in definition.steps.items()}
    return {name: None if task is None else task.function for name, task in (tasks | undoing).items()}
