"""The placeholder for a planner's state that was not read, and its error: a planner that needs it is called again."""

from typing import NoReturn

from squid_dagster.protocol.errors import SquidError


class StateMissing(SquidError):
    """The planner needs the run's state, which was not read."""


class UnknownState:
    """A placeholder for the state of a run that was not read: every attribute raises `StateMissing`."""

    def __getattr__(self, name: str) -> NoReturn:
        """Raise `StateMissing`."""
        raise StateMissing(f"{name} of a run that was not read")
