"""Dispatch: the sensor that looks for due attempts, and the job whose runs claim and execute them."""

from resources.squid import squid_resource
from squid_dagster import build_dispatch_job, build_dispatch_sensor

QUEUES = ["default"]

dispatch_job = build_dispatch_job(workflows=squid_resource.workflow_modules, queues=QUEUES)
dispatch_sensor = build_dispatch_sensor(job=dispatch_job, workflows=squid_resource.workflow_modules, queues=QUEUES)
