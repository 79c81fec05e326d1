"""Dispatch on Postgres: the general way of every operation, and the fast ways of starts and settlements."""
