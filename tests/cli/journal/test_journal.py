"""`squid journal tail` and `verify`: every fact once, nothing secret, and what is wrong by its name."""

import json
import signal as signals
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.embedded import EmbeddedPostgres
from tests.cli.command_line import Answer, CommandLine
from tests.cli.workflows import hello, orders
from tests.facts import claimed, planned, queue_paused, scheduled, signal, started
from tests.journal.access import put, raw, terminate_backends
from tests.scratch import SCRATCH

KEYS = ["position", "thread", "seq", "type", "run_id", "occurred_at", "unreadable", "data"]


def lines(answer: Answer) -> list[dict[str, Any]]:
    """Parse the documents of a stream that ended well."""
    assert (answer.code, answer.err) == (0, ""), answer
    return [json.loads(line) for line in answer.out.splitlines()]


def nth(entry: dict[str, Any]) -> tuple[int, int]:
    """Return the number of an entry's commit, and its place in that."""
    return entry["position"] >> 20, entry["position"] & (2**20 - 1)


SIX = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]


@pytest.fixture
def six_facts(cli: CommandLine) -> CommandLine:
    """A journal of six facts of two runs, on three threads."""
    put(cli.storage, signal("run-1"), started("run-1"), signal("run-2"))
    put(cli.storage, scheduled("run-1"), scheduled("run-2"), queue_paused())
    return cli


# --- tail -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "code", "word"),
    [
        (["-n", "-1"], 2, "-n"),
        (["-n", "ten"], 2, "ten"),
        (["--run", "a b"], 2, "a b"),
        (["--run", "nobody"], 3, "nobody"),
        (["--thread", "run-1"], 2, "'run-1' is not a thread id"),
        (["--thread", "squid:run:nobody"], 3, "squid:run:nobody"),
        (["--type", "run_strated"], 2, "run_started"),
        (["--follow", "--poll", "0"], 2, "--poll"),
        (["--schema", "No Such!"], 2, "No Such!"),
        (["--schema", "no_such_schema"], 4, "squid db upgrade"),
    ],
)
def test_a_question_that_makes_no_sense_is_one_line(
    empty_cli: CommandLine, args: list[str], code: int, word: str
) -> None:
    empty_cli("journal", "tail", *args).refused(code, word)
    assert json.loads(empty_cli("journal", "tail", "--json", *args).refused(code))["exit_code"] == code


def test_the_newest_facts_come_oldest_first(six_facts: CommandLine) -> None:
    documents = lines(six_facts("journal", "tail", "--json"))
    assert [[*document] for document in documents] == [KEYS] * 6
    assert [nth(document) for document in documents] == SIX
    assert [nth(document) for document in lines(six_facts("journal", "tail", "-n", "2", "--json"))] == SIX[-2:]
    assert lines(six_facts("journal", "tail", "-n", "0", "--json")) == []
    shown = six_facts("journal", "tail", "-n", "1").out
    assert shown.split() == [str((2 << 20) + 3), "2026-01-01T00:00:05Z", "queue_paused", "squid:dispatch:default#3"]


def test_facts_are_picked_by_run_thread_and_type(six_facts: CommandLine) -> None:
    def positions(*args: str) -> list[int]:
        return [SIX.index(nth(document)) + 1 for document in lines(six_facts("journal", "tail", "--json", *args))]

    queue = ("--thread", "squid:dispatch:default")
    assert positions("--run", "run-1") == [1, 2, 4]
    assert positions("--run", "run-1", "-n", "2") == [2, 4]
    assert positions(*queue) == [4, 5, 6]
    assert positions(*queue, "-n", "1") == [6]
    assert positions("--type", "run_signal_received") == [1, 3]
    assert positions("--type", "run_signal_received", "-n", "1") == [3]
    assert positions(*queue, "--run", "run-2") == [5]
    assert positions(*queue, "--type", "queue_paused") == [6]
    assert positions("--type", "run_terminal") == []


def test_secrets_are_not_shown_and_nothing_of_what_cannot_be_read(cli: CommandLine) -> None:
    squid = Squid(cli.storage, [orders])
    squid.start("orders", {"item": "tea", "password": "hunter2"})
    squid.execute_next()
    with raw(cli.storage) as connection:
        connection.execute("ALTER TABLE journal_entries DISABLE TRIGGER ALL")
        connection.execute("UPDATE journal_entries SET data = '{\"x\": \"hunter3\"}' WHERE type = 'attempt_completed'")
        connection.execute("ALTER TABLE journal_entries ENABLE ALWAYS TRIGGER journal_entries_append_only")
    answer = cli("journal", "tail", "--json")
    by_type = {document["type"]: document for document in lines(answer)}
    assert by_type["run_started"]["data"]["input"] == {"item": "tea", "amount": 1, "password": "[REDACTED]"}
    assert "digest" in by_type["attempt_completed"]["unreadable"]
    assert by_type["attempt_completed"]["data"] == {}
    assert "claim_token_hash" not in by_type["attempt_claimed"]["data"]
    for word in ("hunter2", "hunter3"):
        assert word not in answer.out + cli("journal", "tail").out


def test_who_follows_sees_every_fact_once(six_facts: CommandLine) -> None:
    storage = six_facts.storage
    with six_facts.process("journal", "tail", "-n", "2", "--follow", "--poll", "0.05", "--json") as tail:
        assert tail.stdout is not None
        read = tail.stdout.readline
        assert [nth(json.loads(read())) for _ in range(2)] == SIX[-2:]
        # when a commit with lower positions is slower than one with higher ones
        with raw(storage, autocommit=False) as slow:
            slow.execute("SELECT take_number(1)")
            put(storage, signal("run-3"))
            slow.execute(
                """INSERT INTO journal_entries SELECT (3 << 20) + 1, thread, 2, type, run_id, occurred_at, data,
                     entry_digest(thread, 2, type, run_id, occurred_at, data)
                   FROM journal_entries WHERE position = (1 << 20) + 3"""
            )
            slow.execute("UPDATE journal_threads SET rev = 2 WHERE id = 'squid:run:run-2'")
            slow.commit()
        put(storage, *(signal("run-4", at=n) for n in range(3)))
        # then nothing is missed, and nothing comes twice
        assert [nth(json.loads(read())) for _ in range(5)] == [(3, 1), (4, 1), (5, 1), (5, 2), (5, 3)]
        tail.send_signal(signals.SIGINT)
        rest, _ = tail.communicate(timeout=20)
    assert (tail.returncode, rest) == (130, "")


def test_who_follows_goes_on_after_a_restart_of_the_database_and_says_so_once() -> None:
    with tempfile.TemporaryDirectory(prefix="squid-own-", dir=SCRATCH) as directory:
        Path(directory).chmod(0o755)
        server = EmbeddedPostgres(Path(directory) / "postgres")
        storage = PostgresStorage(server.ensure_running(), "followed")
        try:
            storage.upgrade()
            put(storage, signal("run-1"))
            with CommandLine(storage).process("journal", "tail", "--follow", "--poll", "0.05", "--json") as tail:
                assert tail.stdout is not None
                assert json.loads(tail.stdout.readline())["run_id"] == "run-1"
                # when the server is away for a while
                server.stop()
                assert tail.stderr is not None
                said = tail.stderr.readline()
                time.sleep(2)
                assert tail.poll() is None
                server.ensure_running()
                put(storage, signal("run-2"), signal("run-3"))
                # then nothing is missed, nothing comes twice, and the outage was said once
                assert [json.loads(tail.stdout.readline())["run_id"] for _ in range(2)] == ["run-2", "run-3"]
                tail.send_signal(signals.SIGINT)
                rest, err = tail.communicate(timeout=20)
        finally:
            storage.close()
            server.stop()
    assert "following the journal waits for the database: " in said
    assert (tail.returncode, rest) == (130, "")
    assert [json.loads(line)["error"] for line in err.splitlines()] == ["Interrupted"]


def test_who_follows_goes_on_when_all_connections_are_ended(six_facts: CommandLine) -> None:
    with six_facts.process("journal", "tail", "-n", "1", "--follow", "--poll", "0.05", "--json") as tail:
        assert tail.stdout is not None
        tail.stdout.readline()
        for n in range(5):
            terminate_backends(six_facts.storage)
            put(six_facts.storage, signal(f"after-{n}"))
            assert json.loads(tail.stdout.readline())["run_id"] == f"after-{n}"
        tail.send_signal(signals.SIGINT)
        tail.communicate(timeout=20)
    assert tail.returncode == 130


def test_who_follows_one_run_sees_nothing_else_and_stops_when_nobody_reads(six_facts: CommandLine) -> None:
    with six_facts.process("journal", "tail", "-n", "1", "-f", "--poll", "0.05", "--run", "run-1") as tail:
        assert tail.stdout is not None
        assert "squid:dispatch:default#1  run-1" in tail.stdout.readline()
        put(six_facts.storage, signal("other"))
        put(six_facts.storage, signal("run-1"))
        assert "squid:run:run-1#3" in tail.stdout.readline()
        tail.stdout.close()
        ends = time.monotonic() + 30
        while tail.poll() is None and time.monotonic() < ends:
            put(six_facts.storage, signal("run-1"))
        tail.kill()
    assert tail.returncode == 141


# --- verify ---------------------------------------------------------------------------------------------------------


def test_a_healthy_journal_is_told_so(cli: CommandLine) -> None:
    squid = Squid(cli.storage, [hello])
    squid.start("hello")
    squid.backlog.create("a", "card")
    assert cli("journal", "verify", "--json").json == {"healthy": True, "findings": []}
    assert cli("journal", "verify").out == "The journal is healthy.\n"


def test_what_is_wrong_is_named_with_its_place_and_without_values(cli: CommandLine) -> None:
    storage: PostgresStorage = cli.storage
    put(storage, signal(payload={"amount": 5}), started(), planned(), scheduled(), claimed())
    Squid(storage, []).backlog.create("a", "card")
    with raw(storage) as connection:
        connection.execute("ALTER TABLE journal_entries DISABLE TRIGGER ALL")
        connection.execute('UPDATE journal_entries SET data = \'{"secret": "hunter2"}\' WHERE position = (1 << 20) + 1')
        connection.execute("UPDATE journal_threads SET rev = 9 WHERE id = 'squid:run:run-1'")
        connection.execute("UPDATE runs SET status = 'paused'")
        connection.execute("UPDATE backlog SET title = 'other'")
    answer = cli("journal", "verify", "--json")
    document = json.loads(answer.out)
    assert (answer.code, answer.err, document["healthy"]) == (1, "", False)
    assert [[*finding] for finding in document["findings"]] == [["kind", "thread", "seq", "run_id", "detail"]] * 3
    assert [(finding["kind"], finding["thread"], finding["seq"]) for finding in document["findings"]] == [
        ("corrupt_entry", "squid:run:run-1", 1),
        ("wrong_revision", "squid:run:run-1", 3),
        ("view_differs", None, None),
    ]
    assert "card a: other values in title" in document["findings"][2]["detail"]
    text = cli("journal", "verify")
    assert (text.code, "3 things are wrong" in text.out) == (1, True)
    assert "hunter2" not in answer.out + text.out
