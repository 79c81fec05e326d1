"""What steps and actors do outside of the journal: lines in one file, appended whole, that no fault takes back."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

VARIABLE = "SQUID_CHAOS_EFFECTS"


def record(kind: str, **fields: Any) -> None:
    """Append one line about this process. A single write of a short line: lines of many processes never mix."""
    line = json.dumps({"kind": kind, "pid": os.getpid(), **fields}) + "\n"
    for _ in range(5):  # a neighbour may close our descriptor under our hands: see workflow `closing`
        with suppress(OSError):
            file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.write(file, line.encode())
            os.close(file)
            return
    raise RuntimeError("the effect could not be recorded")


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all lines in the order in which they were appended."""
    if path.exists():
        for line in path.read_text().splitlines():
            yield json.loads(line)
