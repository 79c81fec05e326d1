"""Workflows as users write them: `make demo` runs them all, with workers that are killed on the way."""
