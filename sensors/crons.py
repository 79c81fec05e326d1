"""Crons: a schedule for each cron trigger of the workflows."""

from resources.squid import squid_resource
from sensors.commands import command_jobs
from squid_dagster import build_cron_schedules

# Dagster wants a job for every schedule: `squid_start`, the first of the commands.
cron_schedules = build_cron_schedules(workflows=squid_resource.workflow_modules, job=command_jobs[0])
