"""`squid db`: the database behind the journal. Starts, stops and shows the embedded server; leaves any other alone."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from squid_dagster.cli.frame import Refused, json_option
from squid_dagster.cli.output import emit

if TYPE_CHECKING:
    from squid_dagster.journal.embedded import EmbeddedPostgres
    from squid_dagster.journal.tiers import ServerTier, Tier

_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group()
def db() -> None:
    """The database that holds the journal."""


def _options(command: _Command) -> _Command:
    """The options that all commands of this group share."""
    directory = click.Path(file_okay=False, path_type=Path)
    return click.option("--data-dir", type=directory, help="The embedded server of this directory.")(
        json_option(command)
    )


@db.command()
@_options
def start(data_dir: Path | None, as_json: bool) -> None:
    """Start the embedded Postgres, unless it runs already."""
    server = _embedded(tier_of(data_dir), "start")
    server.ensure_running()
    _show_embedded(server, as_json)


@db.command()
@_options
def stop(data_dir: Path | None, as_json: bool) -> None:
    """Stop the embedded Postgres. The data stay where they are."""
    server = _embedded(tier_of(data_dir), "stop")
    stopped = server.stop()
    text = "stopped" if stopped else "was not running"
    facts = {"stopped": stopped, "data_dir": str(server.data_dir)}
    emit(as_json, facts, f"embedded Postgres in {server.data_dir}: {text}")


@db.command()
@_options
def status(data_dir: Path | None, as_json: bool) -> None:
    """Show which database is in use and whether it answers."""
    from squid_dagster.journal.tiers import ServerTier

    tier = tier_of(data_dir)
    if isinstance(tier, ServerTier):
        _show_server(tier, as_json)
    else:
        _show_embedded(_embedded(tier, "show"), as_json)


@db.command()
@_options
@click.option(
    "--schema",
    envvar="SQUID_SCHEMA",
    show_envvar=True,
    default="squid",
    show_default=True,
    help="The schema of the journal.",
)
def upgrade(data_dir: Path | None, as_json: bool, schema: str) -> None:
    """Create the journal's schema, or bring it to the version that this code needs."""
    from squid_dagster.journal.postgres.schema import check_schema_name
    from squid_dagster.journal.postgres.storage import PostgresStorage
    from squid_dagster.journal.tiers import describe, open_tier

    check_schema_name(schema)  # before a server is started for it
    tier = tier_of(data_dir)
    storage = PostgresStorage(open_tier(tier), schema)
    try:
        version = storage.upgrade()
    finally:
        storage.close()
    facts = {"schema": schema, "version": version, "database": describe(tier)}
    emit(as_json, facts, f"{describe(tier)}: schema {schema} is at version {version}")


def tier_of(data_dir: Path | None) -> "Tier":
    """Give the tier that the command line or the environment names. Raises as `resolve_tier`."""
    from squid_dagster.journal.tiers import EmbeddedTier, resolve_tier

    return resolve_tier() if data_dir is None else EmbeddedTier(data_dir.absolute(), "--data-dir")


def _embedded(tier: "Tier", verb: str) -> "EmbeddedPostgres":
    from squid_dagster.journal.tiers import ServerTier, describe

    if isinstance(tier, ServerTier):
        raise Refused(
            f"{describe(tier)} is not ours to {verb}: only the embedded Postgres is (name it with --data-dir)"
        )
    from squid_dagster.journal.embedded import EmbeddedPostgres

    return EmbeddedPostgres(tier.data_dir)


def _show_embedded(server: "EmbeddedPostgres", as_json: bool) -> None:
    found = server.status()
    facts = {
        "tier": "embedded",
        "running": found.running,
        "pid": found.pid,
        "postgres": found.major,
        "data_dir": str(found.data_dir),
        "socket_dir": str(found.socket_dir),
        "url": server.url if found.running else None,
    }
    text = f"embedded Postgres in {found.data_dir}: not running"
    if found.running:
        text = f"embedded Postgres {found.major} in {found.data_dir}: running, pid {found.pid}\n{server.url}"
    emit(as_json, facts, text)


def _show_server(tier: "ServerTier", as_json: bool) -> None:
    from squid_dagster.journal.tiers import describe, display_url, is_answering

    answers = is_answering(tier)
    facts = {"tier": "server", "running": answers, "url": display_url(tier.url), "source": tier.source}
    emit(as_json, facts, f"{describe(tier)}: {'running' if answers else 'does not answer'}")
