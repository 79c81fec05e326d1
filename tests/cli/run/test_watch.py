"""`squid run watch`: a line for each change, an end when the run has one, and an exit code that says which."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from squid_dagster.api import Squid
from squid_dagster.cli.run.watch import follow
from squid_dagster.inspection import Explanation
from tests.cli.command_line import CommandLine
from tests.cli.workflows import gated, hello, nap, orders
from tests.servers.proxy import Proxy

KEYS = ["at", "run_id", "workflow", "status", "reason", "step", "summary", "terminal", "revision", "attempts"]


def test_a_timeout_that_is_none_is_refused(empty_cli: CommandLine) -> None:
    empty_cli("run", "watch", "a", "--timeout", 0).refused(2, "--timeout")
    empty_cli("run", "watch", "a", "--timeout", "soon").refused(2, "soon")


def test_an_end_that_is_not_a_completion_is_exit_code_1(cli: CommandLine) -> None:
    squid = Squid(cli.storage, [hello])
    cancelled, completed = squid.start("hello").run_id, squid.start("hello").run_id
    squid.cancel(cancelled)
    squid.worker(until_idle=True)

    bad, good = cli("run", "watch", cancelled, "--json"), cli("run", "watch", completed)
    assert (bad.code, bad.err) == (1, "")
    document = json.loads(bad.out)
    assert list(document) == KEYS
    assert (document["status"], document["terminal"], document["reason"]) == ("cancelled", True, "terminal")
    assert (good.code, good.err, good.out.count("\n")) == (0, "", 1)
    assert "completed" in good.out


def test_who_waits_too_long_is_told_how_it_stands(cli: CommandLine) -> None:
    run_id = Squid(cli.storage, [nap]).start("nap").run_id
    done = cli("run", "watch", run_id, "--timeout", 0.1)
    assert (done.code, done.out.count("\n")) == (1, 1)
    assert done.err == f"Error: run '{run_id}' has not ended after 0.1 s: it is running\n"


class CountingSquid(Squid):
    """A squid that counts how often the run itself is read."""

    reads: ClassVar[list[str]] = []

    def explain_run(self, run_id: str, *args: Any, **kwargs: Any) -> Explanation:
        """Explain the run, and count."""
        self.reads.append(run_id)
        return super().explain_run(run_id, *args, **kwargs)


def test_the_run_is_read_once_for_each_change(cli: CommandLine) -> None:
    squid = Squid(cli.storage, [orders])
    run_id = squid.start("orders", {"item": "tea"}).run_id
    counting = CountingSquid(cli.storage)
    looks = ((seen.explanation.status, seen.explanation.reason) for seen in follow(counting, run_id))

    assert next(looks) == ("running", "no_worker_for_queue")
    squid.worker(until_idle=True)
    assert next(looks) == ("paused", "manual_intervention_required")
    assert len(counting.reads) == 2
    squid.approve(run_id, actor="ada")
    squid.worker(until_idle=True)
    assert list(looks) == [("completed", "terminal")]
    assert len(counting.reads) == 3


def test_a_process_follows_a_run_that_a_worker_takes_up(cli: CommandLine, tmp_path: Path) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    squid = Squid(cli.storage, [gated])
    run_id = squid.start("gated", {"begun": str(begun), "gate": str(gate)}).run_id
    with cli.process("run", "watch", run_id, "--json") as child:
        assert child.stdout is not None
        first = json.loads(child.stdout.readline())
        gate.touch()
        squid.worker(until_idle=True)
        rest = [json.loads(line) for line in child.stdout]
    assert (first["status"], first["terminal"], child.returncode) == ("running", False, 0)
    assert [line["terminal"] for line in rest][-1] is True
    assert rest[-1]["attempts"][0]["status"] == "completed"


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    with Proxy(postgres_url) as proxy:
        yield proxy


def test_who_watches_goes_on_after_an_outage_and_says_so_once(
    cli: CommandLine, proxy: Proxy, postgres_url: str
) -> None:
    squid = Squid(cli.storage, [orders])
    run_id = squid.start("orders", {"item": "tea"}).run_id
    cli.environ["SQUID_DATABASE_URL"] = proxy.url(postgres_url)
    with cli.process("run", "watch", run_id, "--json") as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert json.loads(child.stdout.readline())["status"] == "running"
        proxy.refuse()
        said = child.stderr.readline()
        squid.worker(until_idle=True)
        squid.cancel(run_id)
        time.sleep(1)
        assert child.poll() is None
        proxy.resume()
        rest, err = child.communicate(timeout=60)
    assert f"watching run {run_id} waits for the database: " in said
    assert (child.returncode, err) == (1, "")
    assert [json.loads(line)["status"] for line in rest.splitlines()] == ["cancelled"]


def test_who_watches_waits_for_the_database_no_longer_than_asked(
    cli: CommandLine, proxy: Proxy, postgres_url: str
) -> None:
    run_id = Squid(cli.storage, [nap]).start("nap").run_id
    cli.environ["SQUID_DATABASE_URL"] = proxy.url(postgres_url)
    with cli.process("run", "watch", run_id, "--timeout", 5) as child:
        assert child.stdout is not None
        assert child.stdout.readline()
        proxy.refuse()
        _, err = child.communicate(timeout=60)
    first, last = err.splitlines()
    assert "waits for the database" in first
    assert (child.returncode, last.startswith("Error: cannot reach Postgres at ")) == (4, True)


def test_on_a_terminal_the_picture_is_kept_up_to_date(cli: CommandLine) -> None:
    squid = Squid(cli.storage, [hello])
    run_id = squid.start("hello").run_id
    squid.worker(until_idle=True)
    shown = cli.on_terminal("run", "watch", run_id)
    assert shown.code == 0
    for word in (run_id, "greet", "completed", "\x1b["):
        assert word in shown.out


@pytest.fixture(autouse=True)
def _no_colour_wishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
