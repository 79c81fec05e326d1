"""`deploy/`: the compose file and the notes name only commands and files that exist."""

import importlib.util
import re
import signal
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from examples import MODULES, ledger
from squid_dagster.api import Squid
from squid_dagster.journal.contract.dispatch_store import DEFAULT_LEASE
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.workflow import load_workflows
from tests.plugin.drain_workflows import wait_until
from tests.processes import REPOSITORY, Child, children

DEPLOY = REPOSITORY / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"] == "squid-dagster"]
NOTES = (DEPLOY / "kubernetes.md").read_text()
MANIFESTS = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", NOTES, re.DOTALL)]
POD_COMMANDS = [manifest["spec"]["template"]["spec"]["containers"][0]["command"] for manifest in MANIFESTS]


def check(command: list[str]) -> None:
    """Fail unless the program is one that we install, with such commands and options, or a module that can be run."""
    program, *arguments = command
    if program == "python":
        assert arguments[0] == "-m"
        assert importlib.util.find_spec(arguments[1]) is not None
        assert "__main__" in (REPOSITORY / (arguments[1].replace(".", "/") + ".py")).read_text()
        return
    (script,) = entry_points(group="console_scripts", name=program)
    loaded: Any = script.load()
    if not isinstance(loaded, click.Command):  # a function around the group
        loaded = vars(importlib.import_module(loaded.__module__))["cli"]
    _parse(loaded, program, arguments)


def _parse(command: click.Command, name: str, arguments: list[str]) -> None:
    context = command.make_context(name, list(arguments))  # raises for an option that is not there
    if isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        _, below, left = command.resolve_command(context, rest)
        assert below is not None
        _parse(below, rest[0], left)


@pytest.mark.parametrize("name", OURS)
def test_every_command_of_the_compose_file_exists(name: str) -> None:
    check(SERVICES[name]["command"])


@pytest.mark.parametrize("command", POD_COMMANDS, ids=" ".join)
def test_every_command_of_the_notes_for_kubernetes_exists(command: list[str]) -> None:
    check(command)


def test_a_command_that_does_not_exist_would_be_noticed() -> None:
    for command in (["squid", "nothing"], ["dagster-daemon", "run", "--nothing"], ["dagster", "code-server", "halt"]):
        with pytest.raises(click.UsageError):
            check(command)
    with pytest.raises(AssertionError):
        check(["python", "-m", "examples.nothing"])


def test_journal_and_dagster_have_databases_of_their_own_and_no_password_is_written_down() -> None:
    environment = SERVICES["location"]["environment"]
    assert "@journal:" in environment["SQUID_DATABASE_URL"]
    assert environment["DAGSTER_POSTGRES_URL"].startswith("postgresql+psycopg2://dagster:${DAGSTER_PASSWORD:?")
    assert {"journal", "dagster"} <= SERVICES.keys()
    for service in ("journal", "dagster"):
        assert SERVICES[service]["environment"]["POSTGRES_PASSWORD"].startswith("${")


def test_nothing_starts_before_the_migration_is_done() -> None:
    def needs(name: str) -> set[str]:
        below = SERVICES[name].get("depends_on", {})
        return set(below) | {name for one in below for name in needs(one)}

    for name in set(OURS) - {"migrate"}:
        assert "migrate" in needs(name)
    assert SERVICES["migrate"]["command"] == ["squid", "db", "upgrade"]
    assert SERVICES["migrate"]["restart"] == "no"
    assert "migrate" in SERVICES["prepare"]["depends_on"]


def test_the_grace_of_workers_is_above_the_lease() -> None:
    lease = DEFAULT_LEASE.total_seconds()
    assert int(SERVICES["worker"]["stop_grace_period"].removesuffix("s")) > lease
    (worker,) = [manifest for manifest in MANIFESTS if manifest["kind"] == "Deployment"]
    assert worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > lease
    assert [manifest["kind"] for manifest in MANIFESTS] == ["Job", "Deployment"]


def test_only_the_webserver_is_reachable_and_only_from_this_machine() -> None:
    ports = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert ports == {"webserver": ["127.0.0.1:3000:3000"]}


def test_files_that_are_named_are_there() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    files = [REPOSITORY / name for line in copied for name in line.split()]
    workspaces = [REPOSITORY / part for name in OURS for part in SERVICES[name]["command"] if part.endswith(".yaml")]
    linked = [DEPLOY / name for page in DEPLOY.glob("*.md") for name in re.findall(r"\]\(([^):]+)\)", page.read_text())]
    missing = [path for path in (*files, *workspaces, *linked) if not path.exists()]
    assert files
    assert workspaces
    assert missing == []


def test_the_instance_and_the_workspace_fit_the_services() -> None:
    instance = yaml.safe_load((DEPLOY / "dagster.yaml").read_text())
    assert instance["storage"]["postgres"]["postgres_url"] == {"env": "DAGSTER_POSTGRES_URL"}
    (server,) = yaml.safe_load((DEPLOY / "workspace.yaml").read_text())["load_from"]
    command = SERVICES["location"]["command"]
    assert SERVICES.keys() >= {server["grpc_server"]["host"]}
    assert str(server["grpc_server"]["port"]) == command[command.index("-p") + 1]
    assert Path(command[command.index("-f") + 1]) == Path("definitions.py")


def test_preparing_twice_and_a_plain_worker_do_what_the_compose_file_wants_of_them(
    postgres: PostgresStorage, postgres_url: str, tmp_path: Path
) -> None:
    book = tmp_path / "ledger.db"
    env = {"SQUID_DATABASE_URL": postgres_url, "SQUID_SCHEMA": postgres.schema, ledger.LEDGER: str(book)}
    with children() as started, Squid(postgres, load_workflows(MODULES)) as squid:
        for _ in range(2):
            started.append(Child("examples.prepare", env=env))
            assert started[-1].end() == 0
        paid = squid.start("payment_recovery", {"account_id": "a-1", "amount": 100}).run_id
        worker = Child("examples.worker", env=env)
        started.append(worker)
        wait_until(lambda: squid.inspect_run(paid).terminal or worker.process.poll() is not None)
        assert squid.inspect_run(paid).status == "completed"
        worker.process.send_signal(signal.SIGTERM)
        assert worker.end() == 0
