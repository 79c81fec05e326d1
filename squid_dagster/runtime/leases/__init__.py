"""Lease backends: work that is handed out by a queue other than the journal's."""
