"""`squid queue`: what is there, who stopped it, and what a person puts back."""

import json
from datetime import timedelta

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal.contract.worker_liveness import WorkerRow
from tests.cli.command_line import CommandLine
from tests.cli.workflows import gated, hello

QUEUE_KEYS = [
    "queue", "paused", "visible", "scheduled", "claimed", "expired", "counted_up_to", "oldest_due_at", "worker_count",
]  # fmt: skip
DEAD_KEYS = [
    "run_id", "runnable_key", "step", "workflow", "queue", "attempt_number", "deliveries", "max_deliveries", "since",
    "position",
]  # fmt: skip
GATE = {"begun": "/nowhere", "gate": "/nowhere"}


def dead_letters(cli: CommandLine, count: int, queue: str = "default") -> list[str]:
    """Create dead letters: steps whose only delivery was lost."""
    squid = Squid(cli.storage, [gated])
    runs = [squid.start("gated", GATE, queue=queue).run_id for _ in range(count)]
    agent = squid.dispatch_agent(queue)
    agent.claim_many("somebody", count, lease=timedelta(milliseconds=1))
    while len(squid.dead_letters(queue)) < count:  # a lease of a millisecond is over by then, or very soon
        squid.recover(queue)
    return runs


@pytest.mark.parametrize(
    ("args", "code", "word"),
    [
        (["inspect", "nowhere"], 3, "'nowhere'"),
        (["pause", "nowhere"], 3, "'nowhere'"),
        (["resume", "nowhere"], 3, "'nowhere'"),
        (["dead", "nowhere"], 3, "'nowhere'"),
        (["retry", "--all", "--queue", "nowhere"], 3, "'nowhere'"),
        (["pause", "no where"], 2, "'no where'"),
        (["pause", "--new", "no where"], 2, "'no where'"),
        (["pause", "default", "--metadata", "x"], 2, "--metadata"),
        (["dead", "--limit", "0"], 2, "--limit"),
        (["retry"], 2, "RUN_ID"),
        (["retry", "a", "--all"], 2, "RUN_ID"),
        (["retry", "a", "--queue", "b"], 2, "--all"),
        (["retry", "a", "--dry-run"], 2, "--all"),
        (["retry", "--all", "--idempotency-key", "k"], 2, "--bulk-id"),
        (["retry", "nobody"], 3, "'nobody'"),
    ],
)
def test_what_makes_no_sense_is_one_line(empty_cli: CommandLine, args: list[str], code: int, word: str) -> None:
    empty_cli("queue", *args).refused(code, word)


def test_queues_are_listed_with_their_work_and_workers(cli: CommandLine) -> None:
    assert cli("queue", "list").out == "no queues\n"
    squid = Squid(cli.storage, [hello])
    squid.start_many("hello", [{}, {}], queue="mail")
    squid.runtime.liveness.report(WorkerRow(worker_id="w", queues=("mail", "post"), host="here", pid=1))
    mail, post = cli("queue", "list", "--json").json["queues"]
    assert (list(mail), mail["queue"], mail["visible"], mail["worker_count"]) == (QUEUE_KEYS, "mail", 2, 1)
    assert (post["queue"], post["visible"], post["oldest_due_at"]) == ("post", 0, None)
    assert "mail" in cli("queue", "list").out


def test_a_queue_is_paused_shown_and_resumed(cli: CommandLine) -> None:
    squid = Squid(cli.storage, [hello])
    squid.start("hello", queue="mail")
    args = ("queue", "pause", "mail", "--actor", "ada", "--comment", "flood", "--idempotency-key", "k", "--json")
    assert cli(*args).json == {"queue": "mail", "paused": True, "repeated": False}
    assert cli(*args).json["repeated"] is True

    shown = cli("queue", "inspect", "mail", "--json").json
    assert list(shown) == [*QUEUE_KEYS, "paused_by", "workers", "dead_letters"]
    assert (shown["paused"], shown["paused_by"]["actor"], shown["paused_by"]["comment"]) == (True, "ada", "flood")
    assert (shown["workers"], shown["dead_letters"]) == ([], [])
    pause = cli("queue", "inspect", "mail").out
    assert "paused by ada" in pause
    assert "no worker serves it" in pause

    # when it is paused again without a word, then the first pause is what counts
    assert cli("queue", "pause", "mail", "--actor", "grace").code == 0
    assert cli("queue", "inspect", "mail", "--json").json["paused_by"] == shown["paused_by"]
    # and a new comment is told, since the first pause
    assert cli("queue", "pause", "mail", "--actor", "grace", "--comment", "still").code == 0
    pause = cli("queue", "inspect", "mail", "--json").json["paused_by"]
    assert pause == {"at": shown["paused_by"]["at"], "actor": "grace", "comment": "still"}

    assert cli("queue", "resume", "mail").out == "queue mail is open\n"
    assert cli("queue", "inspect", "mail", "--json").json["paused_by"] is None


def test_a_queue_may_be_paused_before_anything_is_put_on_it(cli: CommandLine) -> None:
    assert cli("queue", "pause", "later", "--new").out == "queue later is paused\n"
    assert cli("queue", "inspect", "later", "--json").json["paused"] is True


def test_dead_letters_are_listed_page_by_page(cli: CommandLine) -> None:
    runs = dead_letters(cli, 2)
    page = cli("queue", "dead", "--limit", 1, "--json").json
    rest = cli("queue", "dead", "default", "--after", page["next_after"], "--json").json
    letters = page["dead_letters"] + rest["dead_letters"]
    assert list(letters[0]) == DEAD_KEYS
    assert sorted(letter["run_id"] for letter in letters) == sorted(runs)
    assert (rest["next_after"], letters[0]["step"], letters[0]["deliveries"]) == (None, "hold", 1)
    shown = cli("queue", "dead", "--limit", 1).out
    assert letters[0]["runnable_key"] in shown
    assert f"--after {letters[0]['position']}" in shown
    assert cli("queue", "inspect", "default", "--json").json["dead_letters"] == letters


def test_a_run_with_a_dead_letter_has_one_status_in_every_command(cli: CommandLine) -> None:
    (run_id,) = dead_letters(cli, 1)
    (listed,) = cli("run", "list", "--json").json["runs"]
    inspected = cli("run", "inspect", run_id, "--json").json
    explained = cli("run", "explain", run_id, "--json").json
    assert {listed["status"], inspected["status"], explained["status"]} == {"running"}
    assert inspected["reason"] == explained["reason"] == "dead_letter"
    assert cli("status", "--json").json["runs"]["running"]["count"] == 1


def test_a_dead_letter_is_put_back_once(cli: CommandLine) -> None:
    (run_id,) = dead_letters(cli, 1)
    cli("queue", "retry", run_id, "no:such:key").refused(3, "no:such:key")
    args = ("queue", "retry", run_id, "--idempotency-key", "k", "--json")
    first, second = cli(*args).json, cli(*args).json
    assert (first["signal_type"], first["repeated"], second["repeated"]) == ("retry_attempt", False, True)
    assert cli("queue", "dead").out == "no dead letters\n"
    cli("queue", "retry", run_id).refused(1, "0 dead letters")


def test_all_dead_letters_of_a_queue_are_put_back_after_asking(cli: CommandLine) -> None:
    mail, other = dead_letters(cli, 2, "mail"), dead_letters(cli, 1, "other")
    cli("queue", "retry", "--all", "--queue", "mail").refused(1, "retry 2 runs", "--yes")
    dry = cli("queue", "retry", "--all", "--dry-run", "--json").json
    assert (dry["matched"], dry["done"]) == (3, 0)

    done = cli("queue", "retry", "--all", "--queue", "mail", "--yes", "--json")
    document = json.loads(done.out)
    assert (done.code, document["done"], document["refused"]) == (0, 2, 0)
    assert sorted(run["run_id"] for run in document["runs"]) == sorted(mail)
    left = cli("queue", "dead", "--json").json["dead_letters"]
    assert [letter["run_id"] for letter in left] == other
