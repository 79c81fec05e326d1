"""The code location: the example workflows on the journal, with everything that the plugin has, one by one.

`make dev` shows it. `squid_definitions(...)` or the component `squid_dagster.SquidComponent` builds the same in one
call; take these modules where a project wants less, or other settings for one of them.
"""

import dagster as dg

from assets.checks import checks_job, checks_schedule, projection_checks
from assets.journal import journal_asset
from assets.projections import projection_assets, projections_job, projections_schedule
from assets.views import rebuild_views_job
from resources.spark import spark_resource
from resources.squid import squid_resource
from resources.warehouse import warehouse_resource
from sensors.attention import attention_sensor
from sensors.commands import command_jobs
from sensors.crons import cron_schedules
from sensors.dispatch import dispatch_job, dispatch_sensor
from sensors.recovery import recovery_job, recovery_schedule

defs = dg.Definitions(
    assets=[journal_asset, *projection_assets],
    asset_checks=[projection_checks],
    jobs=[dispatch_job, recovery_job, *command_jobs, projections_job, checks_job, rebuild_views_job],
    sensors=[dispatch_sensor, attention_sensor],
    schedules=[recovery_schedule, *cron_schedules, projections_schedule, checks_schedule],
    resources={"squid": squid_resource, "spark": spark_resource, "squid_warehouse": warehouse_resource},
)
