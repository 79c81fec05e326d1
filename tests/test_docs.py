"""What the README shows works as it is written."""

import re
from pathlib import Path
from typing import Any

import pytest

from squid_dagster.journal import PostgresStorage

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_readme_has_snippets() -> None:
    assert len(SNIPPETS) == 3


def test_the_snippets_of_the_readme_run(
    postgres: PostgresStorage, postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SQUID_DATABASE_URL", postgres_url)
    monkeypatch.setenv("SQUID_SCHEMA", postgres.schema)

    for snippet in SNIPPETS:
        namespace: dict[str, Any] = {"__name__": "readme"}
        exec(compile(snippet, "README.md", "exec"), namespace)  # noqa: S102
        if "journal" in namespace:
            namespace["journal"].close()

    told = capsys.readouterr().out.splitlines()
    assert (told[0], told[2:]) == ("paused", ["completed", "completed"])
    assert "review" in told[1]
