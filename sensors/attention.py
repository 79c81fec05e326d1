"""Attention: the sensor that reports approvals, dead letters, held runs and anomalies."""

from resources.squid import squid_resource
from squid_dagster import build_attention_sensor

attention_sensor = build_attention_sensor(workflows=squid_resource.workflow_modules)
