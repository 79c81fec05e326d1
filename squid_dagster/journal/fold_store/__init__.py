"""Dispatch and queries on any storage: read what is new, fold it, append if no other writer did."""
