"""What people read, in the width that there is: nothing is cut, ids and times stay in one piece, times have a zone."""

import re
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from rich.console import Console

from squid_dagster.api import Squid
from squid_dagster.backlog import Backlog
from squid_dagster.cli.terminal.output import show, table
from tests.cli.command_line import MODULES, CommandLine
from tests.cli.workflows import hello, orders

ID = "01a1e647-9d2c-7c1e-8b1f-0123456789ab"
AT = datetime(2026, 11, 16, 22, 5, 40, 123456, UTC)
WHOLE_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d)")
SHORT_TIME = re.compile(r"\d\d-\d\dT\d\d:\d\dZ")


def drawn(shown: object, width: int) -> list[str]:
    console = Console(file=StringIO(), width=width, color_system=None)
    with console.capture() as captured:
        console.print(shown)
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.fixture
def runs(cli: CommandLine) -> list[str]:
    """Runs of every kind: waiting for a person, waiting for a worker, ended."""
    squid = Squid(cli.storage, [orders, hello])
    run_ids = [squid.start("orders", {"item": "tea"}).run_id, squid.start("orders", {"item": "x", "amount": -1}).run_id]
    squid.worker(until_idle=True)
    return [*run_ids, squid.start("hello").run_id]


# --- tables ---------------------------------------------------------------------------------------------------------


def test_times_are_shortened_then_columns_go_then_the_rightmost_fold() -> None:
    rows = [(ID, "orders", "running", "manual", AT, "approval of whoever is on duty tonight")]
    shown = table(("run", "workflow", "status", "trigger", "started", "waits for"), rows, first_to_go=("trigger",))
    assert drawn(shown, 200)[-1].split()[4] == "2026-11-16T22:05:40Z"
    narrower = drawn(shown, 115)
    assert narrower[0].split()[3] == "trigger"
    assert " 11-16T22:05Z " in narrower[2]
    narrow = drawn(shown, 105)
    assert "trigger" not in narrow[0]
    assert (ID in narrow[2], "11-16T22:05Z" in narrow[2]) == (True, True)
    assert " ".join(line[narrow[0].index("waits") :].strip() for line in narrow[2:]) == rows[0][-1]


@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 100, 1000])
def test_nothing_is_cut_in_any_width(width: int) -> None:
    error = "x" * 150
    lines = drawn(table(("run", "key", "error"), [(ID, f"{ID}:pay:1", error)]), width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    assert "".join(lines).count("x") == 150


def test_an_empty_column_goes_first() -> None:
    shown = table(("run", "waits for", "workflow"), [(ID, None, "orders")], first_to_go=("workflow",))
    assert drawn(shown, 80)[0].split() == ["run", "waits", "for", "workflow"]
    assert drawn(shown, 48)[0].split() == ["run", "workflow"]


def test_an_empty_column_makes_room_for_a_sentence() -> None:
    shown = table(("what", "command", "note"), [("approve", "squid run approve order-1 -m shop", None)])
    assert drawn(shown, 47)[2] == "approve   squid run approve order-1 -m shop"


def test_times_are_in_utc_with_a_zone() -> None:
    assert show(AT) == "2026-11-16T22:05:40Z"
    assert show(AT.astimezone(datetime.strptime("+0100", "%z").tzinfo)) == "2026-11-16T22:05:40Z"


# --- a terminal of 80 columns ---------------------------------------------------------------------------------------


def test_every_id_is_whole_on_80_columns(cli: CommandLine, runs: list[str]) -> None:
    for command in (["run", "list"], ["run", "list", "--status", "paused"]):
        shown = cli.on_terminal(*command)
        assert shown.code == 0
        plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.out)
        assert max(map(len, plain.splitlines())) <= 80
        assert "…" not in plain
        for run_id in runs if len(command) == 2 else runs[:1]:
            assert plain.count(run_id) == 1
    assert "approval 'review'" in " ".join(plain.split())


def test_every_time_is_whole_on_80_columns(cli: CommandLine, runs: list[str]) -> None:
    backlog = Backlog(cli.storage)
    backlog.create("A", "a card whose title is not too short for a table of this width")
    backlog.claim("somebody with a rather long name for an owner", ttl=timedelta(hours=1))
    commands = (
        ["cron", "list", *MODULES], ["cron", "next", *MODULES], ["backlog", "history", "--id", "A"], ["queue", "list"],
        ["run", "inspect", runs[1]], ["run", "timeline", runs[0]], ["run", "explain", runs[0]], ["status"],
    )  # fmt: skip
    for command in commands:
        shown = cli.on_terminal(*command)
        plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.out)
        assert (shown.code, max(map(len, plain.splitlines())) <= 80) == (0, True), plain
        assert "…" not in plain
        assert WHOLE_TIME.search(plain) or SHORT_TIME.search(plain) or command == ["status"], plain


# --- a pipe ---------------------------------------------------------------------------------------------------------


def test_in_a_pipe_nothing_is_folded_cut_or_padded(cli: CommandLine) -> None:
    long = " ".join(["tea"] * 400)
    squid = Squid(cli.storage, [orders])
    run_id = squid.start("orders", {"item": long, "amount": -1}).run_id
    squid.worker(until_idle=True)
    shown = cli.piped("run", "inspect", run_id, "--history", COLUMNS=None)
    assert f"{long} cannot be sold" in shown.out
    assert "…" not in shown.out
    for line in shown.out.splitlines():
        assert line == line.rstrip()


def test_columns_is_heard_in_a_pipe(cli: CommandLine, runs: list[str]) -> None:
    wide, narrow = cli.piped("run", "list", COLUMNS=None), cli.piped("run", "list", COLUMNS="80")
    assert "trigger" in wide.out
    assert max(map(len, narrow.out.splitlines())) <= 80
    for run_id in runs:
        assert (wide.out.count(run_id), narrow.out.count(run_id)) == (1, 1)


# --- times ----------------------------------------------------------------------------------------------------------


def test_times_are_told_in_one_way_everywhere(cli: CommandLine, runs: list[str]) -> None:
    cli("backlog", "create", "--id", "A", "--title", "a card")
    cli("queue", "pause", "default")
    commands = (
        ["backlog", "claim", "--owner", "ada"], ["backlog", "history", "--id", "A"], ["queue", "inspect", "default"],
        ["cron", "list", *MODULES], ["cron", "next", *MODULES], ["run", "list"], ["run", "inspect", runs[0]],
        ["run", "explain", runs[0]], ["run", "timeline", runs[0]], ["run", "watch", runs[1]], ["journal", "tail"],
    )  # fmt: skip
    for command in commands:
        shown = cli(*command).out
        days = re.findall(r"\d{4}-\d\d-\d\d", shown)
        assert days, shown
        assert len(days) == len(WHOLE_TIME.findall(shown)), shown
        assert len(re.findall(r"\d\d:\d\d:\d\d", shown)) == len(days), shown
