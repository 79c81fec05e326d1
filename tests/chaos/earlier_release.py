"""The code of an earlier release beside ours: its workers run on while the schema is upgraded under them."""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

from tests.processes import REPOSITORY

COMMIT = "ea294c8"  # schema version 5
_BORROWED = ("tests/chaos", "tests/processes.py", "tests/shifted_clock.py", "tests/servers")


def check_out(home: Path) -> Path | None:
    """Write the earlier code into a folder, with the workflows of chaos; return None where git does not have it."""
    archived = subprocess.run(
        ["git", "archive", COMMIT, "squid_dagster", "examples", "tests/__init__.py"],
        cwd=REPOSITORY,
        capture_output=True,
        check=False,
    )
    if archived.returncode != 0:
        return None
    folder = home / "older"
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
        archive.extractall(folder, filter="data")
    for name in _BORROWED:
        source, target = REPOSITORY / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return folder
