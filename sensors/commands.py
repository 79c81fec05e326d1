"""Commands: a job of the launchpad for each (start, approve, reject, resume, cancel, replay, retry)."""

from resources.squid import squid_resource
from sensors.dispatch import QUEUES
from squid_dagster import build_command_jobs

command_jobs = build_command_jobs(workflows=squid_resource.workflow_modules, queues=QUEUES)
