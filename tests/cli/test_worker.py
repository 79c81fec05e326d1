"""`squid worker` and `squid recover`, as a user types them and as a system stops them."""

import json
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal.contract.dispatch_store import Completed, Settlement
from squid_dagster.runtime.recovery import recovery
from tests.cli.command_line import MODULES, CommandLine
from tests.cli.modules.resource_user import needy
from tests.cli.modules.sleeper import deaf
from tests.cli.workflows import gated, hello
from tests.journal.access import raw
from tests.runtime.workers import PATIENCE, until
from tests.servers.proxy import Proxy

REPORT_KEYS = [
    "worker_id", "claimed", "completed", "failed", "retried", "deferred", "released", "refused", "abandoned", "commits",
    "seconds", "steps", "gave_up",
]  # fmt: skip
RECOVERY_KEYS = [
    "repaired", "queued", "scheduled", "applied", "progressed", "dead_lettered", "dead_letters", "children", "cascades",
    "fenced", "listed", "held", "quarantined", "failed",
]  # fmt: skip
NEEDY = ("-m", "tests.cli.modules.resource_user")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], ["-m"]),
        (["-m", "tests.cli.nothing"], ["tests.cli.nothing"]),
        ([*MODULES, "--lease", "0"], ["--lease"]),
        ([*MODULES, "--lease", "forever"], ["--lease", "forever"]),
        ([*MODULES, "--concurrency", "0"], ["--concurrency"]),
        ([*MODULES, "--concurrency", "100000"], ["concurrency", "100000"]),
        ([*MODULES, "--queue", "no where"], ["'no where'"]),
        ([*NEEDY], ["'greeting'"]),
        ([*NEEDY, "--resources", "tests.cli.modules.resource_user"], ["MODULE:NAME"]),
        ([*NEEDY, "--resources", "tests.cli.modules.resource_user:no_such"], ["no_such"]),
        (
            [*NEEDY, "--resources", "tests.cli.modules.resource_user:NOTHING"],
            ["tests.cli.modules.resource_user:NOTHING"],
        ),
        ([*NEEDY, "--resources", "no.such:thing"], ["no.such"]),
    ],
)
def test_a_worker_that_makes_no_sense_is_one_line(empty_cli: CommandLine, args: list[str], words: list[str]) -> None:
    empty_cli("worker", "--until-idle", *args).refused(2, *words)


def test_a_worker_serves_its_queues_until_idle(cli: CommandLine) -> None:
    squid = Squid(cli.storage, [hello])
    for queue in ("mail", "post", "elsewhere"):
        squid.start("hello", queue=queue)
    done = cli("worker", *MODULES, "--queue", "mail", "--queue", "post", "--until-idle", "--json")
    report = done.json
    assert list(report) == REPORT_KEYS
    assert (report["claimed"], report["completed"], report["steps"]) == (2, 2, {"hello.greet": 2})
    served = json.loads(done.err)
    assert (served["worker_id"], served["queues"]) == (report["worker_id"], ["mail", "post"])
    assert "hello" in served["workflows"]

    shown = cli("worker", *MODULES, "--queue", "elsewhere", "--until-idle", "--max-age", 60, "--no-housekeeping")
    first, last = shown.out.splitlines()
    assert " serves elsewhere: charge, gated, hello" in first
    assert "claimed 1, completed 1" in last


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    """A proxy to the server, which takes no connections at first."""
    with Proxy(postgres_url) as proxy:
        proxy.refuse()
        yield proxy


def test_a_worker_that_starts_before_its_database_waits_for_it_and_says_so_once(
    cli: CommandLine, proxy: Proxy, postgres_url: str
) -> None:
    run_id = Squid(cli.storage, [hello]).start("hello").run_id
    cli.environ["SQUID_DATABASE_URL"] = proxy.url(postgres_url)
    with cli.process("worker", *MODULES, "--until-idle", "--json") as child:
        assert child.stderr is not None
        first = child.stderr.readline()
        assert "WARNING" in first
        assert "opening the journal waits for the database: cannot reach Postgres at " in first
        proxy.resume()
        second = child.stderr.readline()
        assert json.loads(second)["queues"] == ["default"]
        out, _ = child.communicate()
        assert (child.returncode, json.loads(out)["completed"]) == (0, 1)
    assert cli.storage.read(f"squid:run:{run_id}")[-1].fact.type == "run_terminal"


def test_a_worker_whose_first_connection_is_swallowed_behind_the_handshake_goes_on(
    cli: CommandLine, proxy: Proxy, postgres_url: str
) -> None:
    Squid(cli.storage, [hello]).start("hello")
    proxy.resume()
    happened = proxy.swallow_after(b"pg_catalog.version")
    cli.environ["SQUID_DATABASE_URL"] = proxy.url(postgres_url)
    done = cli.piped("worker", *MODULES, "--until-idle", "--json")
    assert happened.is_set()
    assert (done.code, done.json["completed"]) == (0, 1)


@pytest.mark.parametrize(("number", "as_json"), [(signal.SIGTERM, True), (signal.SIGINT, False)])
def test_a_worker_that_waits_for_its_database_can_be_stopped(
    cli: CommandLine, proxy: Proxy, postgres_url: str, number: signal.Signals, as_json: bool
) -> None:
    cli.environ["SQUID_DATABASE_URL"] = proxy.url(postgres_url)
    with cli.process("worker", *MODULES, *(["--json"] if as_json else [])) as child:
        assert child.stderr is not None
        assert "waits for the database" in child.stderr.readline()
        child.send_signal(number)
        out, err = child.communicate()
        assert (child.returncode, err) == (0, "")
    if as_json:
        report = json.loads(out)
        assert (list(report), report["claimed"]) == (REPORT_KEYS, 0)
    else:
        assert out == "stopped before the database was there\n"


def test_a_worker_that_is_told_not_to_wait_fails(cli: CommandLine, proxy: Proxy, postgres_url: str) -> None:
    cli.environ["SQUID_DATABASE_URL"] = proxy.url(postgres_url)
    cli("worker", *MODULES, "--wait", 0).refused(4, "cannot reach Postgres")
    done = cli.piped("worker", *MODULES, "--wait", 2)
    first, *_, last = done.err.splitlines()
    assert (done.code, done.out) == (4, "")
    assert "waits for the database" in first
    assert last.startswith("Error: cannot reach Postgres at ")


def test_a_worker_does_not_wait_for_a_schema(cli: CommandLine) -> None:
    cli.environ["SQUID_SCHEMA"] = "nowhere_at_all"
    cli("worker", *MODULES).refused(4, "squid db upgrade --schema nowhere_at_all")


@pytest.mark.parametrize("name", ["RESOURCES", "make_resources"])
def test_a_worker_is_given_what_its_steps_ask_for(cli: CommandLine, name: str) -> None:
    run_id = Squid(cli.storage, [needy], resources={"greeting": ""}).start("needy").run_id
    assert cli("worker", *NEEDY, "--resources", f"tests.cli.modules.resource_user:{name}", "--until-idle").code == 0
    assert cli("run", "inspect", run_id, "--json").json["outputs"] == {"speak": "moin"}


def test_on_sigterm_a_step_finishes_and_the_report_is_printed(cli: CommandLine, tmp_path: Path) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    squid = Squid(cli.storage, [gated])
    run_id = squid.start("gated", {"begun": str(begun), "gate": str(gate)}).run_id
    with cli.process("worker", *MODULES, "--concurrency", 1, "--lease", 30, "--json") as child:
        assert child.stderr is not None
        assert json.loads(child.stderr.readline())["queues"] == ["default"]
        for line in child.stderr:  # the step says so itself
            if "holding" in line:
                break
        later = squid.start("gated", {"begun": str(begun), "gate": str(gate)}).run_id
        child.send_signal(signal.SIGTERM)
        for line in child.stderr:
            if "stops" in line:
                break
        gate.touch()
        out, _ = child.communicate(timeout=60)
    assert child.returncode == 0
    report = json.loads(out)
    assert (list(report), report["claimed"], report["completed"]) == (REPORT_KEYS, 1, 1)
    assert squid.inspect_run(run_id).status == "completed"
    assert squid.inspect_run(later).attempts[0].deliveries == 0


def test_a_worker_that_left_twice_its_concurrency_behind_ends_by_itself_with_exit_code_1(
    cli: CommandLine, tmp_path: Path
) -> None:
    # given a worker of five slots
    squid, runs = Squid(cli.storage, [deaf]), list[str]()
    command = ("worker", "-m", "tests.cli.modules.sleeper", "--concurrency", 5, "--lease", 9, "--grace", 0, "--json")
    with cli.process(*command) as child:
        # when all of them are twice held by steps that go on after their runs were cancelled
        for count in (5, 10):
            runs += [receipt.run_id for receipt in squid.start_many("deaf", [{"directory": str(tmp_path)}] * 5)]
            until(lambda count=count: len(list(tmp_path.iterdir())) == count, "all steps under way")  # type: ignore[misc]
            for run_id in runs[-5:]:
                squid.cancel(run_id)
        # then it ends, although their threads do not, and says why
        out, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 1
    report = json.loads(out)
    assert (list(report), report["abandoned"]) == (REPORT_KEYS, 10)
    assert "10 cancelled steps do not end (deaf.step" in report["gave_up"]
    assert err.splitlines()[-1] == f"it stopped by itself: {report['gave_up']}"
    assert {squid.inspect_run(run_id).status for run_id in runs} == {"cancelled"}
    assert squid.runtime.liveness.workers(timedelta(minutes=1)) == []


# --- recovery -------------------------------------------------------------------------------------------------------


def test_recovery_tells_what_it_put_right(cli: CommandLine) -> None:
    squid = Squid(cli.storage, [gated])
    run_id = squid.start("gated", {"begun": "/nowhere", "gate": "/nowhere"}).run_id
    squid.dispatch_agent().claim_next("somebody", lease=timedelta(milliseconds=1))
    report = cli("recover", "--json").json
    while not report["dead_lettered"]:  # a lease of a millisecond is over by then, or very soon
        report = cli("recover", "--json").json
    assert list(report) == RECOVERY_KEYS
    assert (report["dead_lettered"], report["held"], report["failed"]) == (1, [run_id], {})  # no module was named
    assert [attempt.run_id for attempt in squid.dead_letters()] == [run_id]
    assert "1 held" in cli("recover").out
    assert "with -m" in cli("recover").out
    assert cli("recover", "--queue", "default", *MODULES).out == "nothing to repair\n"
    cli("recover", "--queue", "no where").refused(2, "'no where'")


def test_recovery_of_what_is_well_repairs_nothing(cli: CommandLine) -> None:
    squid = Squid(cli.storage, [hello])
    squid.start("hello", {"name": "ada"})
    squid.worker(until_idle=True)
    out = cli("recover", *MODULES).out
    assert out == "nothing to repair\n1 run written to the index, as recovery does now and then\n"
    assert cli("recover", *MODULES, "--json").json["repaired"] == 0


def test_recovery_tells_what_a_foreign_error_says_without_its_secrets(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def repair_run(*_: object) -> None:
        raise ValueError("cannot connect to postgresql://bob:hunter2@db/x")

    squid = Squid(cli.storage, [hello])
    run_id = squid.start("hello").run_id
    (claim,) = squid.runtime.dispatch.claim("default", "ada", definitions=squid.runtime.registry.keys)
    squid.runtime.dispatch.settle([Settlement(claim.ref, Completed({"hello": "ada"}))])
    monkeypatch.setattr(recovery, "repair_run", repair_run)
    plain, as_json = cli("recover", *MODULES), cli("recover", *MODULES, "--json")
    assert (plain.code, as_json.code) == (1, 1)
    assert json.loads(as_json.out)["failed"][run_id].startswith("ValueError: cannot connect to postgresql://")
    assert run_id in plain.out
    assert "hunter2" not in f"{plain} {as_json}"


def test_recovery_that_finds_an_unreadable_run_names_it_and_is_exit_code_1(cli: CommandLine) -> None:
    run_id = Squid(cli.storage, [hello]).start("hello").run_id
    with raw(cli.storage) as connection:
        # As only the owner of the database can: the plan of the run is unreadable.
        connection.execute("ALTER TABLE journal_entries DISABLE TRIGGER journal_entries_append_only")
        connection.execute("UPDATE journal_entries SET data = '{\"workflow\": 7}' WHERE type = 'run_started'")
        connection.execute("DELETE FROM journal_entries WHERE type = 'attempt_scheduled'")
        connection.execute("ALTER TABLE journal_entries ENABLE ALWAYS TRIGGER journal_entries_append_only")
        connection.execute("UPDATE runs SET queue = NULL")
    shown = cli("recover", *MODULES)
    assert (shown.code, shown.err) == (1, "")
    assert f"{run_id}   quarantined" in shown.out
