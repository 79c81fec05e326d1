"""What belongs together: the dispatch, query, presence and notification sides of a storage, and definitions by kind."""

from collections.abc import Collection
from typing import Any, NamedTuple

from squid_dagster.journal import PostgresStorage, Storage
from squid_dagster.journal.contract.dispatch_store import DispatchStore
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
from squid_dagster.workflow import load_workflows
from squid_dagster.workflow.definition import Definition


class Adapters(NamedTuple):
    """The sides of a storage that a runtime works with."""

    dispatch: DispatchStore
    queries: JournalQueries
    liveness: WorkerLiveness
    notifier: Notifier


def adapters(storage: Storage, listen_url: str | None = None, notifier: Notifier | None = None) -> Adapters:
    """Give the set-based sides of a Postgres storage, and those by fold of any other. `listen_url` is for LISTEN.

    Raises:
        InvalidArgument: a `notifier` of the host's that is none, or that comes with a `listen_url`.
    """
    if notifier is not None and listen_url is not None:
        raise InvalidArgument("listen_url says where to LISTEN: with a notifier of your own, leave it out")
    given = None if notifier is None else GuardedNotifier.of(notifier)
    if isinstance(storage, PostgresStorage):
        return Adapters(
            PostgresDispatchStore(storage),
            PostgresQueries(storage),
            PostgresLiveness(storage),
            given or PostgresNotifier(storage, listen_url),
        )
    local = given or LocalNotifier(storage)
    return Adapters(FoldDispatchStore(storage), FoldQueries(storage), MemoryLiveness(storage), local)


def publish_cut(storage: Storage) -> None:
    """Record a cut for readers on standbys, where a storage has such. Raises `StorageUnavailable`."""
    if isinstance(storage, PostgresStorage):
        storage.publish_cut()


def definitions(workflows: Any) -> list[Definition]:
    """Freeze whatever `load_workflows` takes; definitions among them are used as they are.

    Raises:
        InvalidWorkflow, WorkflowsNotLoaded: as `Workflow.freeze` and `load_workflows` say.
    """
    if isinstance(workflows, Collection) and not isinstance(workflows, str):
        ready = [each for each in workflows if isinstance(each, Definition)]
        others = [each for each in workflows if not isinstance(each, Definition)]
        return [*ready, *(each.freeze() for each in (load_workflows(others) if others else ()))]
    return [each.freeze() for each in load_workflows(workflows)]
