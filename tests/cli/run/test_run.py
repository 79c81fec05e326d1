"""`squid run start|list|inspect|explain|graph|timeline`: what goes in is checked, what comes out has stable keys."""

import json
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from squid_dagster.api import Squid
from squid_dagster.cli.place import Place
from squid_dagster.cli.run.display import explanation_facts
from squid_dagster.inspection import Action, Explanation, RunSummary
from squid_dagster.inspection.run_list import LISTED_STATUSES
from squid_dagster.limits import CARD_NUMBER, MAX_CLAIMS, MAX_LEASE, MAX_PRIORITY, MIN_PRIORITY
from tests.cli.command_line import MODULES, CommandLine
from tests.cli.workflows import hello, orders


def paused_order(cli: CommandLine, **payload: object) -> str:
    squid = Squid(cli.storage, [orders])
    run_id = squid.start("orders", {"item": "tea", "password": "hunter2", **payload}).run_id
    squid.worker(until_idle=True)
    return run_id


def test_the_help_names_every_status(empty_cli: CommandLine) -> None:
    said = " ".join(empty_cli("run", "list", "--help").out.split())
    assert [status for status in LISTED_STATUSES if status not in said] == []


# --- starting -------------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_told_as_one_types(empty_cli: CommandLine) -> None:
    empty_cli("run", "inspect", "nope").refused(3, "'nope'", "`squid run list`")
    empty_cli("run", "start", "orders", "--version", 9, *MODULES).refused(3, "version '9'", "orders 1", "with -m")


@pytest.mark.parametrize(
    ("args", "limits"),
    [
        (["run", "start", "hello", "--priority", MAX_PRIORITY + 1], f"{MIN_PRIORITY}<=x<={MAX_PRIORITY}"),
        (["worker", "--lease", MAX_LEASE.total_seconds() + 1], f"0<x<={int(MAX_LEASE.total_seconds())}"),
        (["worker", "--concurrency", MAX_CLAIMS + 1], f"1<=x<={MAX_CLAIMS}"),
        (["backlog", "create", "--priority", CARD_NUMBER + 1], f"-{CARD_NUMBER}<=x<={CARD_NUMBER}"),
        (["backlog", "claim", "--ttl", int(MAX_LEASE.total_seconds()) + 1], "1<=x<="),
    ],
)
def test_the_real_limits_are_in_the_help_and_in_the_refusal(
    empty_cli: CommandLine, args: list[object], limits: str
) -> None:
    option = str(args[-2])
    shown = empty_cli(*args[: args.index(option)], "--help").out
    assert limits in "".join(shown.split())
    said = empty_cli(*args, *(("--owner", "w") if option == "--ttl" else ())).refused(2, option)
    assert limits in said.replace(".0", "")


def test_a_start_says_that_the_module_is_missing(empty_cli: CommandLine) -> None:
    empty_cli("run", "start", "hello").refused(3, "'hello'", "known: none", "with -m")
    empty_cli("run", "start", "helo", *MODULES).refused(3, "'helo'", "hello", "-m (given: tests.cli.workflows)")
    assert empty_cli.facts() == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--payload", "{"], ["--payload", "not JSON"]),
        (["--payload", "[1]"], ["JSON object"]),
        (["--payload", '{"name": NaN}'], ["NaN"]),
        (["--payload", "{}", "-p", "name=x"], ["one way"]),
        (["--payload-file", "/no/such/file"], ["cannot be read"]),
        (["-p", "name"], ["NAME=VALUE"]),
        (["-p", "name=a", "-p", "name=b"], ["twice"]),
        (["-p", "name=3"], ["name", "string"]),
        (["--metadata", "7"], ["--metadata", "JSON object"]),
        (["--actor", " "], ["--actor", "empty"]),
        (["--idempotency-key", ""], ["--idempotency-key"]),
        (["--queue", "no such!"], ["no such!"]),
        (["--run-id", "a/b"], ["a/b"]),
        (["--run-id", "a", "--idempotency-key", "b"], ["not both"]),
        (["--trigger", "moon"], ["moon"]),
        (["--priority", "high"], ["--priority"]),
        (["-m", "tests.cli.no_such_module"], ["tests.cli.no_such_module"]),
    ],
)
def test_a_start_that_makes_no_sense_is_one_line_and_writes_nothing(
    empty_cli: CommandLine, args: list[str], words: list[str]
) -> None:
    empty_cli("run", "start", "hello", *MODULES, *args).refused(2, *words)
    assert empty_cli.facts() == 0


def test_an_error_is_json_where_that_was_asked_for(empty_cli: CommandLine) -> None:
    error = json.loads(empty_cli("run", "start", "hello", "--json").refused(3))
    assert (error["error"], error["exit_code"]) == ("NotFound", 3)


def test_an_unknown_version_is_not_found(empty_cli: CommandLine) -> None:
    empty_cli("run", "start", "orders", *MODULES, "--version", "9", "-p", "item=tea").refused(3, "'9'")


def test_a_start_with_a_key_is_done_once(cli: CommandLine) -> None:
    args = ("run", "start", "orders", *MODULES, "--json", "-p", "item=tea", "-p", "amount=2", "--idempotency-key", "k")
    first, second = cli(*args).json, cli(*args).json
    assert list(first) == ["run_id", "signal_type", "received_at", "idempotency_key", "repeated", "workflow"]
    assert (first["repeated"], second["repeated"]) == (False, True)
    assert first["run_id"] == second["run_id"]
    cli(*args[:-4], "-p", "amount=3", "--idempotency-key", "k").refused(1, "'k'")
    assert Squid(cli.storage).inspect_run(first["run_id"]).input["amount"] == 2


def test_what_is_said_beside_a_start_is_recorded(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "order.json").write_text('{"item": "tea"}')
    said = ("--actor", "ada", "--comment", "at last", "--metadata", '{"ticket": 7}')
    where = ("--queue", "slow", "--priority", 3, "--run-id", "mine")
    started = cli("run", "start", "orders", *MODULES, "--payload-file", tmp_path / "order.json", *said, *where)
    assert started.out == "run mine of orders started\n"
    run = Squid(cli.storage).inspect_run("mine")
    (command,) = run.command_history
    assert (command.actor, command.comment, command.metadata) == ("ada", "at last", {"ticket": 7})
    assert (run.queue, run.priority, run.input["item"]) == ("slow", 3, "tea")


def test_a_payload_is_read_from_stdin_and_the_actor_is_the_user(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "grace")
    args = ("run", "start", "hello", *MODULES, "--json", "--payload-file", "-")
    run_id = cli(*args, input='{"name": "you"}').json["run_id"]
    run = Squid(cli.storage).inspect_run(run_id)
    assert (run.input, run.command_history[0].actor) == ({"name": "you"}, "grace")


def test_a_workflow_whose_steps_ask_for_resources_can_be_started_without_them(cli: CommandLine) -> None:
    assert cli("run", "start", "needy", "-m", "tests.cli.modules.resource_user", "--json").json["repeated"] is False


# --- listing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["--status", "asleep"], "asleep"),
        (["--status", ","], "--status"),
        (["--started-after", "yesterday"], "yesterday"),
        (["--started-before", "2026-11-16T00:00:00"], "zone"),
        (["--limit", "0"], "--limit"),
        (["--cursor", "nonsense"], "nonsense"),
    ],
)
def test_a_bad_filter_is_one_line(empty_cli: CommandLine, args: list[str], word: str) -> None:
    empty_cli("run", "list", *args).refused(2, word)


def test_runs_are_listed_page_by_page_by_their_filters(cli: CommandLine) -> None:
    waiting = paused_order(cli)
    squid = Squid(cli.storage, [hello])
    others = [receipt.run_id for receipt in squid.start_many("hello", [{}, {}, {}])]

    page = cli("run", "list", "--workflow", "hello", "--limit", 2, "--json").json
    rest = cli("run", "list", "--workflow", "hello", "--limit", 2, "--cursor", page["next_cursor"], "--json").json
    assert list(page) == ["runs", "next_cursor"]
    assert list(page["runs"][0]) == list(RunSummary.__dataclass_fields__)
    assert [run["run_id"] for run in page["runs"] + rest["runs"]] == others[::-1]
    assert rest["next_cursor"] is None

    listed = cli("run", "list", "--status", "paused,failed", "--started-after", "2020-01-01T00:00:00Z", "--json").json
    assert [run["run_id"] for run in listed["runs"]] == [waiting]
    shown = cli("run", "list", "--limit", 1, "--open")
    assert others[-1] in shown.out
    assert "more: the same command with --cursor r1." in shown.out
    assert cli("run", "list", "--queue", "elsewhere").out == "no runs\n"


def test_no_run_is_held_because_no_module_was_named(cli: CommandLine) -> None:
    Squid(cli.storage, [hello]).start("hello")
    held = cli("run", "list", "-m", "tests.cli.modules.resource_user", "--json").json
    assert [run["status"] for run in held["runs"]] == ["held"]
    assert [run["status"] for run in cli("run", "list", "--json").json["runs"]] == ["running"]
    run_id = held["runs"][0]["run_id"]
    assert cli("run", "explain", run_id, "--json").json["reason"] == "no_worker_for_queue"


# --- looking at one -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["inspect", "explain", "graph", "timeline", "watch"])
def test_an_unknown_run_is_not_found(empty_cli: CommandLine, command: str) -> None:
    empty_cli("run", command, "nobody").refused(3, "'nobody'")
    empty_cli("run", command, "no body").refused(2, "'no body'")


def test_a_run_is_shown_redacted_now_and_as_it_was(cli: CommandLine) -> None:
    run_id = paused_order(cli)
    now = cli("run", "inspect", run_id, "--json").json
    assert now == json.loads(json.dumps(now))
    assert (now["status"], now["manual_state"]["step"], now["history"]) == ("paused", "review", None)
    assert now["outputs"] == {"check": {"amount": 1}}
    assert cli("run", "inspect", run_id, *MODULES, "--json").json["outputs"] == {"checked": {"amount": 1}}

    before = cli("run", "inspect", run_id, "--at-revision", 1, "--history", "--json").json
    assert {fact["type"] for fact in before["history"]} == {"run_queued", "attempt_scheduled", "run_signal_received"}
    cli("run", "inspect", run_id, "--at-revision", 99).refused(2, "99")

    shown = cli("run", "inspect", run_id, "--history")
    assert shown.code == 0
    for word in ("orders 1", "approval 'review'", "check", "start_run", "manual_step_paused"):
        assert word in shown.out
    assert "hunter2" not in shown.out + json.dumps(now)


def test_an_explanation_names_the_command_to_type(cli: CommandLine) -> None:
    run_id = paused_order(cli)
    document = cli("run", "explain", run_id, "--json").json
    assert list(document) == list(Explanation.__dataclass_fields__)
    state = (document["status"], document["reason"], document["step"])
    assert state == ("paused", "manual_intervention_required", "review")
    shown = cli("run", "explain", run_id)
    assert shown.out.startswith(document["summary"])
    assert f"squid run approve {run_id} -m MODULE" in shown.out


def test_what_an_explanation_suggests_works_when_it_is_pasted(cli: CommandLine) -> None:
    run_id, schema = paused_order(cli), cli.environ.pop("SQUID_SCHEMA")
    asked = ("run", "explain", run_id, *MODULES, "--schema", schema)
    wanted = f"squid run approve {run_id} -m tests.cli.workflows --schema {schema}"
    assert wanted in cli(*asked).out
    actions = {action["action"]: action for action in cli(*asked, "--json").json["next_actions"]}
    assert list(actions["approve"]) == ["action", "call", "note", "command"]
    assert actions["approve"]["command"] == wanted
    assert actions["cancel"]["command"] == f"squid run cancel {run_id} --schema {schema}"
    assert cli(*shlex.split(wanted)[1:]).code == 0


def test_what_the_environment_says_is_not_said_again(cli: CommandLine) -> None:
    run_id = paused_order(cli)
    cli.environ["SQUID_MODULES"] = MODULES[1]
    actions = {action["action"]: action for action in cli("run", "explain", run_id, "--json").json["next_actions"]}
    assert actions["approve"]["command"] == f"squid run approve {run_id}"


def test_one_of_several_dead_letters_is_named_by_its_key(cli: CommandLine) -> None:
    keys = ("run-1:a:1:1", "run-1:b:1:1")
    explanation = Explanation(
        run_id="run-1", workflow=None, definition_version=None, queue="default", status="running",
        reason="dead_letter", step="a", summary="", details={"runnable_keys": list(keys)},
        next_actions=tuple(Action("retry_attempt", f"squid.retry_attempt('run-1', {key!r})") for key in keys),
        evidence=(), as_of=datetime.now(UTC),
    )  # fmt: skip
    commands = [action["command"] for action in explanation_facts(explanation, Place())["next_actions"]]
    assert commands == [f"squid queue retry run-1 {key}" for key in keys]


def test_a_graph_is_a_tree_mermaid_svg_or_json(cli: CommandLine) -> None:
    run_id = paused_order(cli)
    tree = cli("run", "graph", run_id, *MODULES)
    assert tree.out.splitlines()[0] == f"orders · {run_id} · paused"
    assert [line.split()[-1] for line in tree.out.splitlines() if "review" in line] == ["◀"]
    assert "[error] fail" in tree.out
    assert cli("run", "graph", run_id, "--format", "mermaid").out.startswith("flowchart TB\n")
    assert cli("run", "graph", run_id, "--format", "svg").out.startswith("<svg")
    assert cli("run", "graph", run_id, "--json").json["mode"] == "history"
    assert cli("run", "graph", run_id, *MODULES, "--format", "json").json["mode"] == "routes"
    cli("run", "graph", run_id, "--json", "--format", "svg").refused(2, "--format svg")


def test_a_timeline_tells_every_fact(cli: CommandLine) -> None:
    run_id = paused_order(cli)
    document = cli("run", "timeline", run_id, "--json").json
    assert (list(document), document["run_id"]) == (["run_id", "events"], run_id)
    kinds = [event["kind"] for event in document["events"]]
    assert (kinds[0], kinds[-1]) == ("run_signal_received", "manual_step_paused")
    shown = cli("run", "timeline", run_id)
    assert all(event["summary"] in shown.out for event in document["events"])


# --- the frame ------------------------------------------------------------------------------------------------------


def test_no_database_is_one_line(cli: CommandLine) -> None:
    cli.environ["SQUID_DATABASE_URL"] = "postgresql://u:hunter2@127.0.0.1:1/none"
    for command in (["run", "list"], ["run", "start", "hello", *MODULES], ["queue", "list"], ["recover"]):
        assert "hunter2" not in cli(*command).refused(4)


def test_help_of_the_groups_loads_nothing_heavy() -> None:
    heavy = "{'sqlalchemy', 'psycopg', 'pydantic', 'dagster', 'pyspark', 'rich'}"
    groups = ["run"], ["run", "cancel"], ["run", "watch"], ["queue"], ["cron"], ["worker"], ["recover"]
    shown = [f"main([*{path!r}, '--help'], standalone_mode=False)" for path in groups]
    begin = ["import sys", "from squid_dagster.cli import main"]
    code = "\n".join([*begin, *shown, f"print({heavy} & {{*sys.modules}})"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")


@pytest.mark.parametrize("form", [["--json"], []])
def test_the_reader_of_a_list_may_go_away(cli: CommandLine, form: list[str]) -> None:
    Squid(cli.storage, [hello]).start_many("hello", [{}] * 300)
    with cli.process("run", "list", "--limit", 300, *form) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read().count("\n") == 1
    assert child.returncode == 141
