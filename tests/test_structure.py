"""The sizes of modules and of folders."""

from pathlib import Path

import pytest

from tests.words.checks import ROOT

MAX_LINES = 400
MAX_MODULES = 15


@pytest.mark.parametrize("folder", ["squid_dagster", "tests", "bench", "examples"])
def test_no_module_is_longer_than_400_lines(folder: str) -> None:
    lines = {str(file.relative_to(ROOT)): _count_lines(file) for file in (ROOT / folder).rglob("*.py")}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_no_folder_of_the_library_holds_more_than_15_modules() -> None:
    folders = {file.parent for file in (ROOT / "squid_dagster").rglob("*.py")}
    modules = {
        str(folder.relative_to(ROOT)): sorted(file.name for file in folder.glob("*.py") if file.stem != "__init__")
        for folder in folders
    }
    assert {folder: names for folder, names in modules.items() if len(names) > MAX_MODULES} == {}


def _count_lines(file: Path) -> int:
    return len(file.read_text("utf-8").splitlines())
