"""The job that rebuilds the live views in Postgres from the journal."""

from squid_dagster import build_rebuild_views_job

rebuild_views_job = build_rebuild_views_job()
