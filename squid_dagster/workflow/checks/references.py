"""References to steps: an author writes a step's name or its function."""

from collections.abc import Mapping
from difflib import get_close_matches

from squid_dagster.workflow.authoring.draft import DeclaredStep
from squid_dagster.workflow.values import shown


class Unknown(LookupError):
    """A reference means no step, or more than one; the message says why."""


class References:
    """The steps of one workflow, to be found by name or function."""

    def __init__(self, steps: Mapping[str, DeclaredStep]) -> None:
        """Keep the steps."""
        self._steps = steps

    def name_of(self, reference: object) -> str:
        """Return the name of the step that is meant. Raises `Unknown`."""
        if isinstance(reference, str):
            if reference in self._steps:
                return reference
            raise Unknown(f"there is no step {reference!r}{did_you_mean(reference, self._steps)}")
        if not callable(reference):
            raise Unknown(f"{shown(reference)} is neither the name nor the function of a step")
        named = [name for name, step in self._steps.items() if step.function is reference]
        function = getattr(reference, "__name__", repr(reference))
        match named:
            case [name]:
                return name
            case []:
                raise Unknown(f"function {function} is not a step of this workflow")
            case _:
                raise Unknown(f"function {function} is several steps ({', '.join(named)}): use a name")


def did_you_mean(name: str, known: Mapping[str, object]) -> str:
    """Return the end of a message: the name that was probably meant, or those that exist."""
    close = get_close_matches(name[:200], known, n=1)
    if close:
        return f": did you mean {close[0]!r}?"
    listed = list(known)[:10]
    return f"; there is {', '.join(listed)}{', ...' if len(known) > len(listed) else ''}" if listed else ""
