"""`make mutants` takes minutes; that its mutants still fit the source is checked with every run of the tests."""

from collections import Counter

from squid_dagster.journal.postgres.schema.functions import sources
from tests.mutants.fold import FOLD_MUTANTS
from tests.mutants.mutant import function, misplaced
from tests.mutants.sql import SQL_MUTANTS, WITHOUT_MUTANTS


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
