"""NOTIFY and LISTEN: wakeups for workers of a queue."""
