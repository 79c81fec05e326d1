"""The journal that the configuration names, opened and with its schema checked or migrated."""

import math
import os
import time
from collections.abc import Mapping
from datetime import timedelta

from squid_dagster.journal.availability import when_available
from squid_dagster.journal.contract.clock import Clock
from squid_dagster.journal.postgres.schema.names import DEFAULT_SCHEMA, check_schema_name
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.tiers import EmbeddedTier, Tier, describe, open_tier, resolve_tier
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import InvalidArgument

logger = redacting_logger("squid_dagster")

_TRUE = frozenset({"1", "true", "yes", "on"})


@checked
def open_journal(
    url: str | None = None,
    *,
    schema: str | None = None,
    clock: Clock | None = None,
    environ: Mapping[str, str] = os.environ,
    wait: timedelta | None = timedelta(0),
) -> PostgresStorage:
    """Open the journal of the tier in use, and log which one that is.

    The schema is `schema`, else SQUID_SCHEMA, else "squid". Migrations run automatically on the embedded server, and
    if SQUID_AUTO_MIGRATE is set; elsewhere an outdated schema is an error. For a database that is down or starting,
    the call waits up to `wait`, or forever if that is None.

    Raises:
        InvalidArgument: a URL or schema name that cannot be used.
        EmbeddedUnavailable: the embedded server cannot be started here.
        StorageUnavailable: the database could not be reached in time.
        SchemaOutdated, SchemaTooNew, ForeignSchema: the schema does not fit this code.
    """
    if wait is not None and (not isinstance(wait, timedelta) or wait < timedelta(0)):
        raise InvalidArgument(f"wait must be a timedelta from zero on, or None, not {wait!r:.40}")
    tier = resolve_tier(url, environ)
    name = check_schema_name(schema or environ.get("SQUID_SCHEMA") or DEFAULT_SCHEMA)
    logger.info("journal: %s, schema %s", describe(tier), name)
    migrates = isinstance(tier, EmbeddedTier) or environ.get("SQUID_AUTO_MIGRATE", "").lower() in _TRUE
    until = math.inf if wait is None else time.monotonic() + wait.total_seconds()
    return when_available(
        lambda: _open(tier, name, clock, migrates=migrates),
        "opening the journal",
        seconds_left=lambda: until - time.monotonic(),
    )


def _open(tier: Tier, schema: str, clock: Clock | None, *, migrates: bool) -> PostgresStorage:
    storage = PostgresStorage(open_tier(tier), schema, clock=clock)
    try:
        if migrates:
            storage.upgrade()
        else:
            storage.check()
    except BaseException:
        storage.close()
        raise
    return storage
