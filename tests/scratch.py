"""Where temporary files of tests go: into memory where there is plenty of it, or else onto the disk.

A server makes a hundred files for each schema, and thousands of schemas are created: on disks that takes minutes.
"""

import os
from pathlib import Path

_MEMORY = Path("/dev/shm")  # noqa: S108  where Linux keeps files in memory
_DISK = "/tmp"  # noqa: S108  where every user may write
_ROOM_BYTES = 8 * 1024**3


def _free_memory_bytes() -> int:
    """Return how much memory programs can still take, as Linux estimates it."""
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), 0)


def _scratch_folder() -> str:
    """Return the folder in memory if both it and the memory have room and programs may be executed there, or `/tmp`."""
    try:
        memory = os.statvfs(_MEMORY)
        room = min(memory.f_bavail * memory.f_frsize, _free_memory_bytes())
    except OSError:
        return _DISK
    return _DISK if room < _ROOM_BYTES or memory.f_flag & os.ST_NOEXEC else str(_MEMORY)


SCRATCH = _scratch_folder()
