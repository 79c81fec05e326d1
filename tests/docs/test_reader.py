"""The reader of documents fails for everything that is wrong in them."""

from itertools import count
from pathlib import Path

import click
import pytest

from tests.docs import blocks
from tests.docs.blocks import Block
from tests.docs.comparison import fits
from tests.docs.inline_commands import inline_commands, read_command
from tests.docs.reader import Reader, reader


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Trial":
    return Trial(tmp_path, monkeypatch)


class Trial:
    """Reads a document that a test has just written."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch

    def __call__(self, text: str) -> Reader:
        (self._folder / "page.md").write_text(text)
        self._monkeypatch.setattr(blocks, "ROOT", self._folder)
        self._monkeypatch.setattr("tests.docs.reader.ROOT", self._folder)
        with reader("page.md", self._folder, {}, self._monkeypatch) as made:
            made.read()
        return made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```\nls\n```\n", "no language"),
        ("```ruby\nputs 1\n```\n", "ruby"),
        ("<!-- skip: -->\n```console\n$ ls\n```\n", "without a reason"),
        ("<!-- skip: is a picture -->\n```mermaid\nflowchart LR\n```\n", "nothing to skip"),
        ("```console\noutput without a command\n```\n", "begins with a command"),
        ("```console\n$ exit 3\n```\n", "ended with 3"),
        ("<!-- exit: 2 -->\n```console\n$ exit 3\n```\n", "ended with 3"),
        ("```console\n$ echo one\ntwo\n```\n", "printed"),
        ("```console\n$ squid no-such-command\n```\n", "ended with 2"),
        ("```python\nprint(1 + 1)  # 3\n```\n", "'3' was not printed"),
        ("```python\n# test_it.py\ndef test_it():\n    assert False\n```\n", "ended with 1"),
    ],
    ids=count(),
)
def test_what_is_wrong_fails(read: Trial, text: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        read(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\n1 / 0\n```\n", ZeroDivisionError),
        ("```python\n# broken.py\nimport no_such_module\n```\n", ImportError),
        ("```json\n{\n```\n", ValueError),
    ],
    ids=count(),
)
def test_what_cannot_be_run_fails(read: Trial, text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        read(text)


def test_everything_is_run_in_order_and_in_one_place(read: Trial) -> None:
    made = read(
        "```python\n# one.py\nVALUE = 1\n```\n"
        "<!-- skip: for no reason -->\n```sh\nexit 1\n```\n"
        "```python\nimport one\nprint(one.VALUE)  # 1\n```\n"
        "```console\n$ export GREETING=hello\n$ echo $GREETING   # a comment\nhello\n```\n"
        "- a list\n  ```console\n  $ ls *.py\n  one.py\n  ```\n"
        "<!-- exit: 3 -->\n```console\n$ exit 3\n```\n"
        "```text\nanything\n```\n"
    )
    assert str(made.counted) == "blocks=6 run=5 skipped=1 inline=0"


def test_a_command_may_go_over_several_lines() -> None:
    block = Block("page.md", 1, "console", "$ echo one \\\n> two\none two\n$ true\n")
    commands = [(command.text, command.shown) for command in block.commands]
    assert commands == [("echo one \\\ntwo", ("one two",)), ("true", ())]


def test_what_differs_each_time_does_not_count() -> None:
    shown = ["run 0e8a37b9-c437-48e6-8144-2b70002dc8ee waits for 3 s, until 2026-11-16T16:31:18Z", "...", "the end"]
    printed = [
        "run 01a1e5b7-8bd1-7624-84a7-b58818b2ec80   waits for 95 ms, until 2027-01-01T00:00:00.5Z",
        "a",
        "the end",
    ]
    assert fits(shown, printed)
    assert fits(["a ... c"], ["a b c"])
    for wrong in (printed[:2], [*printed, "more"], ["walk", *printed[1:]]):
        assert not fits(shown, wrong)


def test_commands_in_text_tables_and_skipped_blocks_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.md").write_text(
        "`squid status`, `squid_definitions`, `squid.start(...)` and\n"
        "```console\n$ squid doctor\n```\n"
        "| why? | `squid run explain RUN_ID -m\nshop` or [`squid db status`](x) |\n"
        "<!-- skip: it would stay -->\n```console\n$ squid worker -m shop  # for ever\n$ make demo\n```\n"
    )
    monkeypatch.setattr(blocks, "ROOT", tmp_path)
    assert list(inline_commands("page.md")) == [
        ("page.md:8", "squid worker -m shop  # for ever"),
        ("page.md:1", "squid status"),
        ("page.md:5", "squid run explain RUN_ID -m shop"),
        ("page.md:6", "squid db status"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "squid",
        "squid run",
        "squid run explain",
        "squid run explain RUN_ID",
        "squid run inspect RUN_ID --at-revision N",
        "squid --version",
        "squid queue --help",
        "squid worker -m shop  # for ever",
    ],
)
def test_a_command_that_would_be_taken_is_good(text: str) -> None:
    read_command(text)


@pytest.mark.parametrize(
    "text",
    [
        "squid dance",
        "squid run dance",
        "squid run explain --json",
        "squid run list --colour red",
        "squid run list --status paused,dead_letter",
        "squid run list --limit many",
        "squid run cancel --where 'colour=red'",
        "squid backlog list --status open",
        "squid status now",
    ],
)
def test_a_command_that_would_be_refused_is_noticed(text: str) -> None:
    with pytest.raises(click.UsageError):
        read_command(text)
