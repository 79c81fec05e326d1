"""Recovery: the job that closes what crashes have left open, every minute."""

from resources.squid import squid_resource
from squid_dagster import build_recovery_job, build_recovery_schedule

recovery_job = build_recovery_job(workflows=squid_resource.workflow_modules)
recovery_schedule = build_recovery_schedule(job=recovery_job)
