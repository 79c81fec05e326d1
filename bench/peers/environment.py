"""The environment of the peers, beside the project's own: created on first use, and again when constraints change."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from bench.peers.process import ROOT, BenchError

DIRECTORY = ROOT / ".venv-peers"
PYTHON = str(DIRECTORY / "bin" / "python")
CONSTRAINTS = Path(__file__).with_name("constraints.txt")
REQUIREMENTS = ("dbos", "procrastinate", "pgqueuer", "asyncpg", "psycopg[binary,pool]", "uvloop")
_STAMP = DIRECTORY / "installed.txt"
_VERSIONS = (
    "import importlib.metadata as m, json, sys; "
    "print(json.dumps({n: m.version(n) for n in sys.argv[1:]} | {'python': sys.version.split()[0]}))"
)


def ensure() -> None:
    """Create the environment unless it exists with these constraints.

    Raises:
        BenchError: the packages cannot be installed.
    """
    wanted = CONSTRAINTS.read_text()
    if _STAMP.exists() and _STAMP.read_text() == wanted:
        return
    sys.stderr.write(f"making {DIRECTORY.name} with the peers (a minute or two, once)\n")
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(DIRECTORY)])
    (DIRECTORY / ".gitignore").write_text("*\n")
    _run([PYTHON, "-m", "pip", "install", "-q", "--progress-bar", "off", "-c", str(CONSTRAINTS), *REQUIREMENTS])
    _run([PYTHON, "-m", "compileall", "-q", str(DIRECTORY / "lib")], check=False)
    _STAMP.write_text(wanted)


def versions() -> dict[str, str]:
    """Return the versions of the peers, of their drivers and of their Python."""
    names = [requirement.partition("[")[0] for requirement in REQUIREMENTS]
    asked = subprocess.run([PYTHON, "-c", _VERSIONS, *names], capture_output=True, text=True, check=True)
    by_package: dict[str, str] = json.loads(asked.stdout)
    return by_package


def _run(command: list[str], *, check: bool = True) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        msg = f"{' '.join(command)} failed:\n{done.stderr[-2000:]}"
        raise BenchError(msg)
