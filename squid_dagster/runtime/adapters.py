"""The adapters of a storage (dispatch, queries, liveness, notification), and the freezing of workflows."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple, TypedDict, Unpack

from squid_dagster.journal import PostgresStorage, Storage
from squid_dagster.journal.contract.dispatch_store import DEFAULT_LEASE, DispatchStore
from squid_dagster.journal.contract.notifier import GuardedNotifier, LocalNotifier, Notifier
from squid_dagster.journal.contract.queries import JournalQueries
from squid_dagster.journal.contract.worker_liveness import MemoryLiveness, WorkerLiveness
from squid_dagster.journal.fold_store.dispatch_store import FoldDispatchStore
from squid_dagster.journal.fold_store.queries import FoldQueries
from squid_dagster.journal.postgres.dispatch.dispatch_store import PostgresDispatchStore
from squid_dagster.journal.postgres.notification.notifier import PostgresNotifier
from squid_dagster.journal.postgres.queries import PostgresQueries
from squid_dagster.journal.postgres.worker_liveness import PostgresLiveness
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.runtime.runtime import Runtime
from squid_dagster.workflow import MissingResource, Workflow, load_workflows
from squid_dagster.workflow.definition import Definition
from squid_dagster.workflow.planner.schedule import DEFAULT_QUEUE
from squid_dagster.workflow.registry import Registry

Workflows = Iterable[Workflow | Definition] | Workflow | str


class Adapters(NamedTuple):
    """The adapters of a storage that a runtime uses."""

    dispatch: DispatchStore
    queries: JournalQueries
    liveness: WorkerLiveness
    notifier: Notifier


def adapters(storage: Storage, listen_url: str | None = None, notifier: Notifier | None = None) -> Adapters:
    """Return the set-based adapters of a Postgres storage, and those by fold of any other. `listen_url` is for LISTEN.

    Raises:
        InvalidArgument: the host's `notifier` is none, or comes with a `listen_url`.
    """
    if notifier is not None and listen_url is not None:
        raise InvalidArgument("listen_url says where to LISTEN: with a notifier of your own, leave it out")
    guarded = None if notifier is None else GuardedNotifier.of(notifier)
    if isinstance(storage, PostgresStorage):
        return Adapters(
            PostgresDispatchStore(storage),
            PostgresQueries(storage),
            PostgresLiveness(storage),
            guarded or PostgresNotifier(storage, listen_url),
        )
    local = guarded or LocalNotifier(storage)
    return Adapters(FoldDispatchStore(storage), FoldQueries(storage), MemoryLiveness(storage), local)


def publish_cut(storage: Storage) -> None:
    """Record a cut for readers on standbys, if the storage can have them. Raises `StorageUnavailable`."""
    if isinstance(storage, PostgresStorage):
        storage.publish_cut()


def definitions(workflows: Any) -> list[Definition]:
    """Freeze the workflows that `load_workflows` accepts; definitions among them are used as they are.

    Raises:
        InvalidWorkflow, WorkflowsNotLoaded: as `Workflow.freeze` and `load_workflows` say.
    """
    if isinstance(workflows, Collection) and not isinstance(workflows, str):
        ready = [workflow for workflow in workflows if isinstance(workflow, Definition)]
        others = [workflow for workflow in workflows if not isinstance(workflow, Definition)]
        return [*ready, *(workflow.freeze() for workflow in (load_workflows(others) if others else ()))]
    return [workflow.freeze() for workflow in load_workflows(workflows)]


class RuntimeOptions(TypedDict, total=False):
    """What a runtime has beside a storage and workflows.

    `resources` are what steps ask for, by their keys; `queue` and `lease` are defaults. `listen_url` is for LISTEN.
    `notifier` replaces the storage's own way to wake workers (NOTIFY, or within the process); it stays the caller's,
    and is not closed. `new_run_id` and `random_unit` replace chance.
    """

    resources: Mapping[str, object] | None
    queue: str
    lease: timedelta
    listen_url: str | None
    notifier: Notifier | None
    new_run_id: Callable[[], str] | None
    random_unit: Callable[[], float] | None


class SquidOptions(RuntimeOptions, total=False):
    """The options of a `Squid`, which says what the others mean."""

    record_wakeups: bool
    event_sources: Collection[str]


def make_runtime(storage: Storage, workflows: Workflows, **options: Unpack[RuntimeOptions]) -> Runtime:
    """Return the runtime of a storage and workflows: objects, modules or names of modules.

    Raises:
        InvalidArgument: a `notifier` that has not the methods of one, or that comes with a `listen_url`.
        InvalidWorkflow: a workflow that does not make sense; all problems at once, with paths.
        WorkflowsNotLoaded: something that is no workflow, or two with the same name and version.
        MissingResource: a step asks for a resource that was not given.
    """
    registry = Registry(definitions(workflows))
    resources = dict(options.get("resources") or {})
    missing = {key: definition.name for definition in registry for key in definition.resources if key not in resources}
    if missing:
        wanted = ", ".join(f"{key!r} (workflow {name!r})" for key, name in sorted(missing.items()))
        raise MissingResource(f"steps ask for resources that were not given: {wanted}; pass resources={{...}}")
    chance: dict[str, Any] = {
        name: value for name in ("new_run_id", "random_unit") if (value := options.get(name)) is not None
    }
    return Runtime(
        storage=storage,
        **adapters(storage, options.get("listen_url"), options.get("notifier"))._asdict(),
        registry=registry,
        resources=resources,
        queue=options.get("queue", DEFAULT_QUEUE),
        lease=options.get("lease", DEFAULT_LEASE),
        **chance,
    )
