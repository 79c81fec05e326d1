"""Mutants in SQL: of the functions, one file each, and of the statements that stand in Python."""

from tests.mutants.sql.appends import APPEND_MUTANTS
from tests.mutants.sql.cards import CARD_MUTANTS
from tests.mutants.sql.claims import CLAIM_MUTANTS
from tests.mutants.sql.queries import QUERY_MUTANTS
from tests.mutants.sql.settlements import SETTLEMENT_MUTANTS
from tests.mutants.sql.starts import START_MUTANTS

SQL_MUTANTS = (*CLAIM_MUTANTS, *APPEND_MUTANTS, *START_MUTANTS, *SETTLEMENT_MUTANTS, *CARD_MUTANTS, *QUERY_MUTANTS)

# Functions without a mutant: they are kept for code of schema version 6 and before, and no later code calls them.
WITHOUT_MUTANTS = frozenset({"end_runs", "lock_claims", "lock_units", "settle_rows"})
