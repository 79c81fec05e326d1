"""What a step raises for an outcome other than a failure that is retried: `Fail` for good, `Defer` until later."""

from collections.abc import Mapping
from datetime import timedelta

from pydantic import JsonValue

from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.workflow.values import MAX_DURATION, is_duration, json_copy, shown


class Fail(Exception):
    """The step has failed for good: whatever its `Retry` says, it is not tried again. An error route is followed."""

    def __init__(self, message: str, details: Mapping[str, JsonValue] | None = None) -> None:
        """Set the message, and details that are stored with the failure; they must be JSON."""
        if details is not None and not isinstance(details, Mapping):
            raise InvalidArgument(f"Fail(details={shown(details)}): use a mapping of texts to JSON values")
        super().__init__(message)
        self.message = message
        self.details = json_copy(dict(details or {}), "the details of Fail")


class Defer(Exception):
    """The step has nothing to do yet: run it again after a while. Neither a failure nor an attempt is counted."""

    def __init__(self, reason: str | None = None, *, after: timedelta) -> None:
        """Set how long to wait and why. Raises `InvalidArgument` unless these are a positive `timedelta` and a text."""
        if not is_duration(after):
            raise InvalidArgument(
                f"Defer(after={shown(after)}): use a positive timedelta of at most {MAX_DURATION.days} days"
            )
        if reason is not None and not isinstance(reason, str):
            raise InvalidArgument(f"Defer(reason={shown(reason)}): use a text, or None")
        super().__init__(reason or f"deferred for {after}")
        self.reason = reason
        self.after = after

    def __reduce__(self) -> tuple[object, ...]:
        """Serialize with all arguments, for steps that run in a process of their own."""
        return (_defer, (self.reason, self.after))


def _defer(reason: str | None, after: timedelta) -> Defer:
    return Defer(reason, after=after)
