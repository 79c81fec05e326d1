"""The checks of the tables against the journal, and a job for them each night (its schedule is off at first)."""

from squid_dagster import build_checks_job, build_checks_schedule, build_projection_checks

projection_checks = build_projection_checks()
checks_job = build_checks_job(checks=projection_checks)
checks_schedule = build_checks_schedule(job=checks_job)
