"""`squid doctor`: seven faults, seven names, and nothing to say about a healthy system."""

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from examples import ledger
from examples.stack import LOCATION, Stack
from squid_dagster.api import Squid
from squid_dagster.cli.doctor import dagster_locations
from squid_dagster.cli.doctor.findings import CODES
from squid_dagster.journal import PostgresLiveness, PostgresStorage
from squid_dagster.journal.contract.worker_liveness import FORGOTTEN_AFTER, WorkerRow
from squid_dagster.journal.postgres.schema.drift import differences
from squid_dagster.plugin import names
from squid_dagster.plugin.dispatch import code_version
from tests.cli.command_line import MODULES, CommandLine
from tests.cli.workflows import hello, nap, orders
from tests.facts import planned, queued, started
from tests.journal.access import put, raw
from tests.plugin.processes import gated_location
from tests.plugin.processes.daemon import wait_for
from tests.scratch import SCRATCH


def announce(storage: PostgresStorage, *queues: str, definitions: tuple[str, ...] | None = None) -> None:
    """Report a worker as alive, as workers do."""
    row = WorkerRow(worker_id="w-1", queues=queues, definitions=definitions, host="here", pid=7)
    PostgresLiveness(storage).report(row)


def examined(cli: CommandLine, *args: object) -> dict[str, Any]:
    """Return the doctor's report; check that it writes no fact and no schema, and that its exit code fits."""
    facts = cli.facts()
    answer = cli("doctor", "--json", *args)
    report: dict[str, Any] = json.loads(answer.out)
    assert [*report] == ["healthy", "findings", "skipped", "passed"]
    assert (answer.code, answer.err) == (0 if report["healthy"] else 1, "")
    assert all([*finding] == ["code", "detail", "remedy"] and all(finding.values()) for finding in report["findings"])
    assert {row["code"] for part in ("findings", "skipped") for row in report[part]} | {*report["passed"]} == {*CODES}
    assert cli.facts() == facts
    assert not cli.storage.rows("SELECT FROM pg_namespace WHERE nspname LIKE 'squid_doctor%%'")
    return report


def codes(report: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in report["findings"]]


def alive(storage: PostgresStorage) -> Squid:
    """Create a healthy system: runs that are done, that wait for people and for later, and a worker."""
    squid = Squid(storage, [hello, orders, nap])
    squid.start_many("hello", [{}] * 3)
    squid.start("orders", {"item": "tea"})
    squid.start("nap")
    squid.worker(until_idle=True)
    squid.backlog.create("a", "card")
    announce(storage, "default")
    return squid


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "code", "word"),
    [
        (["--dagster", "workspace.yaml"], 2, "no address of a Dagster webserver"),
        (["--dagster", "http://"], 2, "no address"),
        (["--max-skew", "-1"], 2, "--max-skew"),
        (["--stuck-after", "soon"], 2, "--stuck-after"),
        (["--skip", "everything"], 2, "everything"),
        (["--schema", "No Such!"], 2, "No Such!"),
    ],
)
def test_a_question_that_makes_no_sense_is_one_line(
    empty_cli: CommandLine, args: list[str], code: int, word: str
) -> None:
    empty_cli("doctor", *args).refused(code, word)


# --- seven faults ---------------------------------------------------------------------------------------------------


def test_schema_drift(cli: CommandLine) -> None:
    alive(cli.storage)
    with raw(cli.storage) as connection:
        for plant in (
            "DROP INDEX runs_parent",
            "ALTER TABLE journal_entries DISABLE TRIGGER journal_entries_append_only",
            "ALTER TABLE journal_checkpoints ADD COLUMN note text",
            "CREATE TABLE somebody (id int)",
            "CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        ):
            connection.execute(plant)
    report = examined(cli, *MODULES)
    assert codes(report) == ["schema_drift"]
    detail = report["findings"][0]["detail"]
    for named in (
        "function refuse_change() differs",
        "index runs.runs_parent is missing",
        "table journal_checkpoints differs",
        "table somebody is not ours",
        "trigger journal_entries.journal_entries_append_only differs",
    ):
        assert named in detail


def test_an_outdated_schema_is_drift_too(cli: CommandLine) -> None:
    with raw(cli.storage) as connection:
        connection.execute("UPDATE squid_schema SET version = 1")
    report = examined(cli)
    assert codes(report) == ["schema_drift"]
    assert "squid db upgrade" in report["findings"][0]["remedy"]


def test_views_differ(cli: CommandLine) -> None:
    alive(cli.storage)
    with raw(cli.storage) as connection:
        connection.execute("UPDATE runs SET trigger = 'other' WHERE workflow = 'nap'")
        connection.execute("UPDATE backlog SET title = 'other'")
    report = examined(cli, *MODULES)
    assert codes(report) == ["views_differ"]
    assert "other values in trigger" in report["findings"][0]["detail"]
    assert "card a: other values in title" in report["findings"][0]["detail"]
    assert report["findings"][0]["remedy"] == "squid views rebuild"


@pytest.mark.parametrize(("seconds", "side"), [(-3600, "behind"), (3600, "ahead of")])
def test_clock_skew(cli: CommandLine, monkeypatch: pytest.MonkeyPatch, seconds: int, side: str) -> None:
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + seconds)
    report = examined(cli, *MODULES)
    assert codes(report) == ["clock_skew"]
    assert f"s {side} the database's" in report["findings"][0]["detail"]
    assert codes(examined(cli, *MODULES, "--max-skew", "4000")) == []


def test_stuck_runs_that_a_crash_left_halfway(cli: CommandLine) -> None:
    alive(cli.storage)
    put(cli.storage, started("unplanned"), queued("unplanned"), planned(run="unplanned"))
    put(cli.storage, started("unqueued"))
    report = examined(cli, *MODULES)
    assert codes(report) == ["stuck_runs"]
    assert "2 runs were left halfway" in report["findings"][0]["detail"]
    assert "unplanned, unqueued" in report["findings"][0]["detail"]
    assert "squid recover" in report["findings"][0]["remedy"]


def test_stuck_runs_that_a_live_worker_does_not_take(cli: CommandLine) -> None:
    squid = alive(cli.storage)
    squid.start("hello")
    assert codes(examined(cli, *MODULES)) == []  # it is due for a moment only
    report = examined(cli, *MODULES, "--stuck-after", "0")
    assert codes(report) == ["stuck_runs"]
    assert "although w-1 could take them" in report["findings"][0]["detail"]
    # and one whose workers have other workflows, although the workflow can be loaded
    announce(cli.storage, "default", definitions=("other/1",))
    report = examined(cli, *MODULES, "--stuck-after", "0")
    assert codes(report) == ["stuck_runs"]
    assert "none of which has that workflow" in report["findings"][0]["detail"]


def test_queue_without_worker(cli: CommandLine) -> None:
    squid = alive(cli.storage)
    squid.start_many("hello", [{}] * 2, queue="lonely")
    squid.start("hello", queue="shut")
    squid.pause_queue("shut")
    assert codes(examined(cli, *MODULES)) == []  # a worker may be about to start
    report = examined(cli, *MODULES, "--stuck-after", "0")
    assert codes(report) == ["queue_without_worker"]
    assert "queue 'lonely' has 2 attempts due" in report["findings"][0]["detail"]
    assert "--queue lonely" in report["findings"][0]["remedy"]


def test_workflow_not_loadable_because_of_its_module(cli: CommandLine) -> None:
    alive(cli.storage)
    report = examined(cli, "-m", "tests.cli.no_such_module")
    assert codes(report) == ["workflow_not_loadable"]
    assert "tests.cli.no_such_module" in report["findings"][0]["detail"]


def test_workflow_not_loadable_because_nobody_has_it(cli: CommandLine) -> None:
    squid = alive(cli.storage)
    squid.start("hello")
    announce(cli.storage, "default", definitions=("other/1",))
    for modules in ((), ("-m", "tests.cli.modules.resource_user")):
        report = examined(cli, *modules, "--stuck-after", "0")
        assert codes(report) == ["workflow_not_loadable"] * 3
        for name, finding in zip(("hello", "nap", "orders"), report["findings"], strict=True):
            assert f"workflow '{name}'" in finding["detail"]
    # a worker that has them all is enough
    announce(cli.storage, "default")
    assert codes(examined(cli, "-m", "tests.cli.modules.resource_user")) == []


# --- with a real Dagster --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(postgres_url: str, schema_names: Iterator[str]) -> Iterator[tuple[CommandLine, Stack]]:
    """A journal with a healthy system on it, and a Dagster whose location works on it, and has ticked."""
    storage = PostgresStorage(postgres_url, next(schema_names))
    storage.upgrade()
    alive(storage)
    with tempfile.TemporaryDirectory(prefix="squid-doctor-", dir=SCRATCH) as made:
        folder = Path(made)
        environment = {
            "SQUID_DATABASE_URL": postgres_url,
            "SQUID_SCHEMA": storage.schema,
            gated_location.GATE: str(folder / "gate"),
            ledger.LEDGER: str(folder / "ledger.db"),
        }
        with Stack(folder / "dagster", "tests.plugin.processes.gated_location", environment) as stack:
            wait_for(lambda: PostgresLiveness(storage).workers(FORGOTTEN_AFTER)[1:], stack)
            wait_for(lambda: _ticks(stack), stack)
            yield CommandLine(storage), stack
    storage.close()


def _ticks(stack: Stack) -> list[Any]:
    workspace = dagster_locations._ask(stack.address)
    return [tick for _, state in dagster_locations._sensors(workspace, []) for tick in state["ticks"]]


def test_nothing_is_wrong_with_a_healthy_system(served: tuple[CommandLine, Stack]) -> None:
    cli, stack = served
    announce(cli.storage, "default")
    report = examined(cli, *MODULES, "--dagster", stack.address)
    assert report == {"healthy": True, "findings": [], "skipped": [], "passed": [*CODES]}
    announce(cli.storage, "default")
    assert cli("doctor", *MODULES, "--dagster", stack.address).out.endswith("\n\nNothing is wrong.\n")


def test_dagster_elsewhere(served: tuple[CommandLine, Stack], cli: CommandLine) -> None:
    _, stack = served
    report = examined(cli, *MODULES, "--dagster", f"{stack.address}/")
    assert codes(report) == ["dagster_elsewhere"]
    assert f"location {LOCATION!r}" in report["findings"][0]["detail"]
    assert "SQUID_DATABASE_URL" in report["findings"][0]["remedy"]
    # a location that was here long ago, and ticks now, has gone elsewhere
    PostgresLiveness(cli.storage).report(
        WorkerRow(
            worker_id="d", kind=code_version.LOCATION_KIND, queues=(), host="h", pid=1, details={"location": LOCATION}
        )
    )
    assert codes(examined(cli, *MODULES, "--dagster", stack.address)) == []
    with raw(cli.storage) as connection:
        connection.execute("UPDATE presence SET seen_at = seen_at - interval '2 hours'")
    assert codes(examined(cli, *MODULES, "--dagster", stack.address)) == ["dagster_elsewhere"]


def test_the_names_are_those_of_the_plugin() -> None:
    assert dagster_locations.LOCATION_KIND == code_version.LOCATION_KIND
    assert (dagster_locations.DISPATCH_SENSOR, dagster_locations.DISPATCH_JOB) == (
        names.DISPATCH_SENSOR,
        names.DISPATCH_JOB,
    )


# --- what cannot be told --------------------------------------------------------------------------------------------


def test_a_check_that_cannot_be_made_says_why(cli: CommandLine) -> None:
    report = examined(cli, "--dagster", "http://127.0.0.1:1", "--skip", "clock_skew")
    assert report["healthy"]
    skipped = {check["code"]: check["reason"] for check in report["skipped"]}
    assert [*skipped] == ["clock_skew", "workflow_not_loadable", "dagster_elsewhere"]
    assert "--skip" in skipped["clock_skew"]
    assert "-m" in skipped["workflow_not_loadable"]
    assert "http://127.0.0.1:1 does not answer" in skipped["dagster_elsewhere"]
    shown = cli("doctor").out
    assert "skipped  dagster_elsewhere: no webserver was named" in shown
    assert "ok       schema_drift" in shown


@pytest.mark.parametrize("view", ["runs", "attempts", "children", "queues", "anomalies", "backlog"])
def test_missing_views_are_found_and_keep_nothing_else_from_being_checked(cli: CommandLine, view: str) -> None:
    with raw(cli.storage) as connection:
        connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(view)))
    report = examined(cli, *MODULES)
    assert codes(report) == ["schema_drift", "views_differ"]
    assert f"table {view} is missing" in report["findings"][0]["detail"]
    assert f".{view}" in report["findings"][1]["detail"]
    assert report["findings"][1]["remedy"] == "squid views rebuild"
    assert "clock_skew" in report["passed"]
    # and the remedy helps
    cli("views", "rebuild")
    assert codes(examined(cli, *MODULES)) == []


def test_what_is_left_out_is_told_when_another_check_stumbles_over_it(cli: CommandLine) -> None:
    with raw(cli.storage) as connection:
        connection.execute("DROP TABLE attempts")
    report = examined(cli, *MODULES, "--skip", "schema_drift", "--skip", "views_differ")
    assert codes(report) == ["views_differ"]
    assert {"stuck_runs", "queue_without_worker"} <= {check["code"] for check in report["skipped"]}


def test_a_table_that_is_missing_is_drift(cli: CommandLine) -> None:
    with raw(cli.storage) as connection:
        connection.execute("DROP TABLE journal_threads CASCADE")
    report = examined(cli, *MODULES)
    assert "schema_drift" in codes(report)
    assert "table journal_threads is missing" in report["findings"][0]["detail"]


@pytest.fixture
def reader(cli: CommandLine) -> CommandLine:
    """The command as a role that may read everything, and make nothing."""
    role = f"{cli.storage.schema}_reader"
    with raw(cli.storage) as connection:
        name, place = sql.Identifier(role), sql.Identifier(cli.storage.schema)
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(name))
        connection.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(place, name))
        connection.execute(sql.SQL("GRANT SELECT ON ALL TABLES IN SCHEMA {} TO {}").format(place, name))
        connection.execute(sql.SQL("GRANT SELECT ON ALL SEQUENCES IN SCHEMA {} TO {}").format(place, name))
    made = CommandLine(cli.storage)
    made.environ["SQUID_DATABASE_URL"] = cli.storage.engine.url.set(username=role).render_as_string(hide_password=False)
    return made


def test_a_role_that_may_not_make_a_schema_is_told_so(reader: CommandLine) -> None:
    report = examined(reader, *MODULES)
    assert report["healthy"]
    skipped = {check["code"]: check["reason"] for check in report["skipped"]}
    assert "permission denied" in skipped["schema_drift"]
    shown = reader("doctor", *MODULES).out
    assert "skipped  schema_drift: " in shown
    assert shown.endswith("\n\nNothing is wrong in what was checked; skipped: schema_drift, dagster_elsewhere.\n")


def test_a_role_that_may_not_make_a_schema_is_told_of_a_missing_view(reader: CommandLine) -> None:
    with raw(reader.storage) as connection:
        connection.execute("DROP TABLE attempts")
    report = examined(reader, *MODULES)
    assert codes(report) == ["views_differ"]
    assert "schema_drift" in {check["code"] for check in report["skipped"]}
    shown = reader("doctor", *MODULES)
    assert shown.code == 1
    assert "WRONG    views_differ: " in shown.out
    assert "Nothing is wrong" not in shown.out


def test_a_database_that_does_not_answer_a_check_is_no_diagnosis(reader: CommandLine) -> None:
    with raw(reader.storage) as connection:
        role = sql.Identifier(f"{reader.storage.schema}_reader")
        connection.execute(sql.SQL("REVOKE SELECT ON attempts FROM {}").format(role))
    reader("doctor", *MODULES).refused(4, "attempts")


def test_objects_are_compared_by_kind_and_name() -> None:
    meant: Any = {("index", "t.a"): ("1",), ("index", "t.b"): ("1",), ("table", "s"): ("1",), ("index", "s.a"): ("1",)}
    there: Any = {("index", "t.a"): ("1",), ("index", "t.b"): ("2",), ("function", "f()"): ("1",)}
    assert list(differences(meant, there)) == ["table s is missing", "function f() is not ours", "index t.b differs"]
