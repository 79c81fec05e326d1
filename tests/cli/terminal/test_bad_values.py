"""Values that no option can have, given to every option and argument of every command: one line, and nothing changes.

Commands are found as the reference finds them, so that a new one is tried too.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from squid_dagster.api import Squid
from squid_dagster.cli import main
from squid_dagster.cli.reference import _walk
from squid_dagster.journal import PostgresStorage
from tests.cli.command_line import CommandLine
from tests.cli.workflows import orders

NOT_UTF8 = "x\udcff"  # as Python hands over the byte 0xff

# What a command needs beside the value that is tried, by the names of parameters.
NEEDED = {
    "run_id": "run-1",
    "workflow": "orders",
    "name": "default",
    "file": "export.jsonl",
    "card_id": "A",
    "depends_on": "B",
    "title": "a card",
    "owner": "ada",
    "module": "tests.cli.workflows",
}
USEFUL = {("module", False), ("run_id", True)}  # not needed by click, but to get as far as possible
ENDING = {"squid worker": ["--until-idle"], "squid quickstart": ["--no-ui", "--until-done"]}


def nested(depth: int) -> str:
    return '{"a":' + "[" * depth + "]" * depth + "}"


JSON = {
    "NUL": r'{"a": "\u0000"}',
    "surrogate": r'{"a": "\ud800"}',
    "key": r'{"a": {"\ud800": 1}}',
    "NaN": '{"a": NaN}',
    "infinity": '{"a": 1e999}',
    "digits": '{"a": ' + "9" * 5_000 + "}",
    **{f"nested {depth}": nested(depth) for depth in (300, 900, 50_000)},
}
WHOLE = {"large": str(2**63), "huge": str(10**30), "digits": "9" * 5_000}
REAL = {"nan": "nan", "inf": "inf", "huge": "1e300"}
TIMES = {"before": "0001-01-01T00:00:00+14:00", "after": "9999-12-31T23:59:59-14:00"}


def bad_values(parameter: click.Parameter) -> dict[str, str]:
    """Return values that this parameter cannot have, by a name."""
    kind = parameter.type
    values = {"not UTF-8": NOT_UTF8}
    if isinstance(kind, click.FloatRange):
        values |= REAL
    elif kind is click.INT or isinstance(kind, click.IntRange):
        values |= WHOLE
    elif parameter.metavar == "JSON":
        values |= JSON
    elif parameter.metavar == "TIME":
        values |= TIMES
    elif parameter.metavar == "NAME=VALUE":  # what is no JSON at all is a text there
        values |= {name: f"item={text}" for name, text in JSON.items() if name not in ("NaN", "digits")}
    return values


def tried() -> "Iterator[tuple[str, list[str]]]":
    with click.Context(main, info_name="squid") as context:
        commands = list(_walk(main, context))
    for path, command, _ in commands:
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.is_flag:
                continue
            for name, value in bad_values(parameter).items():
                yield f"{path} {parameter.opts[-1]}: {name}", arguments(path, command, parameter, value)


def arguments(path: str, command: click.Command, tried: click.Parameter, value: str) -> list[str]:
    """Return a command line that is valid but for one value."""
    options, behind = [*ENDING.get(path, ())], []
    for parameter in command.params:
        is_argument = isinstance(parameter, click.Argument)
        if parameter is not tried and not parameter.required and (parameter.name, is_argument) not in USEFUL:
            continue
        given = value if parameter is tried else NEEDED[str(parameter.name)]
        if is_argument:
            behind.append(given)
        else:
            options.append(f"{parameter.opts[-1]}={given}")
    return [*path.split()[1:], *options, *behind]


CASES = dict(tried())


@pytest.fixture(scope="module")
def busy(postgres_url: str, schema_names: Iterator[str]) -> Iterator[CommandLine]:
    """A journal on which each of the commands could do something: a run that waits for a person, and cards."""
    storage = PostgresStorage(postgres_url, next(schema_names))
    storage.upgrade()
    squid = Squid(storage, [orders])
    squid.start("orders", {"item": "tea"}, run_id="run-1")
    squid.worker(until_idle=True)
    for card_id in ("A", "B"):
        squid.backlog.create(card_id, "a card")
    squid.backlog.claim("ada", card_id="A")
    yield CommandLine(storage)
    storage.close()


@pytest.mark.parametrize("case", CASES)
def test_a_value_that_makes_no_sense_is_one_line_and_changes_nothing(
    busy: CommandLine, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    before = busy.facts()
    busy(*CASES[case]).refused(2)
    error = busy(*CASES[case], "--json").refused(2)
    assert [*json.loads(error)] == ["error", "message", "exit_code"]
    assert busy.facts() == before
    assert [*tmp_path.iterdir()] == []


def test_a_file_with_a_payload_that_no_journal_can_hold_is_refused(busy: CommandLine, tmp_path: Path) -> None:
    before = busy.facts()
    file = tmp_path / "payload.json"
    for content in (b"\xff", b"", b"[]", *(text.replace('"a"', '"item"').encode() for text in JSON.values())):
        file.write_bytes(content)
        busy("run", "start", "orders", "-m", "tests.cli.workflows", "--payload-file", file).refused(2)
    assert busy.facts() == before


@pytest.mark.parametrize("name", ["SQUID_SCHEMA", "SQUID_MODULES", "SQUID_CLAIM_TOKEN"])
def test_the_environment_is_read_as_carefully(busy: CommandLine, name: str) -> None:
    odd = CommandLine(busy.storage)
    odd.environ[name] = NOT_UTF8
    command = ("backlog", "complete", "--id", "A") if name == "SQUID_CLAIM_TOKEN" else ("run", "list")
    odd(*command).refused(2)
