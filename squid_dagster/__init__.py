"""A durable dispatch runtime for Python on Postgres, with Dagster as its face."""

__version__ = "0.1.0"
