"""The words of the code: names, docstrings and comments; and the checks of them.

`python -m tests.words PATH ...` prints the same remarks for some files.
"""

import ast

import pytest

from tests.words.checks import ROOT, glossary, module_remarks, plural, public_names, remarks, word_list, words_of

FOLDERS = ("squid_dagster", "tests", "bench", "examples", "resources", "assets", "sensors")

BAD_MODULE = '''"""Nobody reads this."""

def give(found):
    """Give it back."""
    return [each for each in found]  # somebody called

class Frobnicator:
    """Frobnicates."""

    @property
    def name(self):
        """The name, for whoever asks."""
        match self:
            case {"told": told}:
                return told

class _Private:
    more: int
'''
"""One word of every kind that the checks are about."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_docstrings_and_comments_are_in_plain_words(folder: str) -> None:
    assert [str(remark) for file in sorted((ROOT / folder).rglob("*.py")) for remark in remarks(file)] == []


def test_a_remark_names_line_and_word() -> None:
    person = "name the caller, the process, the thread or the person"
    expected = [
        (1, f"'Nobody': {person}"),
        (1, "module quux: 'quux' stands in no list"),
        (3, "'found': name what it holds"),
        (3, "docstring of give begins with 'Give': begin with a verb of verbs.txt"),
        (5, "'each': name what it holds"),
        (5, f"'somebody': {person}"),
        (7, "class Frobnicator: 'frobnicator' stands in no list"),
        (12, f"'whoever': {person}"),
        (14, "'told': name what it holds"),
        (18, "'more': name what it holds"),
    ]
    actual = module_remarks("squid_dagster/quux.py", BAD_MODULE)
    assert [(remark.line, remark.text) for remark in actual] == expected
    assert str(actual[2]) == "squid_dagster/quux.py:3: 'found': name what it holds"


def test_only_the_library_has_names_that_are_checked() -> None:
    texts = [remark.text for remark in module_remarks("tests/quux.py", BAD_MODULE)]
    assert len(texts) == 8
    assert not [text for text in texts if "stands in no list" in text]


def test_plain_words_are_sorted_and_each_of_them_is_used() -> None:
    words = [line for line in (ROOT / "tests/words/plain.txt").read_text("utf-8").split("\n") if line[:1] != "#"]
    listed = " ".join(words).split()
    assert listed == sorted(set(listed))
    names = {
        word
        for file in (ROOT / "squid_dagster").rglob("*.py")
        for _, _, name in public_names(str(file.relative_to(ROOT)), ast.parse(file.read_text("utf-8")))
        for word in words_of(name)
    }
    assert [word for word in listed if word in glossary() or not {word, plural(word)} & names] == []


def test_verbs_are_sorted() -> None:
    verbs = (ROOT / "tests/words/verbs.txt").read_text("utf-8").split("\n", 1)[1].split()
    assert verbs == sorted(word_list("verbs.txt"))
