"""What docs/testing.md shows works as it is written: its blocks are a project, and pytest runs it."""

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

DOCS = Path(__file__).parents[2] / "docs" / "testing.md"
BLOCKS = re.findall(r"```python\n# (\S+\.py)\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)


def test_every_python_block_of_the_docs_says_which_file_it_belongs_to() -> None:
    assert len(BLOCKS) == DOCS.read_text("utf-8").count("```python") == 6


def test_the_tests_of_the_docs_pass_in_a_project_of_their_own(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given the files of the docs, those that are continued put together
    for name, text in BLOCKS:
        file = pytester.path / name
        file.write_text((file.read_text("utf-8") if file.exists() else "") + text, "utf-8")
    # when a user writes the golden history and then runs everything, with all warnings as errors
    monkeypatch.setenv("SQUID_UPDATE_GOLDEN", "1")
    assert pytester.runpytest_subprocess("-q", "test_golden.py").ret == 0
    monkeypatch.delenv("SQUID_UPDATE_GOLDEN")
    done = pytester.runpytest_subprocess("-q", "-W", "error")
    # then all pass
    done.assert_outcomes(passed=6)
    assert (pytester.path / "golden" / "refund.jsonl").read_text("utf-8").count("\n") > 20
