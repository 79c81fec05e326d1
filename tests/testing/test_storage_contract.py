"""The suite of the storage contract, as an adapter's author meets it: a sound adapter passes, a broken one fails."""

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

SUITE = """
from uuid import uuid4

import pytest

from squid_dagster.journal import MemoryStorage
from squid_dagster.testing.storage_contract import StorageContract


class SmallStorage(MemoryStorage):
    {method}


class TestSmallStorage(StorageContract):
    @pytest.fixture
    def storage(self, clock):
        return SmallStorage(clock)
"""
SOUND = "pass"
BROKEN = {
    "forgets commit ids": (
        "def commit(self, appends, commit_id=None): return super().commit(appends, commit_id and uuid4())",
        "*::test_a_repeated_commit_writes_nothing_and_gives_the_first_answer*",
    ),
    "ignores the limit of a page": (
        "def read_between(self, after, upto, limit=None): return super().read_between(after, upto)",
        "*::test_a_slice_can_be_read_in_pages*",
    ),
    "takes a cut beyond the last commit": (
        "def cut(self, after=0): return super().cut(after) + 1",
        "*::test_consecutive_cuts_give_each_entry_once*",
    ),
    "believes every revision": (
        "def append(self, thread, entries, expected_rev=None): return super().append(thread, entries)",
        "*::test_a_thread_that_moved_on_is_a_conflict_and_nothing_is_written*",
    ),
    "keeps whatever checkpoint comes": (
        "def put_checkpoint(self, *put): self.delete_checkpoint(put[0]); return super().put_checkpoint(*put)",
        "*::test_an_older_checkpoint_does_not_replace_a_newer_one*",
    ),
}


def test_a_sound_adapter_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE.format(method=SOUND))
    outcome = pytester.runpytest_subprocess("-q", "-W", "error")
    assert outcome.ret == 0
    assert outcome.parseoutcomes()["passed"] > 40


@pytest.mark.parametrize(("method", "caught_by"), BROKEN.values(), ids=BROKEN)
def test_a_broken_adapter_fails(pytester: pytest.Pytester, method: str, caught_by: str) -> None:
    pytester.makepyfile(SUITE.format(method=method))
    outcome = pytester.runpytest_subprocess("-q", "-k", caught_by.strip("*:"))
    outcome.stdout.fnmatch_lines([f"FAILED {caught_by}", "1 failed, * deselected*"])


def test_a_failure_shows_the_values_that_were_compared(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE.format(method="def revision(self, thread): return super().revision(thread) + 7"))
    outcome = pytester.runpytest_subprocess("-q", "-k", "test_a_thread_that_does_not_exist_is_empty")
    outcome.stdout.fnmatch_lines(["E *assert 7 == 0"])


def test_without_a_storage_the_error_says_what_to_write(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "from squid_dagster.testing.storage_contract import StorageContract\nclass TestMine(StorageContract): pass"
    )
    outcome = pytester.runpytest_subprocess("-q", "-k", "test_every_adapter_is_a_storage")
    outcome.stdout.fnmatch_lines(["*TestMine needs a fixture `storage`*"])


def test_only_the_suite_itself_imports_pytest() -> None:
    code = (
        "import sys, pkgutil, squid_dagster.testing as kit; from importlib import import_module;"
        "names = [m.name for m in pkgutil.iter_modules(kit.__path__, 'squid_dagster.testing.')];"
        "[import_module(n) for n in names if not n.endswith(('.plugin', '.storage_contract'))];"
        "print('pytest' in sys.modules); import squid_dagster.testing.storage_contract; print('pytest' in sys.modules)"
    )
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert outcome.stdout.split() == ["False", "True"]
