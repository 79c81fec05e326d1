"""`make dev`: it prints an address that answers, with the location loaded, and Ctrl-C leaves nothing running."""

import json
import os
import re
import signal
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples import dev
from examples.stack import StackError
from squid_dagster.journal.embedded import EmbeddedPostgres
from tests.plugin.drain_workflows import wait_until
from tests.processes import REPOSITORY, Child, children
from tests.scratch import SCRATCH

LOADED = """{workspaceOrError {... on Workspace {locationEntries {name locationOrLoadError {
  __typename ... on RepositoryLocation {repositories {sensors {name sensorState {status}} jobs {name}}}}}}}}"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the embedded server's user can reach, and that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="squid-dev-", dir=SCRATCH) as made:
        Path(made).chmod(0o755)
        yield Path(made)


def ask(address: str, query: str) -> Any:
    body = json.dumps({"query": query}).encode()
    request = urllib.request.Request(f"{address}/graphql", body, {"Content-Type": "application/json"})  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        return json.loads(answer.read())["data"]


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of all processes that name the folder."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        processes += [line] if str(folder) in line else []
    return processes


@pytest.mark.parametrize("port", ["none", "0", "70000"])
def test_a_port_that_cannot_be_is_refused(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dev.PORT, port)
    with pytest.raises(StackError, match=f"SQUID_DEV_PORT is '{port}'"):
        dev._port()


def test_make_dev_runs_it() -> None:
    rules = (REPOSITORY / "Makefile").read_text()
    assert re.search(r"^dev: setup .*\n\t@?\$\(BIN\)/python -m examples\.dev$", rules, re.MULTILINE)


@pytest.mark.timeout(180)
def test_it_prints_an_address_that_answers_and_ctrl_c_leaves_nothing_running(folder: Path) -> None:
    # As a shell's `&` starts it: with SIGINT ignored, which must not make it deaf.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with children() as started:
        try:
            started.append(Child("examples.dev", env={dev.FOLDER: str(folder)}))
        finally:
            signal.signal(signal.SIGINT, before)
        child = started[0]
        wait_until(
            lambda: any("Dagster is at" in line for line in child.lines) or child.process.poll() is not None, 120
        )
        assert child.process.poll() is None, child.errors()
        address = re.findall(r"Dagster is at (http://127\.0\.0\.1:\d+)", "\n".join(child.lines))[0]
        (entry,) = ask(address, LOADED)["workspaceOrError"]["locationEntries"]
        assert entry["name"] == "squid"
        (repository,) = entry["locationOrLoadError"]["repositories"]
        assert "squid_start" in {job["name"] for job in repository["jobs"]}
        assert {sensor["sensorState"]["status"] for sensor in repository["sensors"]} == {"RUNNING"}

        second = Child("examples.dev", env={dev.FOLDER: str(folder)})
        started.append(second)
        assert second.end() == 1
        assert f"make dev runs already in {folder}" in second.errors()

        os.kill(child.process.pid, signal.SIGINT)
        assert child.end() == 0
        assert child.lines[-1] == "==> stopped; the data stay where they are"
    assert processes_of(folder) == []
    assert not EmbeddedPostgres(folder / "postgres").status().running
