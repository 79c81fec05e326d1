"""The code location of Dagster under chaos: its drain runs are workers like all others."""

import dagster as dg

from squid_dagster.plugin import DrainConfig, SquidResource
from squid_dagster.plugin.definitions import squid_definitions
from tests.chaos.roles import DRAINED_QUEUE, LEASE, QUEUES
from tests.chaos.workflows import WORKFLOWS

defs = squid_definitions(
    workflows=WORKFLOWS,
    queues=(*QUEUES, DRAINED_QUEUE),
    resource=SquidResource(url=dg.EnvVar("SQUID_DATABASE_URL"), lease_seconds=LEASE.total_seconds()),
    drain=DrainConfig(concurrency=4, linger_seconds=20),
    launch_grace_seconds=10,
)
