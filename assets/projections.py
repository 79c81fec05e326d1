"""The tables that Spark makes of the journal, and a job for them every quarter of an hour; its schedule is off."""

from squid_dagster import build_projection_assets, build_projections_job, build_projections_schedule

projection_assets = build_projection_assets()
projections_job = build_projections_job()
projections_schedule = build_projections_schedule(job=projections_job)
