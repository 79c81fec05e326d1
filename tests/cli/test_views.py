"""`squid views`: a view that differs is found and named, and made anew."""

import json

from squid_dagster.api import Squid
from tests.cli.command_line import CommandLine
from tests.cli.workflows import hello, orders
from tests.journal.access import raw


def test_views_that_agree_are_told_so_and_may_be_rebuilt_at_any_time(cli: CommandLine) -> None:
    squid = Squid(cli.storage, [hello, orders])
    squid.start_many("hello", [{}] * 3)
    squid.start("orders", {"item": "tea"})
    squid.backlog.create("a", "card")
    facts = cli.facts()
    assert cli("views", "check", "--json").json == {"equal": True, "differences": []}
    assert cli("views", "check").out == "The views say what the facts say.\n"
    assert cli("views", "rebuild", "--json").json == {
        "cut": cli.storage.cut(),
        "runs": 4,
        "entries": facts - 1,
        "tail_runs": 0,
        "cards": 1,
    }
    assert "4 runs, 1 cards" in cli("views", "rebuild").out
    assert (cli.facts(), cli("views", "check").code) == (facts, 0)


def test_rows_that_differ_are_named_and_a_rebuild_mends_them(cli: CommandLine) -> None:
    squid = Squid(cli.storage, [hello])
    changed, lost = squid.start("hello").run_id, squid.start("hello").run_id
    squid.pause_queue("slow")
    squid.backlog.create("a", "card")
    with raw(cli.storage) as connection:
        connection.execute("UPDATE runs SET status = 'paused', queue = 'other' WHERE run_id = %s", (changed,))
        connection.execute("DELETE FROM attempts WHERE run_id = %s", (lost,))
        connection.execute("UPDATE queues SET paused = false")
        connection.execute("DELETE FROM backlog")
    answer = cli("views", "check", "--json")
    document = json.loads(answer.out)
    assert (answer.code, answer.err, document["equal"]) == (1, "", False)
    assert document["differences"] == [
        {"run_id": changed, "detail": f"runs {changed}: other values in queue, status"},
        {"run_id": lost, "detail": f"attempts {lost}/{lost}:greet:1:1: a row is missing"},
        {"run_id": None, "detail": "queues slow: other values in paused"},
        {"run_id": None, "detail": "backlog: card a: a row is missing"},
    ]
    assert "4 rows differ: `squid views rebuild`" in cli("views", "check").out
    assert cli("views", "rebuild").code == 0
    assert cli("views", "check").code == 0


def test_missing_views_are_one_line_and_come_back(cli: CommandLine) -> None:
    Squid(cli.storage, [hello]).start("hello")
    with raw(cli.storage) as connection:
        connection.execute("DROP TABLE attempts")
        connection.execute("DROP TABLE backlog")
    cli("views", "check").refused(4, "attempts")
    assert cli("views", "rebuild").code == 0
    assert cli("views", "check").code == 0


def test_without_a_database_there_is_one_line(empty_cli: CommandLine) -> None:
    for command in ("check", "rebuild"):
        empty_cli("views", command, "--schema", "no_such_schema").refused(4, "squid db upgrade")
        empty_cli("views", command, "--no-such-option").refused(2, "--no-such-option")
