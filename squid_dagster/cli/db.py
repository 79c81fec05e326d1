"""`squid db`: start, stop and show the embedded server; show and upgrade any database that holds a journal."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from squid_dagster.cli.app import NO_DATABASE, Refused, json_option
from squid_dagster.cli.place import data_dir_option, schema_option
from squid_dagster.cli.terminal.output import emit

if TYPE_CHECKING:
    from squid_dagster.journal.embedded import EmbeddedPostgres
    from squid_dagster.journal.tiers import Tier

_Command = TypeVar("_Command", bound=Callable[..., Any])

_KEYS = (
    "tier",
    "source",
    "running",
    "url",
    "schema",
    "version",
    "problem",
    "postgres",
    "pid",
    "data_dir",
    "socket_dir",
)


@click.group()
def db() -> None:
    """Start, stop, show and upgrade the database that holds the journal."""


def _options(command: _Command) -> _Command:
    """Add the options that all commands of this group share."""
    return data_dir_option(json_option(command))


@db.command()
@_options
@schema_option
def start(data_dir: Path | None, schema: str | None, as_json: bool) -> int:
    """Start the embedded Postgres, unless it runs already, and show it as `squid db status`."""
    tier, name = tier_of(data_dir), _schema(schema)
    _embedded(tier, "start").ensure_running()
    return _show(tier, name, as_json)


@db.command()
@_options
def stop(data_dir: Path | None, as_json: bool) -> None:
    """Stop the embedded Postgres. The data stay where they are."""
    server = _embedded(tier_of(data_dir), "stop")
    stopped = server.stop()
    text = "stopped" if stopped else "was not running"
    document = {"stopped": stopped, "data_dir": str(server.data_dir)}
    emit(as_json, document, f"embedded Postgres in {server.data_dir}: {text}")


@db.command()
@_options
@schema_option
def status(data_dir: Path | None, schema: str | None, as_json: bool) -> int:
    """Show which database is in use, whether it answers, and the version of the journal's schema.

    Exit code 4 if it was named and does not answer, or refuses us; an embedded one that is stopped is no error.
    """
    return _show(tier_of(data_dir), _schema(schema), as_json)


@db.command()
@_options
@schema_option
def upgrade(data_dir: Path | None, schema: str | None, as_json: bool) -> None:
    """Create the journal's schema, or bring it to the version that this code needs."""
    from squid_dagster.journal.postgres.storage import PostgresStorage
    from squid_dagster.journal.tiers import describe, open_tier

    name = _schema(schema)  # refused before a server is started
    tier = tier_of(data_dir)
    storage = PostgresStorage(open_tier(tier), name)
    try:
        version = storage.upgrade()
    finally:
        storage.close()
    document = {"schema": name, "version": version, "database": describe(tier)}
    emit(as_json, document, f"{describe(tier)}: schema {name} is at version {version}")


def tier_of(data_dir: Path | None) -> "Tier":
    """Return the tier that the command line or the environment names. Raises as `resolve_tier`."""
    from squid_dagster.journal.tiers import EmbeddedTier, resolve_tier

    return resolve_tier() if data_dir is None else EmbeddedTier(data_dir.absolute(), "--data-dir")


def _schema(given: str | None) -> str:
    """Return the name of the schema. Raises `InvalidArgument` for one that cannot be used."""
    from squid_dagster.journal.postgres.schema.names import DEFAULT_SCHEMA, check_schema_name

    return check_schema_name(given or DEFAULT_SCHEMA)


def _embedded(tier: "Tier", verb: str) -> "EmbeddedPostgres":
    from squid_dagster.journal.tiers import ServerTier, describe

    if isinstance(tier, ServerTier):
        raise Refused(
            f"{describe(tier)} is not ours to {verb}: only the embedded Postgres is (name it with --data-dir)"
        )
    from squid_dagster.journal.embedded import EmbeddedPostgres

    return EmbeddedPostgres(tier.data_dir)


def _status(tier: "Tier", schema: str) -> dict[str, Any]:
    """Return the state of a database, always with the same keys. Starts nothing."""
    from squid_dagster.journal.tiers import ServerTier, display_url, is_answering

    values: dict[str, Any] = dict.fromkeys(_KEYS)
    values |= {"source": tier.source, "schema": schema}
    if isinstance(tier, ServerTier):
        url, answers = tier.url, is_answering(tier)
        values |= {"tier": "server", "running": answers, "url": display_url(url)}
        values["problem"] = None if answers else "it does not answer"
    else:
        server = _embedded(tier, "show")
        status, url = server.status(), server.url
        values |= {"tier": "embedded", "running": status.running, "url": url if status.running else None}
        values |= {"postgres": status.major, "pid": status.pid}
        values |= {"data_dir": str(status.data_dir), "socket_dir": str(status.socket_dir)}
    return values | _version(url, schema) if values["running"] else values


def _version(url: str, schema: str) -> dict[str, Any]:
    """Read the version of a schema; return the problem if it cannot be read."""
    from squid_dagster.journal.postgres.storage import PostgresStorage
    from squid_dagster.protocol.errors import ForeignSchema, StorageUnavailable
    from squid_dagster.redaction import redacted_text

    storage = PostgresStorage(url, schema)
    try:
        return {"version": storage.version()}
    except (ForeignSchema, StorageUnavailable) as error:
        return {"problem": redacted_text(str(error))}
    finally:
        storage.close()


def _show(tier: "Tier", schema: str, as_json: bool) -> int:
    """Print the state of a database; return the exit code."""
    values = _status(tier, schema)
    emit(as_json, values, _status_text(tier, values))
    return 0 if values["problem"] is None else NO_DATABASE


def _status_text(tier: "Tier", values: dict[str, Any]) -> str:
    from squid_dagster.journal.tiers import describe

    where, journal = describe(tier), f"schema {values['schema']} at version {values['version']}"
    if values["tier"] == "embedded":
        where = " ".join(str(word) for word in ("embedded Postgres", values["postgres"], "in") if word is not None)
        where += f" {values['data_dir']}"
    if values["problem"] is not None:
        return f"{where}: {values['problem']}"
    if values["version"] is None:
        journal = f"no journal in schema {values['schema']} yet"
    if not values["running"]:
        return f"{where}: not running"
    process = "" if values["pid"] is None else f", pid {values['pid']}"
    address = f"\n{values['url']}" if values["tier"] == "embedded" else ""
    return f"{where}: running{process}, {journal}{address}"
