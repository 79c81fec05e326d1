"""What the suites of the folds share."""

from collections.abc import Sequence
from typing import Any, Protocol

from squid_dagster.protocol import Anomaly, Attempt, DispatchProjection, Entry, Fact, Reason
from tests.facts import OnThread, entries, key


class Folded(Protocol):
    """The result of any fold."""

    @property
    def anomalies(self) -> Sequence[Anomaly]:
        """The anomalies of the entries."""


def fold(*items: Fact | OnThread) -> DispatchProjection:
    """Fold facts as a queue does."""
    return DispatchProjection.fold(entries(items))


def the_attempt(projection: DispatchProjection, attempt: int = 1) -> Attempt:
    """Return the attempt that facts are about by default, or another one at the same visit."""
    return projection.attempts[key(attempt=attempt)]


def reasons(projection: Folded) -> list[Reason]:
    """Return the reasons of anomalies, in order."""
    return [anomaly.reason for anomaly in projection.anomalies]


def assert_parts_make_the_whole(kind: Any, journal: Sequence[Entry], split: int) -> None:
    """Assert that folding in two parts equals folding at once, and leaves the first part alone."""
    first = kind.fold(journal[:split])
    whole = kind.fold(journal[split:], onto=first)
    assert whole == kind.fold(journal)
    assert first == kind.fold(journal[:split])
