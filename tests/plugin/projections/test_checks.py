"""The asset checks of the journal and the job that restores its views, in Dagster. One Spark session for all."""

from pathlib import Path
from typing import Any, LiteralString

import dagster as dg
import psycopg
import pytest
from sqlalchemy.engine import make_url

from squid_dagster.api import Squid
from squid_dagster.journal import MemoryStorage, PostgresStorage, verify
from squid_dagster.plugin import SquidResource
from squid_dagster.plugin.names import REBUILD_VIEWS_JOB
from squid_dagster.plugin.projections.checks import build_projection_checks, check_result
from squid_dagster.plugin.projections.resources import SparkResource, WarehouseResource
from squid_dagster.plugin.projections.specs import key_of
from squid_dagster.plugin.projections.views_job import build_rebuild_views_job
from squid_dagster.spark.checks.results import REMEDIES, Check, CheckResult, RunProblem
from tests.journal.access import plain_url
from tests.spark.damages import OPEN, healthy

SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "512m", "spark.log.level": "OFF"}
ON = {
    Check.VIEWS: "run_index",
    Check.LISTED: "run_catalog",
    Check.SEQUENCES: "journal",
    Check.ANOMALIES: "journal_anomalies",
}


@pytest.fixture(scope="module")
def postgres_url(postgres_url: str) -> str:
    """A database of its own on the same server, for journals that Spark reads."""
    with psycopg.connect(plain_url(postgres_url), autocommit=True) as connection:
        connection.execute("CREATE DATABASE projection_checks")
    return make_url(postgres_url).set(database="projection_checks").render_as_string(hide_password=False)


pytestmark = pytest.mark.usefixtures("spark_while_needed")


def definitions(resource: SquidResource, house: Path, spark_master: str = "local[2]") -> dg.Definitions:
    """Build a location with the checks and the job."""
    checks = build_projection_checks()
    return dg.Definitions(
        asset_checks=[checks],
        jobs=[
            build_rebuild_views_job(),
            dg.define_asset_job("all", selection=dg.AssetSelection.all_asset_checks()),
            dg.define_asset_job(
                "one", selection=dg.AssetSelection.checks(dg.AssetCheckKey(key_of("journal"), Check.SEQUENCES.value))
            ),
        ],
        resources={
            "squid": resource,
            "spark": SparkResource(spark_master=spark_master, spark_config=SETTINGS),
            "squid_warehouse": WarehouseResource(path=str(house)),
        },
        executor=dg.in_process_executor,
    )


@pytest.fixture
def defs(resource: SquidResource, postgres: PostgresStorage, tmp_path: Path) -> dg.Definitions:
    """A location on a journal in which much has happened, and nothing is damaged."""
    healthy(postgres)
    return definitions(resource, tmp_path / "house")


def run(defs: dg.Definitions, job: str = "all", **options: Any) -> dg.ExecuteInProcessResult:
    """Run a job on an unused instance: a Dagster home that was deleted."""
    with dg.DagsterInstance.ephemeral() as instance:
        return defs.resolve_job_def(job).execute_in_process(instance=instance, raise_on_error=False, **options)


def evaluations(result: dg.ExecuteInProcessResult) -> dict[Check, dg.AssetCheckEvaluation]:
    """Return the evaluation of each check; assert that it is on its asset."""
    assert result.success
    evaluations = {Check(evaluation.check_name): evaluation for evaluation in result.get_asset_check_evaluations()}
    assert all(evaluation.asset_key == key_of(ON[check]) for check, evaluation in evaluations.items())
    return evaluations


def vector(evaluations: dict[Check, dg.AssetCheckEvaluation]) -> str:
    """Format all checks in order, green or red."""
    return " ".join("G" if evaluations[check].passed else "R" for check in Check)


def do(storage: PostgresStorage, text: LiteralString) -> None:
    """Execute a statement that bypasses the journal."""
    with storage.connection() as connection:
        assert connection.execute(storage.sql(text)).rowcount != 0


def test_checks_tell_remember_and_name_the_remedy(defs: dg.Definitions, postgres: PostgresStorage) -> None:
    first = evaluations(run(defs))
    assert vector(first) == "G G G R"  # the first check: all anomalies are new
    assert first[Check.ANOMALIES].severity is dg.AssetCheckSeverity.ERROR
    known = first[Check.ANOMALIES].metadata["squid/found"].value
    assert evaluations(run(defs, "one")).keys() == {Check.SEQUENCES}
    do(postgres, "UPDATE {schema}.runs SET status = 'idle' WHERE run_id = 'run-3-000000001'")

    second = evaluations(run(defs))

    assert vector(second) == "R G G G"
    red = second[Check.VIEWS]
    assert red.description == f"{OPEN}. Remedy: {REMEDIES[Check.VIEWS]}."
    assert red.metadata["squid/found"].value == 1
    assert OPEN in str(red.metadata["squid/runs"].value)
    assert "other values in status" in str(red.metadata["squid/runs"].value)
    assert second[Check.ANOMALIES].metadata["squid/known"].value == known
    assert second[Check.ANOMALIES].description is None


def test_the_job_that_a_red_check_names_turns_it_green(defs: dg.Definitions, postgres: PostgresStorage) -> None:
    do(postgres, "DROP TABLE {schema}.runs, {schema}.attempts, {schema}.anomalies")
    red = evaluations(run(defs))[Check.VIEWS]
    assert red.description is not None
    assert "the view runs is missing" in red.description
    assert REBUILD_VIEWS_JOB in red.description

    done = run(defs, REBUILD_VIEWS_JOB, run_config={"ops": {"squid_restore_views": {"config": {"partitions": 2}}}})

    assert done.success
    (output,) = done.filter_events(lambda event: event.is_successful_output)
    metadata = output.step_output_data.metadata
    assert metadata["squid/runs"].value == len(postgres.rows("SELECT FROM {schema}.runs"))
    assert metadata["squid/cut"].value == postgres.cut()
    assert vector(evaluations(run(defs))) == "G G G G"
    assert verify(postgres) == []


def test_what_cannot_be_done_is_said_in_one_line(
    resource: SquidResource, postgres: PostgresStorage, tmp_path: Path
) -> None:
    in_memory = SquidResource.for_testing(Squid(MemoryStorage(), []))
    for given, master, message in (
        (in_memory, "local[2]", "Spark reads a journal from Postgres, and this one is a MemoryStorage"),
        (resource, "yarn", "spark_master 'yarn' is none that is known"),
    ):
        wrong = definitions(given, tmp_path / "house", master)
        for job in ("all", REBUILD_VIEWS_JOB):
            result = run(wrong, job)

            assert not result.success
            (failed,) = result.filter_events(lambda event: event.is_step_failure)
            assert failed.step_failure_data.user_failure_data is not None
            assert message in str(failed.step_failure_data.user_failure_data.description)
    (tmp_path / "file").write_text("in the way")
    result = run(definitions(resource, tmp_path / "file"))
    (failed,) = result.filter_events(lambda event: event.is_step_failure)
    assert "cannot write in the warehouse" in str(failed.step_failure_data)
    assert list(result.get_asset_check_evaluations()) == []


def test_twenty_runs_are_named_and_the_others_counted() -> None:
    names = tuple(RunProblem(f"run-{n}", "runs: other values in status") for n in range(20))
    outcome = CheckResult(False, names, {"found": 1_234, "runs": 5_000}, "launch squid_rebuild_views")

    result = check_result(Check.VIEWS, outcome, 99)

    assert result.description is not None
    assert result.description.startswith("run-0, run-1, ")
    assert result.description.endswith("run-19 and 1,214 more. Remedy: launch squid_rebuild_views.")
    assert "and 1,214 more" in str(result.metadata["squid/runs"].value)
    assert result.metadata["squid/cut"].value == 99
