"""Mutants: copies of the package with one rule broken, in Python or in SQL. `python -m tests.mutants` tests them."""
