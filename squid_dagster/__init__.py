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

__version__ = "0.1.0"

__all__ = [
    "Conflict",
    "ConflictingCompletion",
    "EmbeddedUnavailable",
    "ExpiredClaim",
    "ForeignSchema",
    "InvalidArgument",
    "InvalidFact",
    "InvalidPayload",
    "InvalidThread",
    "NotFound",
    "SchemaOutdated",
    "SchemaTooNew",
    "SquidError",
    "StaleClaim",
    "StorageUnavailable",
    "TerminalRun",
    "ViewsMissing",
]


def __getattr__(name: str) -> Any:
    """Import an exported name when it is first asked for: `import squid_dagster` alone loads nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from squid_dagster.protocol import errors

    return getattr(errors, name)
