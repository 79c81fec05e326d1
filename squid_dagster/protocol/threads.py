"""Thread ids, and the keys of runnables and visits. No other module builds or parses a thread id."""

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from squid_dagster.protocol.errors import InvalidThread, shown

PART_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"
PART_MAX_LENGTH = 200
_PART = re.compile(PART_PATTERN.removesuffix("$") + r"\Z")


class ThreadKind(StrEnum):
    """The five kinds of threads."""

    RUN = "run"
    DISPATCH = "dispatch"
    RUN_INDEX = "run_index"
    RUN_CATALOG = "run_catalog"
    BACKLOG = "backlog"


class Thread(NamedTuple):
    """A parsed thread id."""

    kind: ThreadKind
    part: str

    def __str__(self) -> str:
        """Return the thread id."""
        return f"squid:{self.kind.value}:{self.part}"


def run_thread(run_id: str) -> str:
    """Return the id of a run's own thread."""
    return f"squid:run:{run_id}"


def dispatch_thread(queue: str) -> str:
    """Return the id of a queue's thread."""
    return f"squid:dispatch:{queue}"


def run_index_thread(workflow: str) -> str:
    """Return the id of a workflow's index thread."""
    return f"squid:run_index:{workflow}"


CATALOG_THREAD = "squid:run_catalog:all"
BACKLOG_THREAD = "squid:backlog:cards"

_ONLY_PART = {ThreadKind.RUN_CATALOG: "all", ThreadKind.BACKLOG: "cards"}


def is_part(value: object) -> bool:
    """Return whether a value may be part of a thread id."""
    return isinstance(value, str) and len(value) <= PART_MAX_LENGTH and _PART.match(value) is not None


def check_part(value: str, what: str) -> str:
    """Return `value` if it may be part of a thread id; else raise `InvalidThread`, naming `what` and the value."""
    if not is_part(value):
        raise InvalidThread(
            f"{what} {shown(value, 250)} cannot be part of a thread id: use 1 to {PART_MAX_LENGTH} letters, digits, "
            "'_', '.' or '-', beginning with a letter or a digit"
        )
    return value


def parse_thread(thread_id: str) -> Thread:
    """Parse a thread id. Raises `InvalidThread`."""
    if not isinstance(thread_id, str):
        raise InvalidThread(f"{shown(thread_id)} is not a thread id: expected a text such as 'squid:run:...'")
    return _parse(thread_id)


@lru_cache(maxsize=4096)
def _parse(thread_id: str) -> Thread:
    prefix, _, rest = thread_id.partition(":")
    kind_name, _, part = rest.partition(":")
    if prefix != "squid" or kind_name not in {kind.value for kind in ThreadKind}:
        kinds = ", ".join(f"squid:{kind.value}:..." for kind in ThreadKind)
        raise InvalidThread(f"{thread_id!r} is not a thread id: expected one of {kinds}")
    kind = ThreadKind(kind_name)
    check_part(part, f"the last part of {thread_id!r},")
    if _ONLY_PART.get(kind, part) != part:
        raise InvalidThread(
            f"{thread_id!r} is not a thread id: the only {kind.value} thread is 'squid:{kind.value}:{_ONLY_PART[kind]}'"
        )
    return Thread(kind, part)


def runnable_key(run_id: str, step: str, visit: int, attempt_number: int) -> str:
    """Return the key of one attempt at one visit of a step."""
    return f"{run_id}:{step}:{visit}:{attempt_number}"


def idempotency_key(run_id: str, step: str, visit: int) -> str:
    """Return the key that all attempts of one visit share, for steps to pass to external systems."""
    return f"{run_id}:{step}:{visit}"
