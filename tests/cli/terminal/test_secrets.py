"""No command, view, picture or line of a log shows a secret that stands inside a text; the journal itself holds it."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import click
import pytest

from squid_dagster.api import Squid
from squid_dagster.cli import main
from squid_dagster.journal import PostgresStorage
from squid_dagster.redaction import KEYS_VARIABLE
from tests.cli.command_line import CommandLine
from tests.planted_secrets import CANARY, URL, fill, workflows

LEAKY = ("-m", "tests.planted_secrets")


class Leaks:
    """A journal full of secrets, the runs in it, and what was logged while it was filled."""

    def __init__(self, storage: PostgresStorage) -> None:
        """Fill it."""
        self.cli, self.records = CommandLine(storage), list[str]()
        handler = logging.Handler()
        handler.emit = lambda record: self.records.append(logging.Formatter().format(record))  # type: ignore[method-assign]
        logging.getLogger("squid_dagster").addHandler(handler)
        try:
            self.squid = Squid(storage, workflows)
            self.runs = fill(self.squid)
        finally:
            logging.getLogger("squid_dagster").removeHandler(handler)


@pytest.fixture(scope="module")
def leaks(postgres_url: str, schema_names: Iterator[str]) -> Iterator[Leaks]:
    """One journal for all tests here: none of them changes what it holds of secrets."""
    storage = PostgresStorage(postgres_url, next(schema_names))
    storage.upgrade()
    yield Leaks(storage)
    storage.close()


def test_the_journal_holds_payloads_whole_and_errors_without_secrets(leaks: Leaks) -> None:
    facts = [entry.fact for entry in leaks.squid.journal.read_between(0, 2**62)]
    holding = {fact.type for fact in facts if CANARY in repr(fact)}

    assert {"run_signal_received", "run_started", "attempt_scheduled", "attempt_completed"} <= holding
    assert not holding & {"attempt_failed", "attempt_released", "card_failed", "card_blocked"}
    assert {"attempt_failed", "attempt_released", "card_failed", "card_blocked"} <= {fact.type for fact in facts}


def test_no_view_of_a_run_shows_a_secret(leaks: Leaks) -> None:
    for run_id in leaks.runs:
        views: list[Any] = [
            leaks.squid.inspect_run(run_id, include_history=True),
            leaks.squid.explain_run(run_id),
            leaks.squid.inspect_run_graph(run_id, include_history=True),
            *leaks.squid.inspect_run_timeline(run_id),
        ]
        drawn = leaks.squid.inspect_run_graph(run_id)
        texts = [repr(views), drawn.to_svg(), drawn.to_mermaid(), *(json.dumps(view.to_dict()) for view in views)]
        assert CANARY not in "\n".join(texts)


def test_no_line_of_a_log_shows_a_secret(leaks: Leaks) -> None:
    text = "\n".join(leaks.records)

    assert CANARY not in text
    assert "calling https://***@api.example.com/v1" in text
    assert "ConnectionError: cannot connect with host=127.0.0.1 user=bob password=*** dbname=app" in text


def _commands(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _commands(command, *path, name)
        else:
            yield (*path, name)


# What each command is typed with; RUN stands for every run of the journal.
SHOWING: dict[tuple[str, ...], list[tuple[str, ...]]] = {
    ("status",): [()],
    ("doctor",): [()],
    ("recover",): [()],
    ("run", "list"): [()],
    ("run", "inspect"): [("RUN",), ("RUN", "--history")],
    ("run", "explain"): [("RUN",)],
    ("run", "graph"): [("RUN",), ("RUN", "--format", "svg"), ("RUN", "--format", "mermaid")],
    ("run", "timeline"): [("RUN",)],
    ("run", "watch"): [("RUN", "--timeout", "0.1")],
    ("run", "start"): [("calling", "--payload", json.dumps({"endpoint": URL, "how": 5}))],
    ("run", "approve"): [("RUN", "--actor", "a")],
    ("run", "reject"): [("RUN", "--actor", "a")],
    ("run", "resume"): [("RUN",)],
    ("run", "cancel"): [("nowhere",)],
    ("run", "replay"): [("nowhere",)],
    ("queue", "list"): [()],
    ("queue", "inspect"): [("default",), ("later",)],
    ("queue", "dead"): [()],
    ("queue", "pause"): [("idle", "--new", "--comment", URL)],
    ("queue", "resume"): [("idle", "--comment", URL)],
    ("queue", "retry"): [("RUN",)],
    ("cron", "list"): [()],
    ("cron", "next"): [()],
    ("journal", "tail"): [("-n", "1000")],
    ("journal", "verify"): [()],
    ("views", "check"): [()],
    ("views", "rebuild"): [()],
    ("backlog", "list"): [("--status", "all"), ()],
    ("backlog", "history"): [("--id", "card-1")],
    ("backlog", "stats"): [()],
    ("db", "status"): [()],
    ("db", "upgrade"): [()],
    ("worker",): [("--until-idle",)],
}
# A backup is whole; a card is handed over whole to the one who claims it; the rest shows nothing of a run.
ELSEWHERE = {
    ("journal", "export"), ("journal", "import"), ("quickstart",), ("db", "start"), ("db", "stop"),
    *(("backlog", name) for name in "block claim complete create fail link rebuild reclaim renew unblock".split()),  # noqa: SIM905
}  # fmt: skip


REFUSED = {"start", "reject", "resume", "retry", "cancel", "replay", "watch", "doctor"}  # whatever they are asked


def test_every_command_is_looked_at() -> None:
    assert set(_commands(main)) == SHOWING.keys() | ELSEWHERE


@pytest.mark.parametrize("command", SHOWING, ids=" ".join)
def test_no_command_shows_a_secret(leaks: Leaks, command: tuple[str, ...]) -> None:
    answered = 0
    for args in SHOWING[command]:
        for run_id in leaks.runs if "RUN" in args else [""]:
            for form in ((), ("--json",)):
                values = [run_id if argument == "RUN" else argument for argument in args]
                given = LEAKY if _takes_modules(command) else ()
                answer = leaks.cli(*command, *values, *given, *form)
                assert CANARY not in answer.out + answer.err, (command, values, form)
                assert "No such option" not in answer.err, answer.err
                answered += answer.code == 0
    assert answered or command[-1] in REFUSED, command


def _takes_modules(command: tuple[str, ...]) -> bool:
    loaded: Any = main
    for name in command:
        loaded = loaded.get_command(click.Context(loaded), name)
    return any("-m" in parameter.opts for parameter in loaded.params)


def test_a_user_hides_more_by_the_environment(leaks: Leaks) -> None:
    run_id = leaks.squid.start("calling", {"endpoint": "https://example.com/"}, metadata={"iban": "DE12"}).run_id
    assert "DE12" in leaks.cli("run", "inspect", run_id, "--json").out

    shown = leaks.cli.piped("run", "inspect", run_id, "--json", **{KEYS_VARIABLE: "iban"}).json

    assert "DE12" not in json.dumps(shown)
