"""What steps and roles do outside of the journal: lines in one file, each one write; no fault removes them."""

import fcntl
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

VARIABLE = "SQUID_CHAOS_EFFECTS"
FIRST_SAFE_DESCRIPTOR = 256  # workflow `closing` closes all below


def record(kind: str, **fields: Any) -> None:
    """Append one line about this process. A single write of a short line: lines of many processes never mix."""
    line = json.dumps({"kind": kind, "pid": os.getpid(), **fields}) + "\n"
    os.write(_descriptor(os.environ[VARIABLE]), line.encode())


@cache
def _descriptor(path: str) -> int:
    """Open the file for the rest of this process, under a descriptor that no other step closes."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    safe = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, FIRST_SAFE_DESCRIPTOR)
    os.close(file)
    return safe


def prepare() -> None:
    """Open the file now, while nothing else runs in this process."""
    if VARIABLE in os.environ:
        _descriptor(os.environ[VARIABLE])


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all lines in the order in which they were appended."""
    if path.exists():
        with path.open() as file:
            for line in file:
                yield json.loads(line)
