"""Workflows as users write them: `make demo` runs them all, with workers that are killed on the way."""

MODULES = ("examples.payment_recovery", "examples.digest", "examples.nightly", "examples.trip", "examples.orders")
