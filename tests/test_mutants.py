"""`make mutants` takes minutes; that its mutants still fit the source is checked with every run of the tests."""

from tests.mutants import MUTANTS, misplaced


def test_every_mutant_breaks_a_rule_that_is_there() -> None:
    assert misplaced(MUTANTS) == []
    assert len(MUTANTS) >= 12
