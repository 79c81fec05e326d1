"""NOTIFY and LISTEN: hints that a queue has work."""
