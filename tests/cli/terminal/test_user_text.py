"""Ids, keys, comments and errors are other people's text: commands show it as it is, and let none of it act."""

import json
import logging
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.cli.terminal.printable_text import printable, printable_line
from squid_dagster.cli.terminal.stderr_log import LineFormatter
from squid_dagster.journal import PostgresStorage
from squid_dagster.protocol import run_thread
from squid_dagster.workflow import Fail, Workflow
from tests.cli.command_line import CommandLine
from tests.facts import planned, runnable, started
from tests.journal.access import raw
from tests.runtime.workers import until

ACTING = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \u202eback\u2069 \x9b2J \r\x08"
HOSTILE = f":one: [red]x[/red] [/] {ACTING}\nnext"
EMOJI = "1\ufe0f\u20e3"


def fails() -> None:
    """Fail with text of a user."""
    raise Fail(HOSTILE, details={"said": HOSTILE})


@pytest.fixture(scope="module")
def hostile(postgres_url: str, schema_names: Iterator[str]) -> Iterator[CommandLine]:
    """A journal that holds such a text wherever one may stand, and a step called `one`."""
    storage = PostgresStorage(postgres_url, next(schema_names))
    storage.upgrade()
    _fill(storage)
    _break(storage)
    yield CommandLine(storage)
    storage.close()


def _fill(storage: PostgresStorage) -> None:
    failing, dying, asking = Workflow("failing"), Workflow("dying"), Workflow("asking")
    failing.step(name="one")(fails)
    dying.step(name="one", max_deliveries=1)(lambda: None)
    asking.approval("one")
    asking.route("one", to="complete")
    asking.route("one", on="error", to="fail")
    squid = Squid(storage, [failing, dying, asking])
    said: dict[str, Any] = {"actor": HOSTILE, "comment": HOSTILE, "metadata": {"said": HOSTILE}}
    squid.start("failing", run_id="failed", **said)
    squid.start("asking", run_id="asked", **said)
    squid.worker(until_idle=True)
    squid.start("dying", run_id="dead")
    assert squid.dispatch_agent().claim_next(HOSTILE, lease=timedelta(milliseconds=1)) is not None
    until(lambda: squid.recover().dead_lettered, "the dead letter")
    squid.cancel("asked", **said, idempotency_key=HOSTILE)
    squid.pause_queue("default", actor=HOSTILE, comment=HOSTILE)
    squid.backlog.create("card", HOSTILE, body=HOSTILE)


def _break(storage: PostgresStorage) -> None:
    """Abandon a run halfway, and damage a row of the views: checks name the keys of what is wrong."""
    storage.append(run_thread("halfway"), [started("halfway"), planned(runnable("halfway", "one"), run="halfway")])
    with raw(storage) as connection:
        connection.execute("UPDATE attempts SET deliveries = 7 WHERE run_id = 'dead'")


COMMANDS = [
    ("status",),
    ("run", "list"),
    *(
        ("run", look, run)
        for run in ("failed", "asked", "dead")
        for look in ("inspect", "explain", "timeline", "graph")
    ),
    ("queue", "list"),
    ("queue", "inspect", "default"),
    ("queue", "dead"),
    ("journal", "tail", "-n", "100"),
    ("backlog", "list"),
    ("backlog", "stats"),
    ("views", "check"),
    ("doctor", "--stuck-after", "0"),
]


def test_nothing_of_it_acts_and_nothing_of_it_is_lost(hostile: CommandLine) -> None:
    everything = {}
    for command in COMMANDS:
        answer = hostile(*command)
        shown = answer.out + answer.err
        everything[command] = shown
        assert "Traceback" not in shown
        for acting in (*"\x1b\x07\u202e\u2069\x9b\r\x08", EMOJI):
            assert acting not in shown, (command, shown)
    for command in (("run", "inspect", "failed"), ("run", "inspect", "asked"), ("run", "explain", "failed")):
        assert ":one: [red]x[/red] [/] \\x1b[31mred" in everything[command], command
    for command in (("queue", "dead"), ("views", "check"), ("doctor", "--stuck-after", "0")):
        assert ":one:1" in everything[command], (command, everything[command])


def test_json_holds_it_as_it_is_and_prints_none_of_it_raw(hostile: CommandLine) -> None:
    answer = hostile("run", "inspect", "asked", "--json")
    for acting in "\x1b\x07\x9b\r\x08":
        assert acting not in answer.out
    assert json.loads(answer.out)["command_history"][0]["comment"] == HOSTILE


def test_on_a_terminal_it_steers_nothing(hostile: CommandLine) -> None:
    for command in (("run", "inspect", "failed"), ("doctor", "--stuck-after", "0")):
        shown = hostile.on_terminal(*command, columns=200).out
        for acting in ("\x1b]0;", "\x07", "\u202e", "\x9b", EMOJI):
            assert acting not in shown, shown
        assert ("[red]x[/red] [/] \\x1b[31mred" if "failed" in command else ":one:1") in shown


def test_an_error_shows_it_as_it_is(hostile: CommandLine) -> None:
    answer = hostile("run", "inspect", f"nobody{ACTING}")
    for acting in (*"\x1b\x07\u202e\x9b\r\x08", EMOJI):
        assert acting not in answer.err


def test_what_steers_is_escaped_and_all_else_is_left() -> None:
    plain = "Grüße, 東京 🦑 :one: [b]x[/b] \\ and a family 👨\u200d👩\u200d👧"
    assert printable(plain) == printable_line(plain) == plain
    assert printable("a\nb\tc\x1b\x00\ud800") == "a\nb\tc\\x1b\\x00\\ud800"
    assert printable_line("a\nb\tc\x1b") == "a\\nb\\tc\\x1b"


def test_a_line_of_the_log_stays_one_line() -> None:
    record = logging.LogRecord("squid", logging.ERROR, "", 1, "said %s", (HOSTILE,), None)
    line = LineFormatter("%(levelname)s %(message)s").format(record)
    assert line.splitlines() == [line]
    assert line.startswith("ERROR said :one: [red]x[/red]")
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        record.exc_info = sys.exc_info()
    text = LineFormatter("%(message)s").format(record)
    assert "\x1b" not in text
    assert len(text.splitlines()) > 2
