"""What docs/backlog.md shows works as it is written: its snippets print the output beside them, its session runs."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from squid_dagster.cli import main
from squid_dagster.journal.postgres.storage import PostgresStorage

DOCS = Path(__file__).parents[2] / "docs" / "backlog.md"
BLOCKS = re.findall(r"```(python|bash)\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
SNIPPETS = [text for kind, text in BLOCKS if kind == "python"]
SESSIONS = [text for kind, text in BLOCKS if kind == "bash"]


@pytest.fixture
def configured(shared_postgres: PostgresStorage, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> PostgresStorage:
    """An empty journal that the configuration names."""
    monkeypatch.setenv("SQUID_DATABASE_URL", postgres_url)
    monkeypatch.setenv("SQUID_SCHEMA", shared_postgres.schema)
    return shared_postgres


def test_the_docs_have_snippets_and_a_session() -> None:
    assert (len(SNIPPETS), len(SESSIONS)) == (2, 1)


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_prints_what_stands_beside_it(
    configured: PostgresStorage, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    del configured
    namespace: dict[str, Any] = {"__name__": "guide"}
    exec(compile(SNIPPETS[number], str(DOCS), "exec"), namespace)  # noqa: S102
    promised = re.findall(r"print\(.*\)  # (.*)", SNIPPETS[number])
    assert capsys.readouterr().out.splitlines() == promised
    assert promised


@pytest.mark.parametrize("number", range(len(SESSIONS)))
def test_every_command_of_a_session_is_answered(configured: PostgresStorage, number: int) -> None:
    configured.clock = None
    commands = [shlex.split(line) for line in SESSIONS[number].splitlines() if line and not line.startswith("#")]
    assert len(commands) >= 8
    for name, *arguments in commands:
        done = CliRunner().invoke(main, arguments)  # in this process, which spares an interpreter for each
        assert (name, done.exit_code, done.stderr) == ("squid", 0, ""), arguments
        assert done.stdout, arguments
