"""Names in Dagster: of the resource, jobs, sensors, schedules and tags."""

RESOURCE = "squid"
SPARK_RESOURCE = "spark"
WAREHOUSE_RESOURCE = "squid_warehouse"

DISPATCH_JOB = "squid_dispatch"
RECOVERY_JOB = "squid_recovery"
START_JOB = "squid_start"
APPROVE_JOB = "squid_approve"
REJECT_JOB = "squid_reject"
RESUME_JOB = "squid_resume"
CANCEL_JOB = "squid_cancel"
REPLAY_JOB = "squid_replay"
RETRY_JOB = "squid_retry"
PROJECTIONS_JOB = "squid_projections"
CHECKS_JOB = "squid_checks"
REBUILD_VIEWS_JOB = "squid_rebuild_views"

DISPATCH_SENSOR = "squid_dispatch_sensor"
ATTENTION_SENSOR = "squid_attention_sensor"
EXTERNAL_SENSOR = "squid_external_sensor"

RECOVERY_SCHEDULE = "squid_recovery_schedule"
PROJECTIONS_SCHEDULE = "squid_projections_schedule"
CHECKS_SCHEDULE = "squid_checks_schedule"
CRON_SCHEDULE = "squid_cron_{workflow}_{trigger}"

RUN_ID_TAG = "squid/run_id"
RUNNABLE_KEY_TAG = "squid/runnable_key"
QUEUE_TAG = "squid/queue"
AGENT_TAG = "squid/agent"
LOCATION_TAG = "squid/location"
ABANDONED_TAG = "squid/abandoned"  # of an external run: the run that waited for it has ended, as the value says

AGENT_DISPATCH = "dispatch"
AGENT_RECOVERY = "recovery"
AGENT_COMMAND = "command"
AGENT_EXTERNAL = "external"
AGENT_PROJECTIONS = "projections"

MAX_RETRIES_TAG = "dagster/max_retries"
MAX_RUNTIME_TAG = "dagster/max_runtime"


def job_tags(agent: str) -> dict[str, str]:
    """Return the tags of every job of ours: the agent, and that Dagster does not retry it."""
    return {AGENT_TAG: agent, MAX_RETRIES_TAG: "0"}
