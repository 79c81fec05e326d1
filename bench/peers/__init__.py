"""Ours beside dbos, procrastinate and pgqueuer on one Postgres; every system runs in processes of its own."""
