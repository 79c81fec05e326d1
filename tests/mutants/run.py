"""Tests run on a copy of the package, mutated on request, until the first failure; a pytest plugin checks the run."""

import compileall
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Queue
from uuid import uuid4

import psycopg
from psycopg import sql
from sqlalchemy import make_url

from squid_dagster.journal.embedded import EmbeddedPostgres
from tests.conftest import SERVER_VARIABLE
from tests.mutants.mutant import PACKAGE, ROOT, Mutant

GREEN, CAUGHT, TIMED_OUT = 0, 1, 124

Servers = Queue[str]
"""The URLs of servers that no run uses at the moment."""

# Loaded into every suite: checks that the copy is tested, and that a test failed rather than its set-up.
WITNESS = """
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
failed = []


def pytest_configure(config):
    try:
        import squid_dagster.protocol as package
    except Exception as error:
        pytest.exit(f"the mutant cannot be imported: {error!r}", returncode=70)
    if HERE not in Path(package.__file__).resolve().parents:
        pytest.exit(f"tests ran on {package.__file__}, not on the copy in {HERE}", returncode=71)


def pytest_runtest_logreport(report):
    if report.when != "setup" and report.failed:  # what a fixture checks in the end counts, too
        failed.append(report.nodeid)


def pytest_sessionfinish(session, exitstatus):
    if exitstatus == 1 and not failed:
        session.exitstatus = 72
"""


@contextmanager
def healthy_copy() -> Iterator[Path]:
    """Yield a directory with a copy of package and tests; the work tree is never touched."""
    with tempfile.TemporaryDirectory(prefix="squid-healthy-") as name:
        here = Path(name)
        for folder in (PACKAGE, "tests"):
            shutil.copytree(ROOT / folder, here / folder, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", here)
        (here / "mutant_witness.py").write_text(WITNESS)
        compileall.compile_dir(here / PACKAGE, quiet=1)
        yield here


@contextmanager
def mutated_copy(healthy: Path, mutant: Mutant) -> Iterator[Path]:
    """Yield a copy of the healthy copy with one rule broken: links, but for the mutated file and its bytecode."""
    with tempfile.TemporaryDirectory(prefix="squid-mutant-") as name:
        here = Path(name)
        shutil.copytree(healthy, here, copy_function=os.link, dirs_exist_ok=True)
        path = here / mutant.source
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()
        mutant.apply(here)
        yield here


def exit_code(here: Path, tests: Sequence[str], servers: Servers, timeout_seconds: float) -> int:
    """Run tests on a copy until their first failure, on a server that is theirs meanwhile."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "mutant_witness"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with database(servers) as url:
        environment |= {"PYTHONPATH": str(here), "SQUID_MUTANTS": "1", SERVER_VARIABLE: url}
        try:
            done = subprocess.run(
                [*command, *tests],
                cwd=here,
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return TIMED_OUT
    if done.returncode not in (CAUGHT, GREEN):
        print(done.stdout[-2000:], done.stderr[-2000:], sep="\n", file=sys.stderr)
    return done.returncode


@contextmanager
def database(servers: Servers) -> Iterator[str]:
    """Yield the URL of a new database on a server that no other run uses: tests read all sessions and locks."""
    server, name = servers.get(), f"mutant_{uuid4().hex}"
    try:
        with psycopg.connect(_plain(server), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield make_url(server).set(database=name).render_as_string(hide_password=False)
        with psycopg.connect(_plain(server), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
    finally:
        servers.put(server)


@contextmanager
def running_servers(count: int) -> Iterator[Servers]:
    """Yield servers without fsync; or the one that is given, for one run at a time."""
    servers = Servers()
    if SERVER_VARIABLE in os.environ:
        servers.put(os.environ[SERVER_VARIABLE])
        yield servers
        return
    with ExitStack() as stack:
        for _ in range(count):
            servers.put(stack.enter_context(_running_server()))
        yield servers


@contextmanager
def _running_server() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="squid-mutants-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        server = EmbeddedPostgres(Path(name) / "postgres")
        try:
            url = server.ensure_running()
            with psycopg.connect(_plain(url), autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET fsync = off")
                connection.execute("SELECT pg_reload_conf()")
            yield url
        finally:
            server.stop()


def _plain(url: str) -> str:
    """Return the URL as psycopg takes it."""
    return url.replace("postgresql+psycopg://", "postgresql://", 1)
