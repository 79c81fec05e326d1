"""The `squid` command. A command imports what it needs when it is used, so that `--help` is quick."""

import click

from squid_dagster.cli.app import Root

_COMMANDS = {
    "quickstart": (
        "squid_dagster.cli.quickstart.command:quickstart",
        "A small workflow, a UI and a worker: see it survive.",
    ),
    "status": ("squid_dagster.cli.status:status", "One screen: database, queues, workers, what needs attention."),
    "run": ("squid_dagster.cli.run.group:run", "Start, list, look at and control runs."),
    "queue": (
        "squid_dagster.cli.queue.command:queue",
        "Show, pause and resume queues, and put dead letters back.",
    ),
    "cron": ("squid_dagster.cli.cron:cron", "Cron triggers, and what they start next."),
    "worker": ("squid_dagster.cli.worker:worker", "Run steps until stopped."),
    "recover": ("squid_dagster.cli.worker:recover", "Close what crashes have left open."),
    "backlog": ("squid_dagster.cli.backlog.command:backlog", "Cards that people and programs claim."),
    "journal": ("squid_dagster.cli.journal.command:journal", "Follow, verify, export and import the facts."),
    "views": ("squid_dagster.cli.views:views", "Check the live views, or rebuild them from the facts."),
    "db": ("squid_dagster.cli.db:db", "The database that holds the journal."),
    "doctor": ("squid_dagster.cli.doctor.command:doctor", "Look for what is wrong, and name it."),
}


@click.group(cls=Root, lazy=_COMMANDS)
@click.version_option(package_name="squid-dagster")
def main() -> None:
    """Run durable workflows on a Postgres journal."""
