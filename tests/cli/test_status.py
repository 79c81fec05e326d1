"""`squid status`: one screen that says what there is, and names everything that needs a person, with what helps."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresDispatchStore, PostgresLiveness, PostgresStorage, WorkerRow
from squid_dagster.journal.postgres.schema.names import CODE_VERSION
from tests.cli.command_line import CommandLine
from tests.cli.workflows import gated, hello, nap, orders
from tests.facts import quarantined, started, step_paused
from tests.journal.access import put, raw
from tests.processes import REPOSITORY

KEYS = ["database", "now", "queues", "workers", "runs", "attention"]
NEEDED = ["kind", "count", "more", "queue", "summary", "commands", "run_ids"]


def announce(storage: PostgresStorage, *queues: str, worker_id: str = "w-1", **fields: Any) -> None:
    """Report a worker as alive, as workers do."""
    row = WorkerRow(worker_id=worker_id, queues=queues, host="here", pid=7, capacity=4, running=1, **fields)
    PostgresLiveness(storage).report(row)


def kinds(status: dict[str, Any]) -> list[tuple[str, str | None, int]]:
    assert all([*item] == NEEDED for item in status["attention"])
    return [(item["kind"], item["queue"], item["count"]) for item in status["attention"]]


def test_an_empty_journal_needs_nobody(empty_cli: CommandLine) -> None:
    status = empty_cli("status", "--json").json
    assert [*status] == KEYS
    assert status["database"]["tier"] == "server"
    assert status["database"]["description"].endswith("(SQUID_DATABASE_URL)")
    assert (status["database"]["schema"], status["database"]["version"]) == (empty_cli.storage.schema, CODE_VERSION)
    assert (status["queues"], status["workers"], status["attention"]) == ([], [], [])
    assert {figures["count"] for figures in status["runs"].values()} == {0}
    assert datetime.fromisoformat(status["now"]).tzinfo is not None
    shown = empty_cli("status").out
    assert "runs: none" in shown
    assert "Nothing needs attention." in shown


def test_without_a_database_there_is_one_line(empty_cli: CommandLine) -> None:
    empty_cli("status", "--schema", "no_such_schema").refused(4, "`squid db upgrade --schema no_such_schema`")
    empty_cli.environ["SQUID_DATABASE_URL"], before = (
        "postgres://u:hunter2@127.0.0.1:1/x",
        empty_cli.environ["SQUID_DATABASE_URL"],
    )
    try:
        said = empty_cli("status", "--json").refused(4, "cannot reach Postgres")
    finally:
        empty_cli.environ["SQUID_DATABASE_URL"] = before
    assert "hunter2" not in said
    assert json.loads(said)["error"] == "StorageUnavailable"


def test_work_and_workers_are_counted(cli: CommandLine) -> None:
    squid = Squid(cli.storage, [hello, orders, nap])
    squid.start_many("hello", [{}] * 3)
    squid.worker(until_idle=True)
    squid.start("nap")
    squid.start_many("hello", [{}] * 2)
    squid.pause_queue("slow")
    PostgresDispatchStore(cli.storage).claim("default", "w-1")
    announce(cli.storage, "default", "mail")
    status = cli("status", "--json").json
    assert {name: figures["count"] for name, figures in status["runs"].items() if figures["count"]} == {
        "running": 3,
        "completed": 3,
    }
    queue, slow = status["queues"]
    assert datetime.fromisoformat(queue.pop("oldest_due_at")) <= datetime.now(UTC)
    assert queue == {
        "queue": "default",
        "paused": False,
        "visible": 1,
        "scheduled": 1,
        "claimed": 1,
        "expired": 0,
        "counted_up_to": 10_000,
        "worker_count": 1,
    }
    assert (slow["queue"], slow["paused"], slow["oldest_due_at"]) == ("slow", True, None)
    (worker,) = status["workers"]
    assert (worker["worker_id"], worker["queues"], worker["running"], worker["capacity"]) == (
        "w-1",
        ["default", "mail"],
        1,
        4,
    )
    assert status["attention"] == []
    shown = cli("status").out
    assert "runs: 3 running, 3 completed" in shown
    assert "w-1" in shown


def test_everything_that_needs_a_person_is_named_with_the_commands_that_help(cli: CommandLine) -> None:
    storage = cli.storage
    squid = Squid(storage, [hello, orders, gated])
    # given a run that waits for a person, and one whose deadline is over
    squid.start("orders", {"item": "tea"}, run_id="waits")
    squid.worker(until_idle=True)
    due = (datetime.now(UTC) - timedelta(hours=2)).isoformat()
    put(storage, started("late"), step_paused("late", metadata={"deadline": {"due_at": due}}))
    # a dead letter, a quarantined run
    squid.start("gated", {"begun": "x", "gate": "y"}, run_id="dead", queue="mail")
    dispatch = PostgresDispatchStore(storage)
    dispatch.claim("mail", "w-1", lease=timedelta(milliseconds=1))
    while not dispatch.dead_letter_expired("mail"):
        pass
    squid.start("hello", run_id="broken", queue="mail")
    with raw(storage) as connection:
        connection.execute("ALTER TABLE journal_entries DISABLE TRIGGER ALL")
        connection.execute("UPDATE journal_entries SET data = '{}' WHERE run_id = 'broken' AND type = 'run_started'")
        connection.execute("ALTER TABLE journal_entries ENABLE ALWAYS TRIGGER journal_entries_append_only")
    put(storage, quarantined("broken"))
    # work on a queue without a worker, on a paused one, and a lease that ran out
    squid.start("hello", queue="lonely")
    squid.start("hello", queue="shut")
    squid.pause_queue("shut")
    announce(storage, "busy")
    squid.start("hello", queue="busy")
    dispatch.claim("busy", "w-1", lease=timedelta(milliseconds=1))
    status = cli("status", "--json").json
    assert kinds(status) == [
        ("quarantined", None, 1),
        ("dead_letters", None, 1),
        ("deadlines", None, 1),
        ("waiting", None, 2),
        ("expired_leases", "busy", 1),
        ("no_worker", "lonely", 1),
        ("queue_paused", "shut", 1),
    ]
    needed = {item["kind"]: item for item in status["attention"]}
    assert needed["quarantined"]["run_ids"] == ["broken"]
    assert "squid run explain broken" in needed["quarantined"]["commands"]
    assert "squid queue retry dead" in needed["dead_letters"]["commands"]
    assert "over for 2 h" in needed["deadlines"]["summary"]
    assert needed["deadlines"]["run_ids"] == ["late"]
    assert sorted(needed["waiting"]["run_ids"]) == ["late", "waits"]
    assert needed["no_worker"]["commands"] == ["squid worker -m MODULE --queue lonely"]
    assert needed["queue_paused"]["commands"] == ["squid queue resume shut"]
    shown = cli("status").out
    assert all(item["summary"] in shown for item in status["attention"])
    assert f"$ {needed['no_worker']['commands'][0]}" in shown
    schema = cli.environ.pop("SQUID_SCHEMA")
    elsewhere = cli("status", "--json", "--schema", schema).json["attention"]
    assert all(command.endswith(f" --schema {schema}") for item in elsewhere for command in item["commands"])


def test_the_figures_are_read_from_views_and_never_from_the_facts() -> None:
    for name in ("cli/status.py", "journal/postgres/views/counts.py"):
        assert "journal_entries" not in (REPOSITORY / "squid_dagster" / name).read_text()
