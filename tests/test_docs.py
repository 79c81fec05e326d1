"""What the README and the guides show works as it is written."""

import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from squid_dagster.journal import PostgresStorage

ROOT = Path(__file__).parent.parent


def snippets(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text("utf-8"), re.DOTALL)


SNIPPETS = snippets("README.md")


def test_the_readme_has_snippets() -> None:
    assert len(SNIPPETS) == 4


def test_the_snippets_of_the_dagster_guide_give_locations_that_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUID_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")  # loading asks for no database
    found = snippets("docs/dagster.md")
    assert found
    for snippet in found:
        namespace: dict[str, Any] = {"__name__": "guide"}
        exec(compile(snippet, "docs/dagster.md", "exec"), namespace)  # noqa: S102
        if "defs" in namespace:
            dg.Definitions.validate_loadable(namespace["defs"])


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
        if "defs" in namespace:
            dg.Definitions.validate_loadable(namespace["defs"])

    told = capsys.readouterr().out.splitlines()
    assert (told[0], told[2:]) == ("paused", ["completed", "completed"])
    assert "review" in told[1]
