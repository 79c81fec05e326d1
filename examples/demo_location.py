"""The code location that `make demo` runs: all example workflows, with a lease short enough to watch it run out."""

import dagster as dg

from examples import digest, nightly, orders, payment_recovery, trip
from squid_dagster.plugin import DrainConfig, SquidResource
from squid_dagster.plugin.definitions import squid_definitions

LEASE_SECONDS = 2.0

defs = squid_definitions(
    workflows=[payment_recovery, digest, nightly, trip, orders],
    resource=SquidResource(url=dg.EnvVar("SQUID_DATABASE_URL"), lease_seconds=LEASE_SECONDS),
    drain=DrainConfig(concurrency=4, linger_seconds=60),
    launch_grace_seconds=10,
)
