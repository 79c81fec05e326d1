"""What a mutant is, and whether it still fits the source."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "squid_dagster"
FUNCTIONS = "journal/postgres/schema/functions"


class Mutant(NamedTuple):
    """One broken rule: `text` stands `times` times in the file and is replaced wherever it stands.

    `tests` are the files that must catch it, run in this order until the first failure; a mutant of the fold has none
    of its own, and is run against every suite.
    """

    name: str
    file: str
    text: str
    replacement: str
    tests: tuple[str, ...] = ()
    times: int = 1

    @property
    def source(self) -> str:
        """Return the file's path in the work tree."""
        return f"{PACKAGE}/{self.file}"

    def apply(self, root: Path) -> None:
        """Replace the text in the copy of the package under `root`; a link to another copy's file is left behind."""
        path = root / self.source
        text = path.read_text("utf-8").replace(self.text, self.replacement)
        path.unlink()
        path.write_text(text, "utf-8")


def function(name: str) -> str:
    """Return the file of a SQL function, as a mutant names it."""
    return f"{FUNCTIONS}/{name}.sql"


def misplaced(mutants: Iterable[Mutant]) -> list[str]:
    """Return one line for each mutant that no longer fits: by its text, or by tests that are not there."""
    lines = []
    for mutant in mutants:
        count = (ROOT / mutant.source).read_text("utf-8").count(mutant.text)
        if count != mutant.times:
            lines.append(
                f"{mutant.name!r}: its text stands {count} times in {mutant.file}, not {mutant.times}: {mutant.text!r}"
            )
        if mutant.replacement == mutant.text:
            lines.append(f"{mutant.name!r} changes nothing")
        lines += [f"{mutant.name!r}: there is no {test}" for test in mutant.tests if not (ROOT / test).is_file()]
    return lines
