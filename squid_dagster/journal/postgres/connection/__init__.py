"""Connections to Postgres: pool, session settings, error classes, and bounds on every wait."""
