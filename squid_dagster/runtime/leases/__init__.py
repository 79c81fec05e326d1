"""Lease backends: attempts from the journal, or from a queue of the host."""
