"""`squid backlog`: what it prints, how it fails, and the session of the document that the backlog was written from."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from squid_dagster.backlog import Backlog
from squid_dagster.cli import main
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import BACKLOG_THREAD
from tests.backlog.contract import BacklogFixture

COLUMNS = [
    *("id", "title", "body", "phase", "priority", "status", "depends_on", "claim_owner", "claim_ttl_seconds"),
    *("claimed_at", "attempts", "idempotency_key", "acceptance", "created_at", "updated_at"),
    *("claim_expires_at", "not_before", "max_attempts", "open_dependencies", "error"),
]

Run = Callable[..., Result]


@pytest.fixture
def configured_journal(
    shared_postgres: PostgresStorage, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> PostgresStorage:
    """An empty backlog that the configuration names, by the database's own clock."""
    for name in ("DATABASE_URL", "SQUID_CLAIM_TOKEN", "SQUID_BACKLOG_STRICT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SQUID_DATABASE_URL", postgres_url)
    monkeypatch.setenv("SQUID_SCHEMA", shared_postgres.schema)
    shared_postgres.clock = None
    return shared_postgres


@pytest.fixture
def squid(configured_journal: PostgresStorage) -> Run:
    """Run a command in this process, which spares an interpreter."""
    del configured_journal
    return lambda *arguments: CliRunner().invoke(main, ["backlog", *arguments])


def said(result: Result) -> Any:
    """Return what a command printed, which must be JSON and nothing else."""
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["claim", "--owner", ""], 2, "owner"),
        (["claim", "--owner", " "], 2, "owner"),
        (["claim", "--owner", "a\nb"], 2, "owner"),
        (["claim"], 2, "--owner"),
        (["claim", "--owner", "w", "--ttl", "0"], 2, "--ttl"),
        (["claim", "--owner", "w", "--ttl", "soon"], 2, "--ttl"),
        (["claim", "--owner", "w", "--id", "X"], 3, "'X'"),
        (["create", "--id", "B", "--title", "b", "--acceptance", "{"], 2, "not JSON"),
        (["create", "--id", "B", "--title", "b", "--acceptance", "7"], 2, "acceptance"),
        (["create", "--id", "B", "--title", "b", "--not-before", "tomorrow"], 2, "'tomorrow'"),
        (["create", "--id", "B", "--title", "b", "--not-before", "2026-11-16T18:00:00"], 2, "zone"),
        (["create", "--id", "B", "--title", "b", "--depends-on", "X"], 3, "'X'"),
        (["create", "--id", "B", "--title", "b", "--max-attempts", "0"], 2, "--max-attempts"),
        (["create", "--id", "a b", "--title", "b"], 2, "a card's id must be 1 to 200 letters, digits"),
        (["create", "--id", "", "--title", "b"], 2, "a card's id must be 1 to 200 letters, digits"),
        (["create", "--id", "B", "--title", "b", "--depends-on", "B"], 2, "card 'B' cannot depend on itself"),
        (["create", "--id", "B", "--title", "b", "--priority", "2147483648"], 2, "--priority"),
        (["create", "--id", "A", "--title", "another"], 1, "title"),
        (["complete", "--id", "X"], 3, "'X'"),
        (["complete", "--id", "A", "--token", "made up"], 1, "token"),
        (["complete", "--id", "A", "--strict"], 2, "token"),
        (["renew", "--id", "A"], 1, "claim it first"),
        (["fail", "--id", "A"], 1, "claim it first"),
        (["block", "--id", ""], 2, "id"),
        (["unblock", "--id", "X"], 3, "'X'"),
        (["link", "--from", "A", "--to", "A"], 2, "itself"),
        (["link", "--from", "A", "--to", "C"], 1, "cycle A -> C -> A"),
        (["link", "--from", "A", "--to", "X"], 3, "'X'"),
        (["reclaim", "--id", "X"], 3, "'X'"),
        (["history", "--id", "X"], 3, "'X'"),
        (["list", "--status", "open"], 2, "--status"),
        (["list", "--limit", "0"], 2, "--limit"),
        (["list", "--limit", "99999999999999999999999"], 2, "--limit"),
        (["list", "--phase", "\udcff"], 2, "not UTF-8"),
        (["fail", "--id", "A", "--retry-after", "100000000000000000"], 2, "--retry-after"),
        (["create", "--id", "B", "--title", "b", "--acceptance", '{"a": NaN}'], 2, "NaN"),
        (["dance"], 2, "dance"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_what_is_wrong_is_told_in_one_line_and_nothing_changes(
    squid: Run, configured_journal: PostgresStorage, arguments: list[str], code: int, message: str
) -> None:
    # given a card and one that depends on it
    backlog = Backlog(configured_journal)
    backlog.create("A", "a")
    backlog.create("C", "c", depends_on=["A"])
    before = configured_journal.revision(BACKLOG_THREAD)
    # when a command makes no sense, then it says so on stderr, in one line
    result = squid(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    # and with --json as JSON
    result = squid(*arguments, "--json")
    assert (result.exit_code, result.stdout) == (code, "")
    error = json.loads(result.stderr)
    assert list(error) == ["error", "message", "exit_code"]
    assert error["exit_code"] == code
    assert message in error["message"]
    assert configured_journal.revision(BACKLOG_THREAD) == before


def test_without_a_database_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUID_DATABASE_URL", "postgresql://nobody:secret@127.0.0.1:1/none")
    result = CliRunner().invoke(main, ["backlog", "list", "--json"])
    assert (result.exit_code, result.stdout) == (4, "")
    assert json.loads(result.stderr)["error"] == "StorageUnavailable"
    assert "secret" not in result.stderr


def test_without_a_journal_it_names_the_command_that_makes_one(squid: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUID_SCHEMA", "nothing_here")
    result = squid("stats")
    assert result.exit_code == 4
    assert "squid db upgrade" in result.stderr


# --- what it prints -------------------------------------------------------------------------------------------------


def test_every_command_prints_json_with_stable_keys_and_nothing_else(squid: Run) -> None:
    made = said(squid("create", "--id", "A", "--title", "a", "--acceptance", '["works"]', "--json"))
    assert list(made) == COLUMNS
    said(squid("create", "--id", "B", "--title", "b", "--depends-on", "A", "--max-attempts", "1", "--json"))
    said(squid("create", "--id", "C", "--title", "c", "--depends-on", "A,B", "--phase", "M1", "--json"))
    assert said(squid("link", "--from", "C", "--to", "A", "--json"))["depends_on"] == ["A", "B"]
    held = said(squid("claim", "--owner", "w", "--json"))
    assert list(held) == [*COLUMNS, "claim_token"]
    assert (held["id"], held["claim_ttl_seconds"], held["acceptance"]) == ("A", 900, ["works"])
    assert said(squid("claim", "--owner", "w", "--json")) is None
    assert said(squid("renew", "--id", "A", "--ttl", "1800", "--token", held["claim_token"], "--json"))["id"] == "A"
    assert (
        said(squid("complete", "--id", "A", "--token", held["claim_token"], "--strict", "--json"))["status"] == "done"
    )
    assert said(squid("claim", "--owner", "w", "--id", "B", "--json"))["attempts"] == 1
    dead = said(squid("fail", "--id", "B", "--error", "no", "--retry-after", "5", "--json"))
    assert (dead["status"], dead["error"]) == ("dead_lettered", {"message": "no"})
    assert [card["status"] for card in said(squid("reclaim", "--id", "B", "--json"))] == ["ready"]
    assert said(squid("block", "--id", "B", "--reason", "later", "--json"))["status"] == "blocked"
    assert said(squid("unblock", "--id", "B", "--json"))["status"] == "ready"
    assert said(squid("reclaim", "--json")) == []
    assert [card["id"] for card in said(squid("list", "--phase", "M1", "--json"))] == ["C"]
    stats = said(squid("stats", "--json"))
    assert list(stats) == ["counts", "total", "claimable", "oldest_ready_age_seconds", "expired_claims"]
    history = said(squid("history", "--id", "B", "--json"))
    assert [line["type"] for line in history][-3:] == ["card_released", "card_blocked", "card_unblocked"]
    assert list(history[0]) == ["seq", "position", "type", "occurred_at", "data"]
    assert said(squid("rebuild", "--json"))["cards"] == 3


def test_people_get_lines_and_tables(squid: Run) -> None:
    assert squid("list").stdout == "no cards\n"
    assert squid("create", "--id", "A", "--title", "a").stdout == "A: a (ready, priority 0)\n"
    squid("create", "--id", "B", "--title", "b", "--depends-on", "A")
    table = squid("list").stdout.splitlines()
    assert table[0].split() == ["id", "status", "priority", "phase", "attempts", "owner", "waits", "for", "title"]
    assert table[3].split() == ["B", "ready", "0", "0", "1", "b"]
    claimed = squid("claim", "--owner", "w").stdout
    assert "held by w until" in claimed
    assert "\ntoken: " in claimed
    assert squid("claim", "--owner", "w").stdout == "nothing to claim\n"
    assert squid("reclaim").stdout == "nothing to release\n"
    assert "1 ready, 1 claimed" in squid("stats").stdout
    assert "claim_owner=w" in squid("history", "--id", "A").stdout
    assert squid("rebuild").stdout == "2 cards from 3 facts, 0 of which no rule lets through\n"


def test_a_card_that_cannot_be_claimed_says_why(squid: Run) -> None:
    for card_id, options in (("A", ()), ("B", ("--depends-on", "A")), ("C", ("--not-before", "2999-01-01T00:00:00Z"))):
        squid("create", "--id", card_id, "--title", "t", *options)
    for card_id in ("D", "E", "F"):
        squid("create", "--id", card_id, "--title", "t", "--priority", "-1")
    squid("claim", "--owner", "ada", "--id", "A")
    squid("complete", "--id", "D")
    squid("block", "--id", "E")
    squid("claim", "--owner", "ada", "--id", "F")
    squid("fail", "--id", "F", "--give-up")
    for card_id, why in (
        ("A", "held by ada until"),
        ("B", "waits for 1 of A"),
        ("C", "not to be claimed before 2999-01-01"),
        ("D", "is done"),
        ("E", "squid backlog unblock --id E"),
        ("F", "squid backlog reclaim --id F"),
    ):
        done = squid("claim", "--owner", "w", "--id", card_id)
        assert (done.exit_code, why in done.stdout) == (0, True), done.stdout
        assert said(squid("claim", "--owner", "w", "--id", card_id, "--json")) is None


def test_the_token_can_come_from_the_environment(squid: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    squid("create", "--id", "A", "--title", "a")
    monkeypatch.setenv("SQUID_CLAIM_TOKEN", said(squid("claim", "--owner", "w", "--json"))["claim_token"])
    monkeypatch.setenv("SQUID_BACKLOG_STRICT", "1")
    assert said(squid("complete", "--id", "A", "--json"))["status"] == "done"
    fenced = said(squid("history", "--id", "A", "--json"))[-1]
    assert fenced["data"]["fence"] == "token"
    assert "claim_token_hash" not in fenced["data"]


# --- real processes -------------------------------------------------------------------------------------------------


@pytest.fixture
def shell(configured_journal: PostgresStorage, tmp_path: Path) -> dict[str, str]:
    """An environment in which `squid` is there, and so is `mosaic`, whose `fleet` commands it answers."""
    del configured_journal
    for name, passed in (("squid", '"$@"'), ("mosaic", '"${@:2}"')):
        script = tmp_path / name
        script.write_text(
            f'#!/bin/bash\nexec "{sys.executable}" -c "from squid_dagster.cli import main; main()" {passed}\n'
        )
        script.chmod(0o755)
    # Unbuffered, Python loses what a full pipe does not take, and notices nothing.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**inherited, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_the_session_of_the_seed_runs_as_written(shell: dict[str, str]) -> None:
    session = Path(__file__).with_name("seed_session.sh")
    done = subprocess.run(["bash", "-e", session], env=shell, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    first, second, claimed, completed, ready, reclaimed = done.stdout.splitlines()
    assert (first, second) == ("A1: schema (ready, priority 5)", "A2: service (ready, priority 9, waits for 1 of A1)")
    assert (json.loads(claimed)["id"], json.loads(claimed)["claim_ttl_seconds"]) == ("A1", 600)
    assert completed == "A1: schema (done, priority 5)"
    assert [card["id"] for card in json.loads(ready)] == ["A2"]
    assert json.loads(reclaimed) == []


def test_a_pipe_that_is_closed_early_leaves_no_traceback(
    shell: dict[str, str], configured_journal: PostgresStorage
) -> None:
    backlog = Backlog(configured_journal)
    for number in range(30):
        backlog.create(f"c{number}", "x" * 900, body="y" * 9000)
    command = "set -o pipefail; squid backlog list --json | head -c 10"
    done = subprocess.run(["bash", "-c", command], env=shell, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode != 0, done.stdout) == (True, '[{"id": "c')
    assert done.stderr.count("\n") <= 1


def test_the_facade_and_the_board_share_their_cards(fixture: BacklogFixture) -> None:
    from squid_dagster import Squid

    squid = Squid(fixture.storage)
    squid.backlog.create("A", "a")
    assert fixture.claim().id == "A"
    squid.close()
