"""Migrations of the schema: each expands first and contracts later, so that code N runs on schemas N and N+1."""
