"""Break one rule at a time, in the fold or in SQL: the tests must fail. `python -m tests.mutants`.

A mutant of the fold is caught when every suite fails on it, a mutant in SQL when the tests that it names do: in a test
of their own. Tests that pass, cannot be collected, fail in their set-up or test another copy catch nothing.
"""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.fold import FOLD_MUTANTS, SUITES
from tests.mutants.mutant import Mutant, misplaced
from tests.mutants.run import CAUGHT, GREEN, TIMED_OUT, Servers, exit_code, healthy_copy, mutated_copy, running_servers
from tests.mutants.sql import SQL_MUTANTS

AT_ONCE = 2
SUITE_SECONDS, SQL_SECONDS = 600, 180
SQL = "sql"


def suites_of(mutant: Mutant, wanted: Sequence[str]) -> dict[str, list[str]]:
    """Return the files of each suite that must catch the mutant, those about the mutated module first."""
    if mutant.tests:
        return {SQL: list(mutant.tests)}
    about = f"test_{Path(mutant.file).stem}"
    return {
        suite: sorted(SUITES[suite], key=lambda file: not Path(file).stem.startswith(about))
        for suite in wanted
        if suite != SQL
    }


def judge(mutant: Mutant, wanted: Sequence[str], healthy: Path, servers: Servers) -> bool:
    """Return whether every suite catches the mutant, and print how each ended."""
    began = time.monotonic()
    seconds = SQL_SECONDS if mutant.tests else SUITE_SECONDS
    with mutated_copy(healthy, mutant) as here:
        codes = {suite: exit_code(here, files, servers, seconds) for suite, files in suites_of(mutant, wanted).items()}
    caught = all(code == CAUGHT for code in codes.values())
    how = {CAUGHT: "red", GREEN: "GREEN", TIMED_OUT: "TIMED OUT"}
    ended = " ".join(f"{suite}={how.get(code, f'BROKEN({code})')}" for suite, code in codes.items())
    took = time.monotonic() - began
    print(f"{'caught' if caught else 'MISSED'}  {ended}  {took:.0f} s  {mutant.file}: {mutant.name}", flush=True)
    return caught


def healthy_files(mutants: Sequence[Mutant], wanted: Sequence[str]) -> Mapping[str, list[str]]:
    """Return all test files for these mutants, by suite."""
    files_by_suite: dict[str, dict[str, None]] = {}
    for mutant in mutants:
        for suite, files in suites_of(mutant, wanted).items():
            files_by_suite.setdefault(suite, {}).update(dict.fromkeys(files))
    return {suite: list(files) for suite, files in files_by_suite.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all mutants; return 0 if every one was caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", choices=[*SUITES, SQL], action="append", help="this suite only (may be repeated)")
    parser.add_argument("--only", action="append", help="only mutants whose name or file contains this (repeatable)")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without a mutant first")
    options = parser.parse_args(arguments)
    wanted = options.suite or [*SUITES, SQL]
    mutants = [
        mutant
        for mutant in (*FOLD_MUTANTS, *SQL_MUTANTS)
        if any(words in mutant.name or words in mutant.file for words in options.only or [""])
        and suites_of(mutant, wanted).keys() & set(wanted)
    ]
    if wrong := misplaced(mutants):
        print("\n".join(wrong))
        return 1
    with running_servers(AT_ONCE) as servers, healthy_copy() as healthy, ThreadPoolExecutor(AT_ONCE) as pool:
        if not options.unchecked:
            files = healthy_files(mutants, wanted)
            codes = list(pool.map(lambda suite: exit_code(healthy, files[suite], servers, 2 * SUITE_SECONDS), files))
            if set(codes) != {GREEN}:
                print(f"without any mutant: {dict(zip(files, codes, strict=True))}, all of them must be 0")
                return 1
        caught = sum(pool.map(lambda mutant: judge(mutant, wanted, healthy, servers), mutants))
    print(f"mutants={len(mutants)} caught={caught}")
    return 0 if mutants and caught == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
