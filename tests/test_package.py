"""The package as its users import it."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import squid_dagster
from squid_dagster import journal, protocol, workflow


@pytest.mark.parametrize("package", [squid_dagster, journal, protocol, workflow], ids=lambda package: package.__name__)
def test_every_exported_name_is_there(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is not None


def test_a_name_that_is_not_exported_is_an_attribute_error() -> None:
    for package in (squid_dagster, journal):
        with pytest.raises(AttributeError, match="no_such_name"):
            package.no_such_name  # noqa: B018


def test_importing_the_package_loads_no_database_no_dagster_and_no_spark() -> None:
    heavy = "{'sqlalchemy', 'psycopg', 'pydantic', 'dagster', 'pyspark'}"
    code = f"import sys, squid_dagster, squid_dagster.journal; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_package_exports_what_the_plugin_does() -> None:
    from squid_dagster import SquidResource, plugin

    assert set(plugin.__all__) <= set(squid_dagster.__all__)
    assert SquidResource is plugin.SquidResource


def test_without_dagster_the_error_names_the_extra() -> None:
    names = [
        "SquidResource", "squid_definitions", "build_dispatch_job", "build_dispatch_sensor", "build_recovery_job",
        "build_recovery_schedule", "build_cron_schedules", "build_command_jobs", "build_projection_assets",
        "SquidComponent",
    ]  # fmt: skip
    # As if it were not installed: None in sys.modules makes every import of it fail.
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['dagster', 'dagster_shared', 'dagster_pyspark']))\n"
        "from squid_dagster import Signal, Squid, Workflow\n"
        f"for name in {names}:\n"
        "    try:\n        exec(f'from squid_dagster import {name}')\n"
        "    except ImportError as error:\n        print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name, line in zip(names, done.stdout.splitlines(), strict=True):
        assert line.startswith(f"squid_dagster.{name} needs dagster")
        assert line.endswith("which is not installed: run pip install 'squid-dagster[dagster]'")


def test_every_logger_of_ours_redacts() -> None:
    # The module that creates them, and those that read handlers and levels.
    own = {
        "logs.py",
        "plugin/dispatch/step_events.py",
        "cli/worker.py",
        "cli/terminal/stderr_log.py",
        "testing/simulation/campaign.py",
    }
    root = Path(squid_dagster.__file__).parent
    modules = {str(path.relative_to(root)) for path in root.rglob("*.py") if "getLogger(" in path.read_text("utf-8")}
    assert modules <= own, "take redacting_logger of squid_dagster.logs: no secret may get into a log"


def test_no_package_exports_a_name_that_one_of_its_modules_has() -> None:
    # The import of the module would replace what is exported, but only where the module is imported first.
    root = Path(squid_dagster.__file__).parent
    for init in root.rglob("__init__.py"):
        package = import_module(".".join(["squid_dagster", *init.parent.relative_to(root).parts]))
        modules = {path.stem for path in init.parent.iterdir() if path.suffix == ".py" or path.is_dir()}
        assert not modules & {*getattr(package, "__all__", ())}, package.__name__
