"""What a command sees of a run."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from squid_dagster.journal.contract.command_target import CommandedRun, CommandTarget
from squid_dagster.protocol import Fact
from squid_dagster.protocol.facts.base import MAX_TEXT
from tests.journal.dispatch_fixture import DispatchFixture

LONG = "ü" * (MAX_TEXT - 1)


def seen_by(dispatch: DispatchFixture, target: CommandTarget, *facts: Fact) -> CommandedRun:
    """Return the run as a command sees it that writes these facts."""
    seen: list[CommandedRun] = []

    def decision(runs: Mapping[str, CommandedRun], now: datetime) -> Sequence[Fact]:
        seen.append(runs[target.run_id])
        return facts

    assert dispatch.store.command([target], decision) == list(facts)
    return seen[-1]
