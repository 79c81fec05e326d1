"""Chaos: real workers, a real Postgres with a standby and a real Dagster under faults; then every promise is checked.

`make chaos` runs the long form, `tests/chaos/test_chaos.py` a short one.
"""
