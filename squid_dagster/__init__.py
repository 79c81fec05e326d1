"""A durable dispatch runtime for Python on Postgres, with Dagster as its face.

Every public name of workflows, of the facade, of its signals and leases, and of the Dagster plugin is exported here and
imported on first access. The tables of Spark are in `squid_dagster.spark`, storages in `squid_dagster.journal`, facts
and folds in `squid_dagster.protocol`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from squid_dagster.api import Squid
    from squid_dagster.plugin import (
        AttentionItem,
        DrainConfig,
        ProjectionConfig,
        SparkResource,
        SquidComponent,
        SquidResource,
        WarehouseResource,
        build_attention_sensor,
        build_checks_job,
        build_checks_schedule,
        build_command_jobs,
        build_cron_schedules,
        build_dispatch_job,
        build_dispatch_sensor,
        build_external_sensor,
        build_journal_asset,
        build_projection_assets,
        build_projection_checks,
        build_projections_job,
        build_projections_schedule,
        build_rebuild_views_job,
        build_recovery_job,
        build_recovery_schedule,
        projection_definitions,
        squid_definitions,
    )
    from squid_dagster.protocol.errors import (
        Conflict,
        ConflictingCommand,
        ConflictingCompletion,
        EmbeddedUnavailable,
        ExpiredClaim,
        ForeignSchema,
        IncompatibleDefinition,
        InvalidArgument,
        InvalidFact,
        InvalidPayload,
        InvalidThread,
        InvalidTransition,
        NotFound,
        SchemaOutdated,
        SchemaTooNew,
        SquidError,
        StaleClaim,
        StorageRefused,
        StorageUnavailable,
        TerminalRun,
        UnsafeReplay,
        ViewsMissing,
    )
    from squid_dagster.runtime.commands.cloudevents import from_cloudevent, signal_from_json, to_cloudevent
    from squid_dagster.runtime.commands.signals import Actor, Receipt, Signal, SignalType
    from squid_dagster.runtime.leases.host_queue import Delivery, HostQueue, Intent, QueueLeases
    from squid_dagster.runtime.leases.lease_backend import JournalLeases, Lease, LeaseBackend, LeaseOutcome
    from squid_dagster.runtime.leases.lease_work import LeaseReport, work_one_lease
    from squid_dagster.runtime.recovery.recovery import RecoveryReport
    from squid_dagster.runtime.worker.report import WorkerReport
    from squid_dagster.workflow import (
        Cron,
        Deadline,
        Defer,
        Fail,
        InvalidWorkflow,
        Resource,
        Retry,
        StepContext,
        Workflow,
        load_workflows,
        path,
    )

__version__ = "0.1.0"

_MODULES = {
    "api": ("Squid",),
    "plugin": (
        "AttentionItem",
        "DrainConfig",
        "ProjectionConfig",
        "SparkResource",
        "SquidComponent",
        "SquidResource",
        "WarehouseResource",
        "build_attention_sensor",
        "build_checks_job",
        "build_checks_schedule",
        "build_command_jobs",
        "build_cron_schedules",
        "build_dispatch_job",
        "build_dispatch_sensor",
        "build_external_sensor",
        "build_journal_asset",
        "build_projection_assets",
        "build_projection_checks",
        "build_projections_job",
        "build_projections_schedule",
        "build_rebuild_views_job",
        "build_recovery_job",
        "build_recovery_schedule",
        "projection_definitions",
        "squid_definitions",
    ),
    "protocol.errors": (
        "Conflict",
        "ConflictingCommand",
        "ConflictingCompletion",
        "EmbeddedUnavailable",
        "ExpiredClaim",
        "ForeignSchema",
        "IncompatibleDefinition",
        "InvalidArgument",
        "InvalidFact",
        "InvalidPayload",
        "InvalidThread",
        "InvalidTransition",
        "NotFound",
        "SchemaOutdated",
        "SchemaTooNew",
        "SquidError",
        "StaleClaim",
        "StorageRefused",
        "StorageUnavailable",
        "TerminalRun",
        "UnsafeReplay",
        "ViewsMissing",
    ),
    "runtime.commands.cloudevents": (
        "from_cloudevent",
        "signal_from_json",
        "to_cloudevent",
    ),
    "runtime.commands.signals": (
        "Actor",
        "Receipt",
        "Signal",
        "SignalType",
    ),
    "runtime.recovery.recovery": ("RecoveryReport",),
    "runtime.leases.host_queue": (
        "Delivery",
        "HostQueue",
        "Intent",
        "QueueLeases",
    ),
    "runtime.leases.lease_backend": (
        "JournalLeases",
        "Lease",
        "LeaseBackend",
        "LeaseOutcome",
    ),
    "runtime.leases.lease_work": (
        "LeaseReport",
        "work_one_lease",
    ),
    "runtime.worker.report": ("WorkerReport",),
    "workflow": (
        "Cron",
        "Deadline",
        "Defer",
        "Fail",
        "InvalidWorkflow",
        "Resource",
        "Retry",
        "StepContext",
        "Workflow",
        "load_workflows",
        "path",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
_EXTRA = frozenset({"dagster", "dagster_pyspark", "dagster_shared"})

__all__ = [
    "Actor",
    "AttentionItem",
    "Conflict",
    "ConflictingCommand",
    "ConflictingCompletion",
    "Cron",
    "Deadline",
    "Defer",
    "Delivery",
    "DrainConfig",
    "EmbeddedUnavailable",
    "ExpiredClaim",
    "Fail",
    "ForeignSchema",
    "HostQueue",
    "IncompatibleDefinition",
    "Intent",
    "InvalidArgument",
    "InvalidFact",
    "InvalidPayload",
    "InvalidThread",
    "InvalidTransition",
    "InvalidWorkflow",
    "JournalLeases",
    "Lease",
    "LeaseBackend",
    "LeaseOutcome",
    "LeaseReport",
    "NotFound",
    "ProjectionConfig",
    "QueueLeases",
    "Receipt",
    "RecoveryReport",
    "Resource",
    "Retry",
    "SchemaOutdated",
    "SchemaTooNew",
    "Signal",
    "SignalType",
    "SparkResource",
    "Squid",
    "SquidComponent",
    "SquidError",
    "SquidResource",
    "StaleClaim",
    "StepContext",
    "StorageRefused",
    "StorageUnavailable",
    "TerminalRun",
    "UnsafeReplay",
    "ViewsMissing",
    "WarehouseResource",
    "WorkerReport",
    "Workflow",
    "build_attention_sensor",
    "build_checks_job",
    "build_checks_schedule",
    "build_command_jobs",
    "build_cron_schedules",
    "build_dispatch_job",
    "build_dispatch_sensor",
    "build_external_sensor",
    "build_journal_asset",
    "build_projection_assets",
    "build_projection_checks",
    "build_projections_job",
    "build_projections_schedule",
    "build_rebuild_views_job",
    "build_recovery_job",
    "build_recovery_schedule",
    "from_cloudevent",
    "load_workflows",
    "path",
    "projection_definitions",
    "signal_from_json",
    "squid_definitions",
    "to_cloudevent",
    "work_one_lease",
]


def __dir__() -> list[str]:
    """List the names that are imported when they are first asked for, too."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import an exported name from its module. Raises `ImportError` that names the extra if Dagster is missing."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise ImportError(
            f"{__name__}.{name} needs {error.name}, which is not installed: run pip install 'squid-dagster[dagster]'"
        ) from error
