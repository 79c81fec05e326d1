"""The storage contract and its adapters, live views, checkpoints, migrations, and the embedded Postgres."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from squid_dagster.journal.contract.clock import Clock, SystemClock, VirtualClock
    from squid_dagster.journal.contract.dispatch_store import (
        Answer,
        Claim,
        ClaimRef,
        Completed,
        DispatchStore,
        Failed,
        NextAttempt,
        PlanRequest,
        Settlement,
    )
    from squid_dagster.journal.contract.notifier import Listener, LocalNotifier, Notifier
    from squid_dagster.journal.contract.queries import JournalQueries, QueueRow, RunFilter, RunRow
    from squid_dagster.journal.contract.storage import Append, Checkpoint, Storage
    from squid_dagster.journal.contract.worker_liveness import MemoryLiveness, WorkerLiveness, WorkerRow
    from squid_dagster.journal.fold_store.dispatch_store import FoldDispatchStore
    from squid_dagster.journal.fold_store.queries import FoldQueries
    from squid_dagster.journal.journal_factory import open_journal
    from squid_dagster.journal.memory import MemoryStorage
    from squid_dagster.journal.network import NetworkBounds
    from squid_dagster.journal.postgres.dispatch.dispatch_store import PostgresDispatchStore
    from squid_dagster.journal.postgres.notification.notifier import PostgresNotifier
    from squid_dagster.journal.postgres.queries import PostgresQueries
    from squid_dagster.journal.postgres.storage import PostgresStorage
    from squid_dagster.journal.postgres.views.rebuild import rebuild_views
    from squid_dagster.journal.postgres.views.verification import Discrepancy, DiscrepancyKind, verify
    from squid_dagster.journal.postgres.worker_liveness import PostgresLiveness
    from squid_dagster.journal.run_quarantine import quarantine

# Exported lazily, so that a command that only reads the configuration loads no database driver.
_HOMES = {
    "contract.clock": ("Clock", "SystemClock", "VirtualClock"),
    "contract.dispatch_store": (
        "Answer",
        "Claim",
        "ClaimRef",
        "Completed",
        "DispatchStore",
        "Failed",
        "PlanRequest",
        "NextAttempt",
        "Settlement",
    ),
    "fold_store.dispatch_store": ("FoldDispatchStore",),
    "fold_store.queries": ("FoldQueries",),
    "memory": ("MemoryStorage",),
    "network": ("NetworkBounds",),
    "contract.notifier": ("Listener", "LocalNotifier", "Notifier"),
    "journal_factory": ("open_journal",),
    "postgres.dispatch.dispatch_store": ("PostgresDispatchStore",),
    "postgres.notification.notifier": ("PostgresNotifier",),
    "postgres.worker_liveness": ("PostgresLiveness",),
    "postgres.queries": ("PostgresQueries",),
    "postgres.views.rebuild": ("rebuild_views",),
    "postgres.storage": ("PostgresStorage",),
    "postgres.views.verification": ("Discrepancy", "DiscrepancyKind", "verify"),
    "contract.worker_liveness": ("MemoryLiveness", "WorkerLiveness", "WorkerRow"),
    "run_quarantine": ("quarantine",),
    "contract.queries": ("JournalQueries", "QueueRow", "RunFilter", "RunRow"),
    "contract.storage": ("Append", "Checkpoint", "Storage"),
}
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Answer",
    "Append",
    "Checkpoint",
    "Claim",
    "ClaimRef",
    "Clock",
    "Completed",
    "Discrepancy",
    "DiscrepancyKind",
    "DispatchStore",
    "Failed",
    "FoldDispatchStore",
    "FoldQueries",
    "JournalQueries",
    "Listener",
    "LocalNotifier",
    "MemoryLiveness",
    "MemoryStorage",
    "NetworkBounds",
    "NextAttempt",
    "Notifier",
    "PlanRequest",
    "PostgresDispatchStore",
    "PostgresLiveness",
    "PostgresNotifier",
    "PostgresQueries",
    "PostgresStorage",
    "QueueRow",
    "RunFilter",
    "RunRow",
    "Settlement",
    "Storage",
    "SystemClock",
    "VirtualClock",
    "WorkerLiveness",
    "WorkerRow",
    "open_journal",
    "quarantine",
    "rebuild_views",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a name from its module."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
