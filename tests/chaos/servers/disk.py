"""A disk of limited size for one Postgres server, that can be filled up: a tmpfs where we may mount one."""

import os
import subprocess
from pathlib import Path

SIZE_MIB = 3072
_FILLER = "filler"
_CHUNK_BYTES = 1 << 20


class Disk:
    """A directory; with `limited` true it is a file system of its own, which `fill` can use up."""

    def __init__(self, path: Path) -> None:
        """Create the directory, as a mount of its own if this user may."""
        self.path = path
        path.mkdir(mode=0o755)
        options = f"size={SIZE_MIB}m,mode=755"
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, check=False
        )
        self.limited = mounted.returncode == 0

    def fill(self) -> None:
        """Fill the disk with a file of root that grows until no space is left."""
        with (self.path / _FILLER).open("ab", buffering=0) as filler:
            free = os.statvfs(self.path)
            try:
                os.posix_fallocate(filler.fileno(), 0, free.f_bavail * free.f_frsize)
                while True:
                    filler.seek(0, os.SEEK_END)
                    filler.write(b"\0" * _CHUNK_BYTES)
            except OSError:  # full
                return

    def free(self) -> None:
        """Delete the file that fills the disk."""
        (self.path / _FILLER).unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount, if it was mounted."""
        if self.limited:
            subprocess.run(["umount", "-l", str(self.path)], capture_output=True, check=False)
