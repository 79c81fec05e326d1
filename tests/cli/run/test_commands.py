"""`squid run approve|reject|resume|cancel|replay`, of one run and of many."""

import json
import os
import pty

import pytest

from squid_dagster import Receipt
from squid_dagster.api import Squid
from squid_dagster.cli.run.bulk import Bulk, Target, run_bulk
from squid_dagster.protocol.errors import StorageUnavailable
from tests.cli.command_line import MODULES, Answer, CommandLine
from tests.cli.workflows import charge, hello, orders
from tests.facts import T0

RUN_KEYS = [
    "run_id", "runnable_key", "workflow", "status", "queue", "step", "waits_for", "outcome", "new_run_id", "error",
    "message",
]  # fmt: skip
BULK_KEYS = ["bulk_id", "command", "dry_run", "matched", "done", "repeated", "refused", "runs"]


def paused_orders(cli: CommandLine, count: int) -> list[str]:
    squid = Squid(cli.storage, [orders])
    receipts = squid.start_many("orders", [{"item": "tea"}] * count)
    squid.worker(until_idle=True)
    return [receipt.run_id for receipt in receipts]


def statuses(cli: CommandLine) -> list[str]:
    return sorted(run.status for run in Squid(cli.storage, [orders, hello]).list_runs().runs)


def report(answer: Answer) -> dict[str, object]:
    """Parse the one document of a bulk, whatever its exit code; the first line on stderr may name the bulk."""
    document: dict[str, object] = json.loads(answer.out)
    assert list(document) == BULK_KEYS
    return document


# --- one run --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["cancel"], ["RUN_ID", "--where"]),
        (["cancel", "a", "--where", "status=paused"], ["RUN_ID", "--where"]),
        (["cancel", "a", "--dry-run"], ["--where"]),
        (["cancel", "a", "--bulk-id", "b"], ["--where"]),
        (["cancel", "--where", "status=paused", "--idempotency-key", "k"], ["--bulk-id"]),
        (["cancel", "--where", "status=paused", "--bulk-id", " "], ["--bulk-id"]),
        (["approve", "--where", "state=paused"], ["'state'", "workflow, status, queue, trigger, parent, version"]),
        (["approve", "--where", "paused"], ["'paused'", "name=value"]),
        (["approve", "--where", "status="], ["name=value"]),
        (["approve", "--where", "  "], ["every run"]),
        (["approve", "--where", "workflow=a workflow=b"], ["twice"]),
        (["approve", "--where", "workflow='a"], ["quotation"]),
        (["approve", "--where", "status=asleep"], ["asleep"]),
        (["approve", "--where", "started_before=2026-11-01"], ["zone"]),
        (["approve", "--where", "open=maybe"], ["maybe"]),
        (["approve", "a", "--metadata", "{"], ["--metadata"]),
    ],
)
def test_what_makes_no_sense_is_one_line(empty_cli: CommandLine, args: list[str], words: list[str]) -> None:
    empty_cli("run", *args).refused(2, *words)


@pytest.mark.parametrize("command", ["approve", "reject", "resume", "cancel", "replay"])
def test_an_unknown_run_is_not_found(empty_cli: CommandLine, command: str) -> None:
    empty_cli("run", command, "nobody", *MODULES).refused(3, "'nobody'")


def test_a_decision_needs_the_definition_and_says_so(cli: CommandLine) -> None:
    (run_id,) = paused_orders(cli, 1)
    before = cli.facts()
    for command in ("approve", "reject", "resume", "replay"):
        cli("run", command, run_id).refused(1, "'orders'", "pass the module that holds it with -m (none was given)")
    cli("run", "approve", run_id, "-m", "tests.cli.modules.resource_user").refused(
        1, "given: tests.cli.modules.resource_user"
    )
    cli("run", "resume", run_id, *MODULES).refused(1, run_id)
    assert cli.facts() == before


def test_a_run_is_approved_once_by_its_key(cli: CommandLine) -> None:
    (run_id,) = paused_orders(cli, 1)
    args = (
        "run",
        "approve",
        run_id,
        *MODULES,
        "--actor",
        "ada",
        "--comment",
        "fine",
        "--idempotency-key",
        "k",
        "--json",
    )
    first, second = cli(*args).json, cli(*args).json
    keys = ["run_id", "signal_type", "received_at", "idempotency_key", "repeated", "status", "replayed_from_run_id"]
    assert list(first) == keys
    assert (first["status"], first["repeated"], second["repeated"]) == ("running", False, True)
    cli("run", "approve", run_id, *MODULES).refused(1, run_id)
    approved = Squid(cli.storage).inspect_run(run_id).command_history[-1]
    assert (approved.signal_type, approved.actor, approved.comment) == ("approve_run", "ada", "fine")


def test_a_decision_may_name_the_step_that_it_is_about(cli: CommandLine) -> None:
    (run_id,) = paused_orders(cli, 1)
    state = Squid(cli.storage).inspect_run(run_id).manual_state
    assert state is not None
    cli("run", "approve", run_id, *MODULES, "--step", "another").refused(1, repr(state.step), "'another'")
    assert cli("run", "approve", run_id, *MODULES, "--step", state.step).out == f"approve: run {run_id} is running\n"


def test_a_run_is_rejected_cancelled_and_replayed(cli: CommandLine) -> None:
    one, two = paused_orders(cli, 2)
    assert cli("run", "reject", one, *MODULES).out == f"reject: run {one} is failed\n"
    assert cli("run", "cancel", two, "--cascade").out == f"cancel: run {two} is cancelled\n"
    cli("run", "cancel", two).refused(1, "cancelled")
    again = cli("run", "replay", one, *MODULES, "--json").json
    assert (again["replayed_from_run_id"], again["status"]) == (one, "running")
    assert Squid(cli.storage).inspect_run(again["run_id"]).replayed_from_run_id == one


def test_what_cannot_be_undone_is_replayed_only_when_allowed(cli: CommandLine) -> None:
    squid = Squid(cli.storage, [charge])
    run_id = squid.start("charge").run_id
    squid.worker(until_idle=True)
    cli("run", "replay", run_id, *MODULES).refused(1, "take_money")
    assert cli("run", "replay", run_id, *MODULES, "--allow-irreversible").code == 0


# --- many runs ------------------------------------------------------------------------------------------------------


def test_a_bulk_is_refused_where_nobody_can_be_asked(cli: CommandLine) -> None:
    paused_orders(cli, 3)
    before = cli.facts()
    cli("run", "approve", "--where", "status=paused", *MODULES).refused(1, "approve 3 runs", "--yes", "--dry-run")
    dry = cli("run", "approve", "--where", "status=paused", "--dry-run", "--json", *MODULES).json
    assert (list(dry), dry["dry_run"], dry["matched"], dry["done"]) == (BULK_KEYS, True, 3, 0)
    assert [run["outcome"] for run in dry["runs"]] == ["matched"] * 3
    assert all(list(run) == RUN_KEYS for run in dry["runs"])
    assert {(run["workflow"], run["status"], run["waits_for"]) for run in dry["runs"]} == {
        ("orders", "paused", "approval 'review'")
    }
    shown = cli("run", "approve", "--where", "status=paused workflow=orders", "--dry-run", *MODULES)
    assert shown.out.startswith("would approve 3; nothing was changed\n")
    assert "orders, paused, approval 'review'" in shown.out
    assert cli.facts() == before


def test_a_bulk_acts_on_what_fits_and_tells_what_was_refused(cli: CommandLine) -> None:
    paused = paused_orders(cli, 2)
    Squid(cli.storage, [hello]).start("hello")
    done = cli("run", "approve", "--where", "open=yes", "--yes", "--json", *MODULES)
    document = report(done)
    assert (done.code, document["matched"], document["done"], document["refused"]) == (1, 3, 2, 1)
    assert json.loads(done.err) == {"bulk_id": document["bulk_id"]}
    runs = json.loads(done.out)["runs"]
    assert all(list(run) == RUN_KEYS for run in runs)
    assert [run["run_id"] for run in runs if run["outcome"] == "done"] == paused[::-1]
    assert [run["error"] for run in runs] == ["InvalidTransition", None, None]
    shown = cli("run", "approve", "--where", "open=yes", "--yes", *MODULES)
    assert (shown.code, shown.out.splitlines()[0]) == (1, "approve: 0 done, 0 repeated, 3 refused")
    assert "--bulk-id" in shown.err


def test_a_bulk_without_the_definition_refuses_each_run(cli: CommandLine) -> None:
    paused_orders(cli, 1)
    done = cli("run", "approve", "--where", "status=paused", "--yes", "--bulk-id", "b", "--json")
    assert (done.code, done.err) == (1, "")
    (run,) = json.loads(done.out)["runs"]
    assert run["error"] == "IncompatibleDefinition"
    assert "with -m" in run["message"]


def test_a_bulk_that_was_cut_off_does_the_rest_and_nothing_twice(cli: CommandLine) -> None:
    squid = Squid(cli.storage, [orders])
    first = squid.start("orders", {"item": "tea"}, queue="first").run_id
    others = paused_orders(cli, 2)
    squid.worker("first", until_idle=True)
    for run_id in (first, *others):
        squid.reject(run_id, actor="ada")

    def bulk(where: str) -> tuple[int, int, int]:
        document = cli("run", "replay", "--where", where, "--yes", "--bulk-id", "b", "--json", *MODULES).json
        return document["matched"], document["done"], document["repeated"]

    assert bulk("status=failed queue=first") == (1, 1, 0)  # as far as it came
    assert bulk("status=failed") == (3, 2, 1)
    # The replays end as their originals did: they fit as well now, and are none of this bulk's business.
    squid.worker(["first", "default"], until_idle=True)
    for run in squid.list_runs(status="paused").runs:
        squid.reject(run.run_id, actor="ada")
    assert bulk("status=failed") == (3, 0, 3)
    assert statuses(cli) == ["failed"] * 6


def test_a_bulk_that_loses_the_database_names_the_id_to_go_on_with() -> None:
    asked: list[str] = []

    def act(target: Target, key: str) -> Receipt:
        asked.append(key)
        if len(asked) == 2:
            raise StorageUnavailable("the database went away")
        return Receipt(target.run_id, "cancel_run", T0, key)

    with pytest.raises(StorageUnavailable, match="1 of 3 runs are done; --bulk-id b does the rest"):
        run_bulk("cancel", Bulk(yes=True, bulk_id="b"), "b", [Target("r1"), Target("r2"), Target("r3")], act, True)
    assert asked == ["bulk:b:r1", "bulk:b:r2"]


def test_nothing_that_fits_needs_no_confirmation(cli: CommandLine) -> None:
    done = cli("run", "cancel", "--where", "queue=elsewhere started_before='2020-01-01T00:00:00Z'", "--json").json
    assert (done["matched"], done["runs"]) == (0, [])
    assert cli("run", "cancel", "--where", "queue=elsewhere").out == "nothing matches\n"


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, 2), ("y", 0, 0)])
def test_on_a_terminal_the_count_is_asked_for(cli: CommandLine, answer: str, code: int, left: int) -> None:
    paused_orders(cli, 2)
    ours, theirs = pty.openpty()
    with cli.process("run", "cancel", "--where", "status=paused", stdin=theirs) as child:
        os.close(theirs)
        os.write(ours, f"{answer}\n".encode())
        out, err = child.communicate(timeout=60)
    os.close(ours)
    assert "This will cancel 2 runs. Go on?" in err
    assert (child.returncode, statuses(cli).count("paused")) == (code, left)
    assert ("cancel: 2 done" in out) == (code == 0)
    assert ("nothing was changed" in err) == (code == 1)
