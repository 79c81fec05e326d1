"""What steps and actors do outside of the journal: lines in one file, appended whole, that no fault of ours takes back."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VARIABLE = "SQUID_CHAOS_EFFECTS"


def record(kind: str, **fields: Any) -> None:
    """Append one line about this process. A single write of a short line: lines of many processes never mix."""
    line = json.dumps({"kind": kind, "pid": os.getpid(), **fields}) + "\n"
    file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all lines in the order in which they were appended."""
    if path.exists():
        for line in path.read_text().splitlines():
            yield json.loads(line)
