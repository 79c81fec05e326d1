"""The peak memory of the processes of a Spark session, sampled from /proc."""

import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_EVERY_SECONDS = 0.2
_PAGE = os.sysconf("SC_PAGE_SIZE")

Peaks = dict[str, float]
"""Most memory in MiB, by kind of process; of several of one kind, of the largest."""


@contextmanager
def peaks() -> Iterator[Peaks]:
    """Watch this process and all below it until the end."""
    most: Peaks = defaultdict(float)
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_EVERY_SECONDS):
            for kind, size in _sizes():
                most[kind] = max(most[kind], size)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield most
    finally:
        done.set()
        watching.join()


def _sizes() -> Iterator[tuple[str, float]]:
    parents = {int(path.name): _parent(path) for path in Path("/proc").glob("[0-9]*")}
    for pid in parents:
        if _is_below(pid, parents):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except (OSError, IndexError):  # ended meanwhile
                continue
            yield _kind(pid, command), pages * _PAGE / 2**20


def _is_below(pid: int | None, parents: dict[int, int | None]) -> bool:
    while pid:
        if pid == os.getpid():
            return True
        pid = parents.get(pid)
    return False


def _kind(pid: int, command: str) -> str:
    if pid == os.getpid():
        return "python driver"
    if "org.apache.spark" in command:
        return "JVM, driver and executor in one"
    return "python worker" if "pyspark.daemon" in command else "other"


def _parent(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None
