"""The wheel: what is in it, and that a `dg` project elsewhere can use it.

Real: the wheel, its installation by pip into a fresh environment, its entry points and scripts, and every `dg` command,
each in a process of its own outside the repository. Not fetched anew: Dagster and the other dependencies come from the
environment of the tests by a path in a `.pth` file, which leaves out the editable installation of this repository.
"""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from squid_dagster.api import Squid
from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.processes import REPOSITORY

MakeSquid = Callable[..., Squid]
PYPROJECT = """
[project]
name = "shop"
version = "0.1"
requires-python = ">=3.11"
dependencies = ["squid-dagster[dagster]"]

[tool.dg]
directory_type = "project"

[tool.dg.cli]
suppress_warnings = ["project_and_activated_venv_mismatch"]

[tool.dg.project]
root_module = "shop"
"""
DEFINITIONS = '''
"""A project with an executor, a resource, an asset and a job of its own."""
from pathlib import Path

import dagster as dg


class Greeter(dg.ConfigurableResource):
    greeting: str


@dg.asset
def stock() -> None: ...


@dg.op
def count() -> None: ...


@dg.job
def inventory() -> None:
    count()


own = {"greeter": Greeter(greeting="good morning")}


@dg.definitions
def defs() -> dg.Definitions:
    ours = dg.Definitions(assets=[stock], jobs=[inventory], resources=own, executor=dg.multiprocess_executor)
    return dg.Definitions.merge(ours, dg.load_from_defs_folder(path_within_project=Path(__file__).parent))
'''
WORKFLOWS = """
from typing import Annotated, Any

from squid_dagster import Resource, StepContext, Workflow

welcome = Workflow("welcome", version="1")


@welcome.step
def greet(ctx: StepContext, greeter: Annotated[Any, Resource("greeter")]) -> str:
    return greeter.greeting
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built as pip builds it."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*build, "-w", str(folder), str(REPOSITORY)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


class Project:
    """A `dg` project in a folder, with an environment of its own that holds the wheel."""

    def __init__(self, root: Path, wheel: Path, environment: dict[str, str]) -> None:
        """Write it and install the wheel."""
        self.root, self.home = root, root / "home"
        package = root / "src" / "shop"
        (package / "defs").mkdir(parents=True)
        self.home.mkdir()
        (root / "pyproject.toml").write_text(PYPROJECT)
        (self.home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
        (package / "__init__.py").touch()
        (package / "defs" / "__init__.py").touch()
        (package / "definitions.py").write_text(DEFINITIONS)
        (package / "workflows.py").write_text(WORKFLOWS)
        venv.create(root / ".venv", with_pip=False, symlinks=True)
        self.python = root / ".venv" / "bin" / "python"
        self._environment = environment
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "install", "-q", "--no-deps", "--no-index"]
        self.run(*pip, str(wheel))
        (site,) = (root / ".venv").glob("lib/python*/site-packages")
        # After the wheel, so that pip takes nothing of it for installed. A .pth in that folder is not followed.
        (site / "project.pth").write_text(f"{root / 'src'}\n{sysconfig.get_path('purelib')}\n")

    def run(self, *command: str) -> str:
        """Run a command in the project; give what it says. Fails when the command does."""
        hidden = ("SQUID_", "DATABASE_URL", "DAGSTER_", "VIRTUAL_ENV", "PYTHON")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
        env = {**inherited, "DAGSTER_HOME": str(self.home), **self._environment}
        done = subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def dg(self, *arguments: str) -> str:
        """Run `dg` of the project's environment."""
        return self.run(str(self.python), "-c", "from dagster_dg_cli.cli import main; main()", *arguments)


@pytest.fixture
def project(tmp_path: Path, wheel: Path, postgres: PostgresStorage, postgres_url: str) -> Project:
    """A project whose journal is that of the test."""
    return Project(tmp_path, wheel, {"SHOP_DATABASE_URL": postgres_url, "SQUID_SCHEMA": postgres.schema})


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        entries = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    info = f"squid_dagster-{version('squid-dagster')}.dist-info"
    package = {
        path.relative_to(REPOSITORY).as_posix()
        for path in (REPOSITORY / "squid_dagster").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    about = {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert names == package | about
    assert "squid_dagster/py.typed" in names
    assert "squid_dagster/testing/storage_contract/__init__.py" in names
    assert "[pytest11]\nsquid_dagster = squid_dagster.testing.plugin" in entries
    assert any(name.endswith(".sql") for name in names)
    assert {Path(name).suffix for name in package} <= {".py", ".sql", ".typed", ".mako", ".ini"}
    assert "squid = squid_dagster.cli:main" in entries
    assert "[dagster_dg_cli.registry_modules]\nsquid_dagster = squid_dagster.plugin" in entries


@pytest.mark.timeout(180)
def test_a_project_elsewhere_scaffolds_checks_merges_and_runs(project: Project, make_squid: MakeSquid) -> None:
    where = project.run(str(project.python), "-c", "import squid_dagster; print(squid_dagster.__file__)")
    assert where.strip().startswith(str(project.root / ".venv"))

    options = ("--workflow-modules", "shop.workflows", "--database-url-env", "SHOP_DATABASE_URL")
    project.dg("scaffold", "defs", "squid_dagster.plugin.SquidComponent", "durable", *options)
    written = yaml.safe_load((project.root / "src" / "shop" / "defs" / "durable" / "defs.yaml").read_text())
    assert written["type"] == "squid_dagster.plugin.SquidComponent"
    assert written["attributes"]["workflow_modules"] == ["shop.workflows"]

    assert "squid_dagster.plugin.SquidComponent" in project.dg("list", "components", "--json")
    assert "All definitions loaded successfully." in project.dg("check", "defs")

    config = "{ops: {squid_start_run: {config: {workflow: welcome}}}}"
    (project.root / "start.yaml").write_text(config)
    (project.root / "drain.yaml").write_text("{ops: {drain: {config: {linger_seconds: 0}}}}")
    project.dg("launch", "--job", "squid_start", "--config", "start.yaml")
    project.dg("launch", "--job", "squid_dispatch", "--config", "drain.yaml")
    squid = make_squid()
    (run,) = squid.list_runs().runs
    assert (run.workflow, run.status) == ("welcome", "completed")
    assert squid.inspect_run(run.run_id).outputs == {"greet": "good morning"}
