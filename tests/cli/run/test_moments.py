"""`--at` and `--at-revision` of the four commands that show a run: the same moments, and the same refusals."""

from datetime import timedelta

import pytest

from squid_dagster.api import Squid
from tests.cli.command_line import CommandLine
from tests.cli.workflows import orders

COMMANDS = ("inspect", "explain", "graph", "timeline")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_is_shown_as_it_was_at_a_time(cli: CommandLine, command: str) -> None:
    squid = Squid(cli.storage, [orders])
    run_id = squid.start("orders", {"item": "tea"}).run_id
    begun = squid.inspect_run(run_id).started_at
    assert begun is not None
    squid.cancel(run_id)

    then = cli("run", command, run_id, "--at", begun.isoformat(), "--json")
    now = cli("run", command, run_id, "--at", (begun + timedelta(days=9000)).isoformat(), "--json")

    assert "cancel" not in then.out
    assert now.json == cli("run", command, run_id, "--json").json or command != "timeline"
    assert "cancel" in now.out
    assert cli("run", command, run_id, "--at-revision", 1, "--json").code == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_a_moment_that_makes_no_sense_is_one_line(cli: CommandLine, command: str) -> None:
    run_id = Squid(cli.storage, [orders]).start("orders", {"item": "tea"}).run_id

    cli("run", command, run_id, "--at", "2026-11-16T18:00:00").refused(2, "no time with a zone")
    cli("run", command, run_id, "--at", "2000-01-01T00:00:00Z").refused(3, run_id, "its first fact is of")
    cli("run", command, run_id, "--at", "2026-11-16T18:00:00Z", "--at-revision", 1).refused(2, "give one of them")
