"""Which definitions this process can execute: several versions of one workflow may stand side by side."""

from collections.abc import Iterable, Iterator

from squid_dagster.protocol import definition_key
from squid_dagster.protocol.errors import IncompatibleDefinition, NotFound
from squid_dagster.workflow.authoring import Workflow
from squid_dagster.workflow.definition import Definition
from squid_dagster.workflow.errors import WorkflowsNotLoaded


class Registry:
    """Definitions by name and fingerprint. The one of a name that was given last is used for new runs."""

    def __init__(self, definitions: Iterable[Definition] = ()) -> None:
        """Take definitions in.

        Raises:
            WorkflowsNotLoaded: two different definitions of one name carry the same version.
        """
        self._by_key: dict[str, Definition] = {}
        self._current: dict[str, Definition] = {}
        versions: dict[tuple[str, str | None], str] = {}
        for definition in definitions:
            known = versions.setdefault((definition.name, definition.version), definition.fingerprint)
            if known != definition.fingerprint:
                raise WorkflowsNotLoaded(
                    f"workflow {definition.name!r} is given twice with version {definition.version!r} and different "
                    "content: give the new one another version"
                )
            self._by_key[definition.key] = definition
            self._current[definition.name] = definition

    def __iter__(self) -> Iterator[Definition]:
        """Give all definitions."""
        return iter(self._by_key.values())

    @property
    def keys(self) -> frozenset[str]:
        """What a worker with this registry may claim."""
        return frozenset(self._by_key)

    def current(self, workflow: str) -> Definition | None:
        """Give the definition that new runs of a workflow use, if it is registered."""
        return self._current.get(workflow)

    def find(self, workflow: str | None, fingerprint: str | None) -> Definition | None:
        """Give exactly the definition that a run was started with, if it is registered."""
        return self._by_key.get(definition_key(workflow, fingerprint))

    def select(self, workflow: "str | Workflow | Definition", version: str | None = None) -> Definition:
        """Give the definition to start a new run with: the current one of that name, or the one of that version.

        Raises:
            NotFound: no such workflow, or no such version of it, is registered.
        """
        name = workflow if isinstance(workflow, str) else workflow.name
        mine = [each for each in self._by_key.values() if each.name == name]
        wanted = version if version is not None or isinstance(workflow, str) else workflow.version
        found = [each for each in mine if wanted is None or each.version == wanted]
        if not found:
            known = ", ".join(sorted(f"{each.name} {each.version or ''}".strip() for each in self)) or "none"
            of = f"version {wanted!r} of workflow {name!r}" if wanted is not None and mine else f"workflow {name!r}"
            raise NotFound(f"{of} is not registered (registered: {known}): name it in workflows=[...], or with -m")
        return self._current[name] if self._current[name] in found else found[-1]

    def require(self, run_id: str, workflow: str | None, version: str | None, fingerprint: str | None) -> Definition:
        """Give the definition that a run was started with.

        Raises:
            IncompatibleDefinition: it is not registered; says which one is.
        """
        found = self.find(workflow, fingerprint)
        if found is not None:
            return found
        current = self.current(workflow or "")
        have = "it is not registered at all"
        if current is not None:
            have = f"registered is version {current.version!r} (fingerprint {current.fingerprint[:12]})"
        raise IncompatibleDefinition(
            f"run {run_id!r} was started with version {version!r} of workflow {workflow!r} "
            f"(fingerprint {(fingerprint or 'none')[:12]}), but {have}: register that version beside the new one"
        )
