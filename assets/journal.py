"""The journal as an asset: how far it is, and what its queues hold."""

from squid_dagster import build_journal_asset

journal_asset = build_journal_asset()
