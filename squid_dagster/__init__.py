"""A durable dispatch runtime for Python on Postgres, with Dagster as its face."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from squid_dagster.protocol.errors import (
        Conflict,
        ConflictingCompletion,
        EmbeddedUnavailable,
        ExpiredClaim,
        ForeignSchema,
        InvalidArgument,
        InvalidFact,
        InvalidPayload,
        InvalidThread,
        NotFound,
        SchemaOutdated,
        SchemaTooNew,
        SquidError,
        StaleClaim,
        StorageUnavailable,
        TerminalRun,
        ViewsMissing,
    )
    from squid_dagster.workflow import (
        Cron,
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
    "ConflictingCompletion",
    "Cron",
    "Defer",
    "EmbeddedUnavailable",
    "ExpiredClaim",
    "Fail",
    "ForeignSchema",
    "InvalidArgument",
    "InvalidFact",
    "InvalidPayload",
    "InvalidThread",
    "InvalidWorkflow",
    "NotFound",
    "Resource",
    "Retry",
    "SchemaOutdated",
    "SchemaTooNew",
    "SquidError",
    "StaleClaim",
    "StepContext",
    "StorageUnavailable",
    "TerminalRun",
    "ViewsMissing",
    "Workflow",
    "load_workflows",
    "path",
]

_AUTHORING = frozenset(
    {
        "Cron",
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
    return getattr(import_module(home), name)
