"""Spark sessions: where Spark runs, its settings, and Java."""
