"""`squid db`, as a user types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import make_url

from squid_dagster.cli import main
from squid_dagster.journal.postgres.schema.names import CODE_VERSION

MAIN = "from squid_dagster.cli import main; main(prog_name='squid')"
KEYS = ["tier", "source", "running", "url", "schema", "version", "problem", "postgres", "pid", "data_dir", "socket_dir"]
UNSET = {
    "SQUID_SCHEMA": "",
    "SQUID_DATABASE_URL": "",
    "DATABASE_URL": "",
    "SQUID_DATA_DIR": "",
    "KUBERNETES_SERVICE_HOST": "",
}


def squid(*args: object, **environ: object) -> "subprocess.CompletedProcess[str]":
    full = os.environ | UNSET | {name: str(value) for name, value in environ.items()}
    command = [sys.executable, "-c", MAIN, *map(str, args)]
    return subprocess.run(command, env=full, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("command", ["start", "stop"])
def test_a_server_of_the_users_own_is_not_started_or_stopped(command: str) -> None:
    done = squid("db", command, "--json", SQUID_DATABASE_URL="postgres://u:hunter2@127.0.0.1:1/app")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"Postgres at 127.0.0.1:1/app (SQUID_DATABASE_URL) is not ours to {command}" in done.stderr
    assert "hunter2" not in done.stderr


def test_an_error_is_one_line_on_stderr(home: Path) -> None:
    (home / "file").write_text("in the way")
    done = squid("db", "start", "--data-dir", home / "file" / "data")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith(f"Error: the embedded Postgres cannot use {home}/file/data")
    assert done.stderr.count("\n") == 1


def test_kubernetes_without_a_named_directory_is_an_error() -> None:
    done = squid("db", "status", KUBERNETES_SERVICE_HOST="10.0.0.1")
    assert (done.returncode, done.stdout) == (4, "")
    assert "SQUID_DATA_DIR" in done.stderr


def test_a_wrong_option_is_a_usage_error() -> None:
    assert squid("db", "start", "--no-such-option").returncode == 2


def test_the_server_is_started_shown_and_stopped(used_directory: Path) -> None:
    before = squid("db", "status", "--json", SQUID_DATA_DIR=used_directory)
    started = squid("db", "start", "--json", SQUID_DATA_DIR=used_directory)
    shown = squid("db", "status", "--data-dir", used_directory)
    stopped = [squid("db", "stop", "--json", "--data-dir", used_directory) for _ in range(2)]
    stood = json.loads(before.stdout)
    assert (stood["running"], stood["source"], stood["problem"]) == (False, "SQUID_DATA_DIR", None)
    facts = json.loads(started.stdout)
    assert [*stood] == [*facts] == KEYS
    assert (facts["tier"], facts["running"], facts["data_dir"]) == ("embedded", True, str(used_directory))
    assert shown.stdout.startswith(
        f"embedded Postgres {facts['postgres']} in {used_directory}: running, pid {facts['pid']}, "
    )
    assert [json.loads(done.stdout)["stopped"] for done in stopped] == [True, False]
    assert {done.returncode for done in (before, started, shown, *stopped)} == {0}


def test_a_server_that_does_not_answer_is_no_usable_database_and_its_password_is_hidden() -> None:
    done = squid("db", "status", "--json", DATABASE_URL="postgres://u:hunter2@127.0.0.1:1/app")
    assert done.returncode == 4
    status = json.loads(done.stdout)
    assert [*status] == KEYS
    assert {name: value for name, value in status.items() if value is not None} == {
        "tier": "server",
        "source": "DATABASE_URL",
        "running": False,
        "url": "postgresql+psycopg://u:***@127.0.0.1:1/app",
        "schema": "squid",
        "problem": "it does not answer",
    }


def test_a_server_that_refuses_us_is_no_usable_database(postgres_url: str) -> None:
    elsewhere = make_url(postgres_url).set(database="no_such_database").render_as_string(hide_password=False)
    done = squid("db", "status", "--json", SQUID_DATABASE_URL=elsewhere)
    status = json.loads(done.stdout)
    assert (done.returncode, status["running"], status["version"]) == (4, True, None)
    assert "no_such_database" in status["problem"]


def test_status_shows_the_version_of_the_schema_that_was_named(postgres_url: str, schema: str) -> None:
    asked = ("db", "status", "--json", "--schema", schema)
    before = squid(*asked, SQUID_DATABASE_URL=postgres_url)
    assert squid("db", "upgrade", "--schema", schema, SQUID_DATABASE_URL=postgres_url).returncode == 0
    after = squid(*asked, SQUID_DATABASE_URL=postgres_url)
    shown = squid("db", "status", SQUID_DATABASE_URL=postgres_url, SQUID_SCHEMA=schema)
    assert [one.returncode for one in (before, after, shown)] == [0, 0, 0]
    reports = [json.loads(one.stdout) for one in (before, after)]
    assert [(one["schema"], one["version"]) for one in reports] == [(schema, None), (schema, CODE_VERSION)]
    assert f"schema {schema} at version {CODE_VERSION}" in shown.stdout


@pytest.mark.parametrize("blank", ["", "  ", "a\nb"])
@pytest.mark.parametrize("command", ["db start", "db stop", "db status", "db upgrade", "status", "run list"])
def test_a_blank_directory_or_schema_is_refused(command: str, blank: str, tmp_path: Path) -> None:
    for option in ("--data-dir", "--schema"):
        if option == "--schema" and command == "db stop":
            continue
        done = CliRunner(env={**UNSET, "HOME": str(tmp_path)}).invoke(main, [*command.split(), option, blank])
        assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert option in done.stderr


def test_help_loads_nothing_heavy() -> None:
    heavy = "{'sqlalchemy', 'psycopg', 'pydantic', 'dagster', 'pyspark', 'rich'}"
    commands = ["--help", "db --help", "journal --help", "journal export --help", "views --help", "status --help"]
    show = f"[main(each.split(), standalone_mode=False) for each in {[*commands, 'doctor --help']}]"
    code = f"import sys; from squid_dagster.cli import main; {show}; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")


def test_upgrade_creates_the_schema_that_was_named_and_may_be_repeated(postgres_url: str, schema: str) -> None:
    done = [squid("db", "upgrade", "--json", "--schema", schema, SQUID_DATABASE_URL=postgres_url) for _ in range(2)]
    assert [(one.returncode, one.stderr) for one in done] == [(0, ""), (0, "")]
    assert [json.loads(one.stdout)["version"] for one in done] == [CODE_VERSION] * 2
    assert json.loads(done[0].stdout)["schema"] == schema


def test_upgrade_of_an_unusable_schema_name_is_one_clear_line(postgres_url: str) -> None:
    done = squid("db", "upgrade", "--schema", "No Such!", SQUID_DATABASE_URL=postgres_url)
    assert (done.returncode, done.stdout) == (2, "")
    assert "'No Such!'" in done.stderr
