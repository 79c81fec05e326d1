"""Opening the journal that the configuration names."""

import logging
import os
from collections.abc import Mapping

from squid_dagster.journal.clock import Clock
from squid_dagster.journal.postgres.schema import DEFAULT_SCHEMA
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.tiers import EmbeddedTier, describe, open_tier, resolve_tier

logger = logging.getLogger("squid_dagster")

_TRUE = frozenset({"1", "true", "yes", "on"})


def open_journal(
    url: str | None = None,
    *,
    schema: str | None = None,
    clock: Clock | None = None,
    environ: Mapping[str, str] = os.environ,
) -> PostgresStorage:
    """Open the journal of the tier in use, and say in a log line which one that is.

    The schema is `schema`, else SQUID_SCHEMA, else "squid". Migrations run by themselves on the embedded server, and
    where SQUID_AUTO_MIGRATE is set; elsewhere an outdated schema is an error.

    Raises:
        InvalidArgument: a URL or schema name that cannot be used.
        EmbeddedUnavailable: the embedded server cannot be started here.
        StorageUnavailable: the database cannot be reached.
        SchemaOutdated, SchemaTooNew, ForeignSchema: the schema does not fit this code.
    """
    tier = resolve_tier(url, environ)
    storage = PostgresStorage(open_tier(tier), schema or environ.get("SQUID_SCHEMA") or DEFAULT_SCHEMA, clock=clock)
    logger.info("journal: %s, schema %s", describe(tier), storage.schema)
    try:
        if isinstance(tier, EmbeddedTier) or environ.get("SQUID_AUTO_MIGRATE", "").lower() in _TRUE:
            storage.upgrade()
        else:
            storage.check()
    except BaseException:
        storage.close()
        raise
    return storage
