"""Workflows as users write them: `make demo` runs them all, and kills a run worker on the way."""

MODULES = ("examples.payment_recovery", "examples.digest", "examples.nightly", "examples.trip", "examples.orders")
