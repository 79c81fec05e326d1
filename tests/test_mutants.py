"""`make mutants` and `make bugs` take minutes; every run of the tests checks that what they plant fits the source."""

from collections import Counter

from squid_dagster.journal.postgres.schema.functions import sources
from tests.mutants.fold import FOLD_MUTANTS
from tests.mutants.mutant import function, misplaced
from tests.mutants.sql import SQL_MUTANTS, WITHOUT_MUTANTS
from tests.simulation.bugs import BUGS
from tests.simulation.planting import planted
from tests.simulation.sql_bugs import SQL_BUGS


def test_every_mutant_breaks_a_rule_that_is_there() -> None:
    assert misplaced((*FOLD_MUTANTS, *SQL_MUTANTS)) == []
    assert len(FOLD_MUTANTS) >= 12


def test_every_mutant_in_sql_names_the_tests_that_catch_it() -> None:
    assert [mutant.name for mutant in SQL_MUTANTS if not mutant.tests] == []


def test_every_mutant_of_a_file_has_a_name_of_its_own() -> None:
    names = Counter((mutant.file, mutant.name) for mutant in (*FOLD_MUTANTS, *SQL_MUTANTS))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_sql_function_has_a_mutant() -> None:
    mutated = {mutant.file for mutant in SQL_MUTANTS}
    assert {name for name in sources() if function(name) not in mutated} == WITHOUT_MUTANTS & sources().keys()


def test_at_least_twenty_bugs_are_planted_and_each_fits_the_code_as_it_is() -> None:
    assert len({bug.name for bug in BUGS}) >= 20
    for bug in BUGS:
        with planted(bug):
            pass


def test_every_bug_in_sql_fits_the_functions_as_they_are() -> None:
    assert len({bug.name for bug in SQL_BUGS}) >= 10
    for bug in SQL_BUGS:
        assert sources()[bug.function].count(bug.text) == bug.times, bug.name
