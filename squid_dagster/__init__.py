"""A durable dispatch runtime for Python on Postgres, with Dagster as its face."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from squid_dagster.api import Squid
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

__all__ = [
    "Conflict",
    "ConflictingCommand",
    "ConflictingCompletion",
    "Cron",
    "Deadline",
    "Defer",
    "EmbeddedUnavailable",
    "ExpiredClaim",
    "Fail",
    "ForeignSchema",
    "IncompatibleDefinition",
    "InvalidArgument",
    "InvalidFact",
    "InvalidPayload",
    "InvalidThread",
    "InvalidTransition",
    "InvalidWorkflow",
    "NotFound",
    "Resource",
    "Retry",
    "SchemaOutdated",
    "SchemaTooNew",
    "Squid",
    "SquidError",
    "StaleClaim",
    "StepContext",
    "StorageRefused",
    "StorageUnavailable",
    "TerminalRun",
    "UnsafeReplay",
    "ViewsMissing",
    "Workflow",
    "load_workflows",
    "path",
]

_AUTHORING = frozenset(
    {
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
    }
)


def __getattr__(name: str) -> Any:
    """Import an exported name when it is first asked for: `import squid_dagster` alone loads nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = "squid_dagster.workflow" if name in _AUTHORING else "squid_dagster.protocol.errors"
    home = "squid_dagster.api" if name == "Squid" else home
    return getattr(import_module(home), name)
