"""The `squid` command. Everything heavy is imported by the command that needs it, so that `--help` is quick."""

from typing import Any

import click

from squid_dagster.cli.db import db


class _Squid(click.Group):
    """A group that says our own errors in one line on stderr and leaves with 1; anything else is a bug."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            from squid_dagster.protocol.errors import SquidError

            if isinstance(error, SquidError):
                raise click.ClickException(" ".join(str(error).split())) from error
            raise


@click.group(cls=_Squid)
@click.version_option(package_name="squid-dagster")
def main() -> None:
    """Durable workflows on a Postgres journal."""


main.add_command(db)
