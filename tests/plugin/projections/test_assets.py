"""The warehouse in Dagster: assets, days, backfills, what they tell, and what they refuse."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from base64 import b64decode
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
from sqlalchemy.engine import make_url

from squid_dagster.api import Squid
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.plugin import SquidResource, names, squid_definitions
from squid_dagster.plugin.projections import (
    SparkResource,
    WarehouseResource,
    build_projection_assets,
    projection_definitions,
)
from squid_dagster.plugin.projections.plots import Series, bars, lines, ranks
from squid_dagster.plugin.projections.resources import default_warehouse
from squid_dagster.plugin.projections.specs import key_of
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.tables.warehouse import TABLES, Warehouse
from tests.journal.access import plain_url
from tests.plugin import drain_workflows
from tests.plugin.location.test_definitions import schedules_of
from tests.processes import REPOSITORY
from tests.spark.journal_generator import Plan, generate
from tests.spark.synthetic_runs import EventRates

ASSETS = ("journal", "folded_runs", *TABLES)
HISTORIES = ("run_history", "attempt_history")
DAYS = ["2026-01-01", "2026-01-02", "2026-01-03"]
SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "512m", "spark.log.level": "OFF"}


@pytest.fixture(scope="module")
def postgres_url(postgres_url: str) -> str:
    """A database of its own on the same server: what it holds is what these tests have put there."""
    with psycopg.connect(plain_url(postgres_url), autocommit=True) as connection:
        connection.execute("CREATE DATABASE projections")
    return make_url(postgres_url).set(database="projections").render_as_string(hide_password=False)


pytestmark = pytest.mark.usefixtures("spark_while_needed")


@pytest.fixture
def defs(resource: SquidResource, tmp_path: Path) -> dg.Definitions:
    """A location with the warehouse's assets, on a journal of its own."""
    mine = projection_definitions(
        spark=SparkResource(spark_master="local[2]", spark_config=SETTINGS),
        warehouse=WarehouseResource(path=str(tmp_path / "house")),
    )
    return dg.Definitions.merge(mine, dg.Definitions(resources={names.RESOURCE: resource}))


def run_job(defs: dg.Definitions, instance: dg.DagsterInstance, **options: Any) -> dg.ExecuteInProcessResult:
    """Run the job of all projections."""
    job = defs.resolve_job_def(names.PROJECTIONS_JOB)
    return job.execute_in_process(instance=instance, raise_on_error=False, **options)


def materialized(result: dg.ExecuteInProcessResult, name: str) -> dict[str | None, dg.AssetMaterialization]:
    """Return the materializations of an asset, by partition."""
    data: list[Any] = [event.event_specific_data for event in result.get_asset_materialization_events()]
    materializations = [record.materialization for record in data if record.materialization.asset_key == key_of(name)]
    assert len({one.partition for one in materializations}) == len(materializations)
    return {one.partition: one for one in materializations}


def error_text(result: dg.ExecuteInProcessResult) -> str:
    """Return the text of a failed run."""
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    data: Any = failed.event_specific_data
    return str(data.user_failure_data.description)


def version(event: dg.AssetMaterialization) -> str:
    """Return the data version of a materialization."""
    return (event.tags or {})["dagster/data_version"]


def test_assets_have_the_shape_that_a_dagster_user_expects(defs: dg.Definitions) -> None:
    dg.Definitions.validate_loadable(defs)
    graph = defs.resolve_asset_graph()
    assert {key.to_user_string() for key in graph.get_all_asset_keys()} == {f"squid/{name}" for name in ASSETS}
    for name in TABLES:
        assert graph.get(key_of(name)).parent_keys == {key_of("folded_runs")}
        assert graph.get(key_of(name)).is_partitioned is (name in HISTORIES)
    assert graph.get(key_of("folded_runs")).parent_keys == {key_of("journal")}
    days = graph.get(key_of("run_history")).partitions_def
    assert isinstance(days, dg.DailyPartitionsDefinition)
    assert graph.get(key_of("run_history")).backfill_policy == dg.BackfillPolicy.single_run()
    schedule = defs.resolve_schedule_def(names.PROJECTIONS_SCHEDULE)
    assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED
    assert schedule.job_name == names.PROJECTIONS_JOB


def test_one_call_brings_them_too_where_a_warehouse_is_given(tmp_path: Path) -> None:
    plain = squid_definitions(workflows=[drain_workflows.quick])
    assert not plain.resolve_asset_graph().get_all_asset_keys()
    for given in ({"warehouse": WarehouseResource(path=str(tmp_path))}, {"spark": SparkResource()}):
        defs = squid_definitions(workflows=[drain_workflows.quick], **given)
        dg.Definitions.validate_loadable(defs)
        assert key_of("queue_health") in defs.resolve_asset_graph().get_all_asset_keys()
        assert names.PROJECTIONS_SCHEDULE in schedules_of(defs)


def test_the_first_day_of_histories_is_configured() -> None:
    for start in ("2025-12-30", date(2025, 12, 30)):
        histories = build_projection_assets(history_start=start)[-1]
        assert isinstance(histories.partitions_def, dg.DailyPartitionsDefinition)
        assert histories.partitions_def.get_first_partition_key() == "2025-12-30"


def test_what_is_wrong_is_said_before_spark_is_started(
    defs: dg.Definitions, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    def fails(**resources: Any) -> str:
        given = {**(defs.resources or {}), **resources}
        other = dg.Definitions(assets=defs.assets, jobs=defs.jobs, resources=given)
        result = run_job(other, instance, op_selection=["squid__folded_runs"])
        assert not result.success
        return error_text(result)

    (tmp_path / "file").write_text("in the way")
    assert fails(squid_warehouse=WarehouseResource(path=str(tmp_path / "file"))).startswith(
        f"cannot write in the warehouse '{tmp_path / 'file'}'"
    )
    # Whichever is true: other tests of this process may have left their session behind.
    unusable = ("no Spark master answers (127.0.0.1:1", "this process has a Spark session on local[2]")
    assert fails(spark=SparkResource(spark_master="spark://127.0.0.1:1")).startswith(unusable)
    assert fails(spark=SparkResource(spark_master="mesos")).startswith("spark_master 'mesos' is none that is known")
    with Squid(MemoryStorage(), []) as squid:
        assert fails(squid=SquidResource.for_testing(squid)).startswith("Spark reads a journal from Postgres")
    assert not (tmp_path / "house" / "folded_runs").exists()


def test_one_run_brings_everything_up_to_date_and_the_next_one_changes_nothing(
    defs: dg.Definitions, instance: dg.DagsterInstance, postgres: PostgresStorage, tmp_path: Path
) -> None:
    generate(postgres, Plan(600, mix=EventRates(anomalies=0.2), every=timedelta(hours=2), runs_per_commit=36))
    cut = postgres.cut()

    first = run_job(defs, instance)

    assert first.success
    warehouse = Warehouse(str(tmp_path / "house"))
    for name in ASSETS[1:]:
        event = materialized(first, name)[None]
        manifest = warehouse.manifest(name)
        assert manifest is not None
        assert version(event) == str(cut)
        assert event.metadata["squid/covered_position"].value == cut
        assert event.metadata["dagster/row_count"].value == manifest.rows > 0
        assert event.metadata["squid/kind"].value in ("full", "incremental")
        assert "| day of start |" in str(event.metadata["squid/parts"].value)
    assert "| default |" in str(materialized(first, "queue_health")[None].metadata["squid/queues"].value)
    anomalies = materialized(first, "journal_anomalies")[None].metadata
    assert "| reason |" in str(anomalies["squid/latest_anomalies"].value)
    for name in HISTORIES:
        by_day = materialized(first, name)
        assert set(DAYS) <= by_day.keys()
        assert version(by_day[DAYS[0]]) == str(cut)
        counts: dict[str | None, Any] = {day: row.metadata["dagster/row_count"].value for day, row in by_day.items()}
        assert counts.pop(None) == sum(counts.values())
        assert instance.get_materialized_partitions(key_of(name)) == by_day.keys() - {None}
    for name, plots in (
        ("run_history", ("throughput", "latency")),
        ("attempt_history", ("throughput", "latency", "retries_by_step")),
    ):
        for plot in plots:
            shown = str(materialized(first, name)[None].metadata[f"squid/{plot}"].value)
            assert len(shown) < 20_000
            assert "nothing yet" not in drawn(shown)

    again = run_job(defs, instance)
    assert again.success
    for name in ASSETS[1:]:
        assert materialized(again, name).keys() == {None}
        event = materialized(again, name)[None]
        assert (version(event), event.metadata["squid/kind"].value) == (str(cut), "unchanged")

    # Some days, made anew from the journal, in one run; nothing else is touched.
    tags = {"dagster/asset_partition_range_start": DAYS[0], "dagster/asset_partition_range_end": DAYS[1]}
    config = {"ops": {"squid_histories": {"config": {"full": True}}}}
    backfill = run_job(defs, instance, tags=tags, run_config=config, asset_selection=[key_of(n) for n in HISTORIES])
    assert backfill.success
    for name in HISTORIES:
        by_day = materialized(backfill, name)
        assert by_day.keys() == set(DAYS[:2])
        assert {day: event.metadata["dagster/row_count"].value for day, event in by_day.items()} == {
            day: materialized(first, name)[day].metadata["dagster/row_count"].value for day in DAYS[:2]
        }


def drawn(markdown: str) -> str:
    """Decode the SVG of a Markdown image."""
    (data,) = re.findall(r"^!\[.*\]\(data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)\)$", markdown)
    text = b64decode(data).decode()
    assert ET.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314  our own text
    return text


def test_plots_stay_small_and_say_what_they_show() -> None:
    labels = [f"0{number % 9 + 1}-01" for number in range(62)]
    values: list[float | None] = [None if number % 7 == 0 else number * 12.345 for number in range(62)]
    series = [Series(f"series {number} <&>", values) for number in range(4)]
    for draw in (bars, lines):
        text = draw("a <title> & more", labels, series, " s")
        assert ET.fromstring(text) is not None  # noqa: S314  our own text
        assert "series 0 &lt;&amp;&gt;" in text
    assert len(lines("p", labels, series)) < 14_000  # a third more as an image in Markdown
    assert len(bars("p", labels, series[:2])) < 14_000
    ranked = ranks("a <title> & more", labels[:12], [Series("retries", values[:12]), Series("takeovers", values[:12])])
    assert ET.fromstring(ranked) is not None  # noqa: S314  our own text
    assert len(ranked) < 14_000
    for draw_none in (bars, lines, ranks):
        assert "nothing yet" in draw_none("p", [], [])


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"SQUID_WAREHOUSE": "s3://data/squid"}, "s3://data/squid"),
        ({"SQUID_DATA_DIR": "/srv/squid"}, "/srv/squid/warehouse"),
        ({"XDG_DATA_HOME": "/home/ada/data"}, "/home/ada/data/squid_dagster/warehouse"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "SQUID_DATA_DIR": "/volume"}, "/volume/warehouse"),
    ],
    ids=["named", "data directory", "user's data", "volume"],
)
def test_the_environment_says_where_tables_are_kept(environ: dict[str, str], expected: str) -> None:
    assert default_warehouse(environ) == expected


def test_in_kubernetes_the_warehouse_must_be_named() -> None:
    with pytest.raises(InvalidArgument, match="set SQUID_WAREHOUSE to a bucket"):
        default_warehouse({"KUBERNETES_SERVICE_HOST": "10.0.0.1"})


def test_a_location_with_projections_loads_without_spark() -> None:
    code = "import definitions, sys; print([name for name in ('pyspark', 'pyarrow', 'pandas') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
