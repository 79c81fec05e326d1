"""stdout and stderr as the system hands them over: shared with chatty modules, closed, full, or of few characters."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from squid_dagster.api import Squid
from tests.cli.command_line import MAIN, MODULES, Answer, CommandLine
from tests.cli.workflows import hello, nap, orders
from tests.processes import REPOSITORY

CHATTY = ("-m", "tests.cli.modules.printer")
GONE = 'exec 3> >(:); wait $!; "$@" >&3'  # a reader that has ended before anything is written
LOADED = ("imported\n", "imported past Python\n", "imported by a child\n", "leaving\n")


def in_shell(cli: CommandLine, line: str, *args: str, **environ: str) -> Answer:
    """Type a command through a shell: `line` says what becomes of "$@"."""
    command = ["bash", "-c", line, "bash", sys.executable, "-c", MAIN, *args]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=os.environ | cli.environ | environ, capture_output=True, text=True, check=False
    )
    return Answer(done.returncode, done.stdout, done.stderr)


# --- stdout is for JSON alone ---------------------------------------------------------------------------------------


def test_what_modules_print_when_they_are_loaded_is_not_in_the_json(cli: CommandLine) -> None:
    done = cli.piped("run", "list", *CHATTY, "--json")
    assert done.json == {"runs": [], "next_cursor": None}
    for word in LOADED:
        assert word in done.err


def test_what_steps_and_their_processes_print_is_not_in_the_json(cli: CommandLine) -> None:
    run_id = cli.piped("run", "start", "chatty", *CHATTY, "--json").json["run_id"]
    done = cli.piped("worker", *CHATTY, "--until-idle", "--json")
    assert done.json["completed"] == 2
    for word in (*LOADED, "a plain step\n", "an isolated step\n"):
        assert word in done.err
    picture = cli.piped("run", "graph", run_id, *CHATTY, "--format", "mermaid")
    assert picture.out.startswith(("flowchart", "graph", "---"))
    assert "imported\n" in picture.err
    assert cli.piped("run", "graph", run_id, *CHATTY, "--format", "json", "--json").json["run_id"] == run_id


def test_without_json_stdout_is_shared(cli: CommandLine) -> None:
    assert "imported\n" in cli.piped("run", "list", *CHATTY).out


def test_json_that_stdout_cannot_spell_is_escaped(cli: CommandLine) -> None:
    Squid(cli.storage, [hello]).start("hello", {"name": "Zoë 🦑"}, run_id="o1")
    done = cli.piped("run", "inspect", "o1", "--json", PYTHONIOENCODING="latin-1")
    assert done.json["input"] == {"name": "Zoë 🦑"}
    assert done.out.isascii()


# --- stdout that takes nothing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize("command", [("status",), ("run", "list"), ("journal", "verify"), ("run", "graph", "o1")])
def test_output_that_cannot_be_written_is_one_line_and_exit_code_141(
    cli: CommandLine, command: tuple[str, ...], form: tuple[str, ...]
) -> None:
    Squid(cli.storage, [hello]).start("hello", run_id="o1")
    for line, word in (('"$@" >&-', "closed"), ('"$@" >/dev/full', "No space left"), (GONE, "went away")):
        error = in_shell(cli, line, *command, *form).refused(141, word)
        assert not form or json.loads(error)["error"] == "OutputClosed"


@pytest.mark.parametrize("command", ["--help", "--version", "run list --help"])
def test_help_that_cannot_be_written_is_one_line_too(cli: CommandLine, command: str) -> None:
    assert in_shell(cli, GONE, *command.split()).refused(141, "went away")
    assert in_shell(cli, '"$@" >/dev/full', *command.split()).refused(141, "No space left")


def test_no_connection_gets_the_number_of_a_closed_stream(cli: CommandLine) -> None:
    assert in_shell(cli, '"$@" <&- >&- 2>&-', "status") == Answer(141, "", "")
    assert in_shell(cli, '"$@" <&- 2>&-', "run", "list", "--json").json["runs"] == []
    assert in_shell(cli, '"$@" <&- 2>&-', "doctor", *MODULES).code in (0, 1)
    assert in_shell(cli, '"$@" 2>/dev/full', "run", "inspect", "nope").code == 3


def test_what_cannot_be_encoded_is_replaced(cli: CommandLine) -> None:
    squid = Squid(cli.storage, [orders])
    squid.start("orders", {"item": "Käse"}, run_id="o1")
    squid.worker(until_idle=True)
    done = cli.piped("run", "graph", "o1", PYTHONIOENCODING="ascii")
    assert (done.code, done.err) == (0, "")
    assert "review" in done.out
    assert "K?se" in cli.piped("run", "inspect", "o1").out


# --- one line, whatever happens -------------------------------------------------------------------------------------


def test_an_error_that_nobody_foresaw_is_one_line(empty_cli: CommandLine) -> None:
    args = ("run", "list", "-m", "tests.cli.modules.unknown_error")
    empty_cli(*args).refused(1, "RuntimeError: nobody knows what this is", "SQUID_DEBUG=1")
    error = json.loads(empty_cli(*args, "--json").refused(1))
    assert (error["error"], error["exit_code"]) == ("Unforeseen", 1)


def test_where_an_error_comes_from_is_shown_on_demand(empty_cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUID_DEBUG", "1")
    done = empty_cli("run", "list", "-m", "tests.cli.modules.unknown_error")
    assert (done.code, done.out) == (1, "")
    assert "Traceback" in done.err
    assert "tests/cli/modules/unknown_error.py" in done.err
    assert "tests/cli/modules/process_exit.py" in empty_cli("run", "list", "-m", "tests.cli.modules.process_exit").err


def test_a_module_that_ends_the_process_is_not_loaded(empty_cli: CommandLine) -> None:
    args = ("-m", "tests.cli.modules.process_exit")
    assert json.loads(empty_cli("run", "list", *args, "--json").refused(2))["error"] == "WorkflowsNotLoaded"
    empty_cli("worker", *args, "--until-idle").refused(2, "tests.cli.modules.process_exit", "sys.exit")
    empty_cli("worker", *MODULES, "--resources", "tests.cli.modules.process_exit:x", "--until-idle").refused(
        2, "SystemExit"
    )
    answer = empty_cli("doctor", *args, "--json")
    assert answer.code == 1
    assert "workflow_not_loadable" in {finding["code"] for finding in json.loads(answer.out)["findings"]}


@pytest.mark.parametrize(("group", "command"), [((), "quickstart"), (("run",), "explain"), (("queue",), "pause")])
def test_a_group_alone_shows_its_help(empty_cli: CommandLine, group: tuple[str, ...], command: str) -> None:
    done = empty_cli(*group)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Usage: ")
    assert re.search(rf"^  {command} ", done.err, re.MULTILINE)
    assert json.loads(empty_cli(*group, "--json").refused(2))["exit_code"] == 2


# --- what people read -----------------------------------------------------------------------------------------------


def test_a_worker_tells_what_it_did_once(cli: CommandLine) -> None:
    Squid(cli.storage, [hello]).start("hello")
    done = cli.on_terminal("worker", *MODULES, "--until-idle", both=True)
    assert (done.code, done.out.count("claimed 1, completed 1")) == (0, 1)


def test_an_empty_journal_says_so_to_people_alone(empty_cli: CommandLine) -> None:
    assert empty_cli("journal", "tail").out == "no facts\n"
    assert empty_cli("journal", "tail", "--json").out == ""


def test_one_attempt_is_not_several(cli: CommandLine) -> None:
    Squid(cli.storage, [hello]).start("hello")
    assert "1 attempt due" in cli("status").out
    assert cli("queue", "pause", "default").code == 0
    assert "1 attempt is due" in cli("status").out


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_who_stops_watching_is_told_in_one_line(cli: CommandLine, form: tuple[str, ...]) -> None:
    run_id = Squid(cli.storage, [nap]).start("nap").run_id
    with cli.process("run", "watch", run_id, *form) as child:
        assert child.stdout is not None
        assert run_id in child.stdout.readline() or not form
        child.send_signal(signal.SIGINT)
        out, err = child.communicate()
    assert (child.returncode, out) == (130, "")
    error: dict[str, Any] = {"error": "Interrupted", "message": "interrupted", "exit_code": 130}
    assert err == (json.dumps(error) if form else "Error: interrupted") + "\n"


def test_a_file_that_is_missing_is_no_trouble_of_stdout(empty_cli: CommandLine, tmp_path: Path) -> None:
    empty_cli("journal", "import", tmp_path / "nothing").refused(2, "nothing")
