"""`squid cron`: which triggers there are, and when they start something next."""

from datetime import UTC, datetime, timedelta

import pytest

from squid_dagster.api import Squid
from tests.cli.command_line import MODULES, CommandLine
from tests.cli.workflows import nightly

TRIGGER_KEYS = [
    "workflow", "trigger", "expression", "timezone", "catch_up", "last_window_start_at", "due", "next_at", "next_local",
]  # fmt: skip


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (["list"], "-m"),
        (["next"], "-m"),
        (["next", *MODULES, "--count", "0"], "--count"),
        (["next", *MODULES, "--after", "soon"], "soon"),
        (["next", *MODULES, "--after", "9999-01-01T00:00:00Z"], "9999"),
        (["list", "-m", "tests.cli.nothing"], "tests.cli.nothing"),
    ],
)
def test_what_makes_no_sense_is_one_line(empty_cli: CommandLine, args: list[str], word: str) -> None:
    empty_cli("cron", *args).refused(2, word)


def test_the_next_windows_of_all_triggers_come_in_order_without_a_database(empty_cli: CommandLine) -> None:
    environ = empty_cli.environ
    elsewhere = CommandLine(empty_cli.storage)
    elsewhere.environ = environ | {"SQUID_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    args = ("cron", "next", *MODULES, "--after", "2026-10-24T22:59:00Z", "--count", 4)
    windows = elsewhere(*args, "--json").json["windows"]
    assert list(windows[0]) == ["start_at", "end_at", "workflow", "trigger", "timezone", "local_start"]
    # The night in which Berlin's clock is turned back: 02:30 comes twice, and the second one counts.
    assert [(window["start_at"], window["trigger"], window["local_start"]) for window in windows] == [
        ("2026-10-24T23:00:00+00:00", "hourly", "2026-10-24T23:00:00+00:00"),
        ("2026-10-25T00:00:00+00:00", "hourly", "2026-10-25T00:00:00+00:00"),
        ("2026-10-25T01:00:00+00:00", "hourly", "2026-10-25T01:00:00+00:00"),
        ("2026-10-25T01:30:00+00:00", "night", "2026-10-25T02:30:00+01:00"),
    ]
    assert windows[0]["end_at"] == windows[1]["start_at"]
    assert "Europe/Berlin" in elsewhere(*args).out


def test_the_next_windows_are_those_after_the_journals_now(empty_cli: CommandLine) -> None:
    (window,) = empty_cli("cron", "next", *MODULES, "--count", 1, "--json").json["windows"]
    now = empty_cli.storage.now()
    assert now - timedelta(minutes=1) < datetime.fromisoformat(window["start_at"]) <= now + timedelta(hours=1)


def test_triggers_are_listed_with_their_last_window(cli: CommandLine) -> None:
    squid = Squid(cli.storage, [nightly])
    now = cli.storage.now()
    last = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=3)
    window = {"start_at": last.isoformat(), "end_at": (last + timedelta(hours=1)).isoformat()}
    squid.start_cron("nightly", "hourly", intended_window=window)

    night, hourly = cli("cron", "list", *MODULES, "--json").json["triggers"]
    assert (list(night), night["trigger"], night["last_window_start_at"]) == (TRIGGER_KEYS, "night", None)
    assert night["timezone"] == "Europe/Berlin"
    assert datetime.fromisoformat(hourly["last_window_start_at"]) == last
    assert hourly["due"] in (3, 4)  # the clock may have struck in between
    assert datetime.fromisoformat(hourly["next_at"]) > now
    assert "30 2 * * *" in cli("cron", "list", *MODULES).out
    assert (
        cli("cron", "list", "-m", "tests.cli.modules.resource_user").out
        == "no cron triggers in tests.cli.modules.resource_user\n"
    )
