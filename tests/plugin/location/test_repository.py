"""The code location of this repository: it loads without a warning of ours, from anywhere, and shows the journal."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml

import definitions
from examples import MODULES
from squid_dagster import SparkResource, SquidComponent, SquidResource, WarehouseResource, squid_definitions
from squid_dagster.api import Squid
from squid_dagster.plugin import names
from squid_dagster.plugin.projections import build_journal_asset
from squid_dagster.workflow import load_workflows
from tests.plugin import drain_workflows
from tests.plugin.conftest import URL_VARIABLE
from tests.plugin.location.test_definitions import MakeSquid, jobs_of, schedules_of, sensors_of
from tests.processes import REPOSITORY


def command(*arguments: str, cwd: Path, home: Path) -> str:
    """Run a program of the environment, with nothing of ours configured; give everything that it says."""
    hidden = ("SQUID_", "DATABASE_URL", "DAGSTER_", "VIRTUAL_ENV")
    env = {key: value for key, value in os.environ.items() if not key.startswith(hidden)}
    done = subprocess.run(
        [sys.executable, "-c", arguments[0], *arguments[1:]],
        cwd=cwd,
        env={**env, "XDG_DATA_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "yes"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


GUIDE = (REPOSITORY / "docs" / "dagster.md").read_text()
DG = "from dagster_dg_cli.cli import main; main()"
LIST = """
import warnings; warnings.simplefilter("error")
warnings.filterwarnings("ignore", "Parameter `owners` of initializer")
from dagster._core.workspace.load import location_origins_from_yaml_paths
import json, os, sys
(origin,) = location_origins_from_yaml_paths([sys.argv[1]])
print(json.dumps([origin.location_name, os.path.realpath(origin.loadable_target_origin.working_directory)]))
"""


def test_dg_check_defs_passes_without_a_warning_of_ours_and_opens_no_database(tmp_path: Path) -> None:
    said = command(DG, "check", "defs", cwd=REPOSITORY, home=tmp_path)
    # dagster-spark has a component of its own that is a preview, and `dg` loads all that are installed
    ours = re.sub(r"(?m)^.*PreviewWarning: Class `SparkDeclarativePipelineScaffolder`.*\n.*\n", "", said)
    assert ours.splitlines() == ["All component YAML validated successfully.", "All definitions loaded successfully."]
    assert list(tmp_path.iterdir()) == []  # neither a journal nor anything of Dagster's


def test_the_workspace_is_found_from_any_folder(tmp_path: Path) -> None:
    said = command(LIST, str(REPOSITORY / "workspace.yaml"), cwd=tmp_path, home=tmp_path)
    assert yaml.safe_load(said) == ["squid", str(REPOSITORY.resolve())]


def test_it_holds_all_example_workflows() -> None:
    defs = definitions.defs
    dg.Definitions.validate_loadable(defs)
    assert {names.DISPATCH_JOB, names.START_JOB, names.RECOVERY_JOB} <= jobs_of(defs)
    assert sensors_of(defs) == {names.DISPATCH_SENSOR, names.ATTENTION_SENSOR}
    crons = {"squid_cron_nightly_report_nightly"}
    assert schedules_of(defs) == {names.RECOVERY_SCHEDULE, names.PROJECTIONS_SCHEDULE, names.CHECKS_SCHEDULE, *crons}
    stems = {
        f"examples.{path.stem}" for path in (REPOSITORY / "examples").glob("*.py") if "Workflow(" in path.read_text()
    }
    assert set(MODULES) == stems
    assert len(load_workflows(MODULES)) == 6


def test_it_is_what_squid_definitions_builds_in_one_call() -> None:
    one_call = squid_definitions(
        resource=SquidResource(workflow_modules=list(MODULES)), spark=SparkResource(), warehouse=WarehouseResource()
    )

    def shape(defs: dg.Definitions) -> dict[str, Any]:
        repository = defs.get_repository_def()
        graph = repository.asset_graph
        return {
            "jobs": {job.name: (dict(job.tags), dict(job.run_config or {})) for job in repository.get_all_jobs()},
            "sensors": {
                sensor.name: (
                    sensor.default_status,
                    sensor.minimum_interval_seconds,
                    sensor.has_jobs and sensor.job.name,
                )
                for sensor in repository.sensor_defs
            },
            "schedules": {
                schedule.name: (schedule.cron_schedule, schedule.default_status, schedule.job.name)
                for schedule in repository.schedule_defs
            },
            "assets": graph.get_all_asset_keys(),
            "checks": set(graph.asset_check_keys),
            "resources": dict(defs.resources or {}),
        }

    assert shape(definitions.defs) == shape(one_call)


def test_no_name_of_the_location_s_folders_is_in_the_wheel() -> None:
    for folder in ("assets", "resources", "sensors"):
        assert (REPOSITORY / folder / "__init__.py").exists()
        assert not (REPOSITORY / "squid_dagster" / folder).exists()


def test_the_journal_asset_tells_how_far_it_is_and_what_queues_hold(
    resource: SquidResource, instance: dg.DagsterInstance, make_squid: MakeSquid
) -> None:
    squid: Squid = make_squid([drain_workflows.quick])
    squid.start("quick", {"number": 1})
    squid.start("quick", {"number": 2}, queue="mail")
    result = dg.materialize([build_journal_asset()], instance=instance, resources={"squid": resource})
    assert result.success
    (event,) = result.asset_materializations_for_node("squid__journal")
    cut = squid.journal.cut()
    assert event.metadata["squid/journal_high_water"].value == cut
    assert event.metadata["squid/due"].value == 2
    assert "mail" in str(event.metadata["squid/queues"].value)
    record = instance.get_latest_data_version_record(dg.AssetKey(["squid", "journal"]))
    assert record is not None
    assert dict((record.asset_materialization or event).tags or {})["dagster/data_version"] == str(cut)


def test_the_journal_asset_says_when_the_database_cannot_be_reached(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URL_VARIABLE, "postgresql://u:secret@127.0.0.1:1/db")
    resources = {"squid": SquidResource(url=dg.EnvVar(URL_VARIABLE))}
    result = dg.materialize([build_journal_asset()], instance=instance, resources=resources, raise_on_error=False)
    assert not result.success
    failed = next(event for event in result.all_events if event.is_step_failure)
    data: Any = failed.event_specific_data
    description = str(data.user_failure_data.description)
    assert description.startswith("cannot reach Postgres at postgresql+psycopg://u:***@127.0.0.1:1/db")


def test_the_snippets_of_the_guide_work_as_they_are_written(
    resource: SquidResource, instance: dg.DagsterInstance, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUID_DATABASE_URL", postgres_url)
    monkeypatch.setenv("SQUID_SCHEMA", str(resource.schema_name))
    snippet = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)[0]  # the next adds Spark: tests/test_docs.py
    namespace: dict[str, Any] = {"__name__": "guide"}
    exec(compile(snippet, "dagster.md", "exec"), namespace)  # noqa: S102
    defs: dg.Definitions = namespace["defs"]
    assert defs.get_job_def(names.START_JOB).execute_in_process(instance=instance).success
    config = {"ops": {"drain": {"config": {"linger_seconds": 0}}}}
    assert defs.get_job_def(names.DISPATCH_JOB).execute_in_process(instance=instance, run_config=config).success
    with Squid.connect(postgres_url, [namespace["orders"]]) as squid:
        assert [run.status for run in squid.list_runs().runs] == ["completed"]

    (written,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    attributes = yaml.safe_load(written)
    assert attributes["type"] == f"{SquidComponent.__module__.rpartition('.')[0]}.{SquidComponent.__name__}"
    assert SquidComponent(**attributes["attributes"]).database_url_env == "SQUID_DATABASE_URL"
