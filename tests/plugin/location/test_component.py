"""The `dg` component: what YAML says becomes definitions; what it must not say is refused without repeating it."""

import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components.testing import create_defs_folder_sandbox
from dagster.components.testing.utils import DefsFolderSandbox

from squid_dagster import InvalidArgument
from squid_dagster.plugin import SquidComponent, names
from squid_dagster.plugin.component import ProjectionsModel
from tests.plugin.external.definitions import train_model
from tests.plugin.location.test_definitions import drain_config, jobs_of, sensors_of

# Dagster's own, in what it does with any component.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`parse_obj_as` is deprecated"),
    pytest.mark.filterwarnings("ignore:Function `load_definitions_from_modules?` is currently in preview"),
    pytest.mark.filterwarnings("ignore:Parameter `execution_type` of function `AssetsDefinition.__init__`"),
    pytest.mark.filterwarnings("ignore:(Class|Function) `\\w*CodeReference\\w*` is currently"),
]

TYPE = "squid_dagster.plugin.SquidComponent"
FLOWS = ["tests.plugin.external.training"]
WORKING: dict[str, Any] = {
    "workflow_modules": FLOWS,
    "external_jobs": ["tests.plugin.external.definitions.train_model"],
}


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    """A `dg` project of its own."""
    with create_defs_folder_sandbox() as made:
        yield made


def load(sandbox: DefsFolderSandbox, **attributes: Any) -> dg.Definitions:
    """Load a `defs.yaml` with these attributes."""
    path = sandbox.scaffold_component(
        component_cls=SquidComponent, defs_yaml_contents={"type": TYPE, "attributes": attributes}
    )
    with sandbox.load_component_and_build_defs(path) as (component, defs):
        assert isinstance(component, SquidComponent)
        return defs


def refusal(sandbox: DefsFolderSandbox, **attributes: Any) -> str:
    """Return Dagster's text for a `defs.yaml` that cannot be loaded: our error stands below its own."""
    with pytest.raises(Exception, match=r"defs\.yaml \(SquidComponent\) \(error\)") as caught:
        load(sandbox, **attributes)
    return "".join(traceback.format_exception(caught.value))


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["postgresql://u:hunter2@db/journal", "{{ env.SHOP_SECRET }}"])
def test_a_url_in_yaml_is_refused_and_not_repeated(
    sandbox: DefsFolderSandbox, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_SECRET", "postgresql://u:hunter2@db/journal")
    message = refusal(sandbox, workflow_modules=FLOWS, database_url_env=said)
    assert "database_url_env is not the name of an environment variable" in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "workflow_modules"),
        ({"workflow_modules": []}, "workflow_modules"),
        ({"workflow_modules": FLOWS, "queues": []}, "queues"),
        ({"workflow_modules": FLOWS, "max_in_flight": 0}, "max_in_flight"),
        ({"workflow_modules": FLOWS, "events": "loud"}, "events"),
        ({"workflow_modules": FLOWS, "database_url": "postgresql://db"}, "database_url"),
        ({"workflow_modules": ["tests.nowhere"]}, "no module 'tests.nowhere'"),
    ],
)
def test_what_makes_no_sense_is_named(sandbox: DefsFolderSandbox, attributes: dict[str, Any], message: str) -> None:
    assert message in refusal(sandbox, **attributes)


@pytest.mark.parametrize("name", ["train_model", "tests.nowhere.job", "tests.plugin.external.definitions.nothing"])
def test_an_external_job_that_leads_nowhere_is_named(name: str) -> None:
    component = SquidComponent(workflow_modules=FLOWS, external_jobs=[name])
    with pytest.raises(InvalidArgument, match=name):
        component.options()


def test_an_external_job_that_is_no_job_is_refused() -> None:
    component = SquidComponent(workflow_modules=FLOWS, external_jobs=["tests.plugin.external.definitions.BROKEN"])
    with pytest.raises(InvalidArgument, match="no Dagster job but set"):
        component.options()


# --- what it gives --------------------------------------------------------------------------------------------------


def test_yaml_becomes_the_same_definitions_as_the_call(sandbox: DefsFolderSandbox) -> None:
    defs = load(
        sandbox,
        workflow_modules=FLOWS,
        queues=["mail", "bulk"],
        database_url_env="SHOP_DATABASE_URL",
        schema_name="shop",
        lease_seconds=60,
        max_in_flight=3,
        concurrency=4,
        linger_seconds=7,
        events="all",
        external_jobs=["tests.plugin.external.definitions.train_model"],
    )
    dg.Definitions.validate_loadable(defs)
    assert {names.START_JOB, names.DISPATCH_JOB, train_model.name} <= jobs_of(defs)
    assert names.EXTERNAL_SENSOR in sensors_of(defs)
    config = drain_config(defs)
    assert (config["concurrency"], config["linger_seconds"], config["events"]) == (4, 7, "all")
    resource: Any = (defs.resources or {})[names.RESOURCE]
    assert (resource.schema_name, resource.queue, resource.lease_seconds) == ("shop", "mail", 60)
    assert isinstance(resource.url, dg.EnvVar)
    assert resource.url.env_var_name == "SHOP_DATABASE_URL"


def test_yaml_adds_the_tables_that_spark_makes(sandbox: DefsFolderSandbox) -> None:
    attributes = {"spark_master": "local[2]", "warehouse": "s3://company/squid", "history_start": "2026-03-01"}
    defs = load(sandbox, **WORKING, projections=attributes)
    assert {"squid_dispatch", "squid_projections", "squid_checks", "squid_rebuild_views"} <= jobs_of(defs)
    spark, warehouse = (defs.resources or {})["spark"], (defs.resources or {})["squid_warehouse"]
    assert (spark.spark_master, warehouse.path) == ("local[2]", "s3://company/squid")
    history = defs.resolve_assets_def(dg.AssetKey(["squid", "run_history"])).partitions_def
    assert history is not None
    assert history.get_first_partition_key() == "2026-03-01"


def test_the_tables_are_left_out_unless_asked_for_and_have_defaults(sandbox: DefsFolderSandbox) -> None:
    assert "squid_projections" not in jobs_of(load(sandbox, **WORKING))
    assert "squid_projections" in jobs_of(load(sandbox, **WORKING, projections={}))


@pytest.mark.parametrize(
    "attributes", [{"spark_master": "sc://h:15002/;token=hunter2"}, {"spark_master_env": "sc://h:15002/;token=hunter2"}]
)
def test_a_token_in_yaml_is_refused_and_not_repeated_by_us(attributes: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="environment variable") as refused:
        ProjectionsModel(**attributes).definitions()
    assert "hunter2" not in str(refused.value)


def test_a_subclass_adds_what_yaml_cannot_say() -> None:
    class Ours(SquidComponent):
        """Names who asks."""

        def options(self) -> dict[str, Any]:
            return {**super().options(), "events": "none"}

    component = Ours(workflow_modules=FLOWS, external_jobs=["tests.plugin.external.definitions.train_model"])
    defs = component.build_defs(dg.ComponentTree.for_test().load_context)
    assert drain_config(defs)["events"] == "none"


def test_every_field_of_the_schema_is_described() -> None:
    model = SquidComponent.get_model_cls()
    assert model is not None
    schema = model.model_json_schema()
    assert [name for name, field in schema["properties"].items() if not field.get("description")] == []
    assert schema["required"] == ["workflow_modules"]


# --- scaffolding ----------------------------------------------------------------------------------------------------


def test_scaffolding_writes_a_workflow_that_loads(sandbox: DefsFolderSandbox) -> None:
    path = sandbox.scaffold_component(component_cls=SquidComponent, defs_path="durable")
    written = yaml.safe_load((path / "defs.yaml").read_text())
    assert written["attributes"]["workflow_modules"] == [f"{sandbox.project_name}.defs.durable.workflows"]
    with sandbox.build_all_defs() as defs:
        dg.Definitions.validate_loadable(defs)
        op: Any = defs.get_job_def(names.START_JOB).nodes[0].definition
        assert "`hello`" in op.config_schema.config_type.fields["workflow"].description


def test_scaffolding_takes_modules_and_the_name_of_the_variable(sandbox: DefsFolderSandbox) -> None:
    params = {"workflow_modules": ["shop.flows"], "database_url_env": "SHOP_URL"}
    path = sandbox.scaffold_component(component_cls=SquidComponent, scaffold_params=params)
    attributes = yaml.safe_load((path / "defs.yaml").read_text())["attributes"]
    assert attributes == {"workflow_modules": ["shop.flows"], "queues": ["default"], "database_url_env": "SHOP_URL"}
    assert not (path / "workflows.py").exists()


def test_scaffolding_refuses_a_url(sandbox: DefsFolderSandbox) -> None:
    with pytest.raises(InvalidArgument, match="name of an environment variable"):
        sandbox.scaffold_component(
            component_cls=SquidComponent, scaffold_params={"database_url_env": "postgresql://u:p@db/x"}
        )


def test_scaffolding_leaves_a_module_that_is_there_alone(sandbox: DefsFolderSandbox) -> None:
    folder = sandbox.defs_folder_path / "durable"
    folder.mkdir()
    (folder / "workflows.py").write_text("# mine\n")
    sandbox.scaffold_component(component_cls=SquidComponent, defs_path="durable")
    assert (folder / "workflows.py").read_text() == "# mine\n"


def test_scaffolding_as_python_writes_a_component_that_loads(sandbox: DefsFolderSandbox) -> None:
    path: Path = sandbox.scaffold_component(
        component_cls=SquidComponent, defs_path="in_python", scaffold_format="python"
    )
    assert "SquidComponent(workflow_modules=" in (path / "component.py").read_text()
    with sandbox.build_all_defs() as defs:
        assert names.DISPATCH_JOB in jobs_of(defs)
