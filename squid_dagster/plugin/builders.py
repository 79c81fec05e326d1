"""The check of the arguments of every `build_*` function; what Dagster refuses becomes `InvalidArgument`."""

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import dagster as dg
from dagster_shared.check import CheckError

from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import InvalidArgument

F = TypeVar("F", bound=Callable[..., Any])


class AnyJob(Protocol):
    """A `JobDefinition`, or what `define_asset_job` returns: Dagster exports no name for both."""

    @property
    def name(self) -> str:
        """The job's name."""

    @property
    def tags(self) -> Any:
        """The tags of its runs."""


def builds(function: F) -> F:
    """Check the arguments of a function that makes definitions, as `checked` does, and again as Dagster does.

    Raises:
        InvalidArgument: a wrong type, or a name, a schedule or an interval that Dagster refuses.
    """
    checked_function = checked(function)

    @functools.wraps(function)
    def build(*args: Any, **kwargs: Any) -> Any:
        try:
            return checked_function(*args, **kwargs)
        except (dg.DagsterError, CheckError) as error:
            reason = " ".join(str(error).split())[:500]
            raise InvalidArgument(f"{function.__name__}: Dagster refuses what it was given: {reason}") from error

    return cast("F", build)
