"""What a command reads of a run: the planner's state, the attempts that it names, and its own first time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, Self

from squid_dagster.protocol.facts import Fact, RunSignalReceived
from squid_dagster.protocol.folds.attempt import Attempt, AttemptStatus
from squid_dagster.protocol.folds.dispatch import RunDispatch
from squid_dagster.protocol.folds.plan_state import PlanState
from squid_dagster.protocol.folds.run_unit import RunUnit


class SignalKey(NamedTuple):
    """A command by its type and idempotency key: on one run, it is recorded once."""

    signal_type: str
    idempotency_key: str


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """A run that a command is about.

    `runnable_key` names the attempt that is wanted, `visit` all attempts of an idempotency key, `dead_letters` asks for
    those of open visits, and `signal` for the first command of that key. The attempts of a run that has ended are gone.
    """

    run_id: str
    runnable_key: str | None = None
    visit: str | None = None
    dead_letters: bool = False
    signal: SignalKey | None = None

    @property
    def asks_for_attempts(self) -> bool:
        """Whether the run's part of its queue is looked at."""
        return self.dead_letters or self.runnable_key is not None or self.visit is not None

    @property
    def keys(self) -> list[str]:
        """The attempt that is named and the next one, with which all others of its visit are found.

        Of a visit, the first two, as the planner names them; others may name them otherwise.
        """
        of_visit = [] if self.visit is None else [f"{self.visit}:1", f"{self.visit}:2"]
        if self.runnable_key is None:
            return of_visit
        visit, _, number = self.runnable_key.rpartition(":")
        is_number = number.isascii() and number.isdecimal() and len(number) <= 9
        return [*of_visit, self.runnable_key, *([f"{visit}:{int(number) + 1}"] if is_number else [])]


@dataclass(frozen=True, slots=True)
class CommandedRun:
    """One locked run, given away: a decision may fold into the state what it decides.

    Of the attempts, at least those that the target asks for are there, with the others of their visits.
    """

    state: PlanState
    dispatch: RunDispatch
    first: RunSignalReceived | None = None

    @classmethod
    def of(cls, unit: RunUnit, target: CommandTarget) -> Self:
        """Return a run whose facts were all read."""
        return cls(PlanState.of(unit.run), unit.dispatch, first_signal(unit.run.command_history, target.signal))

    @property
    def dead_letters(self) -> list[Attempt]:
        """The dead letters that the run has not gone on from."""
        state = self.state
        return [
            attempt
            for key, attempt in self.dispatch.attempts.items()
            if attempt.status is AttemptStatus.DEAD_LETTERED
            and f"{attempt.idempotency_key}:{attempt.attempt_number + 1}" not in state.planned
            and not state.is_closed(key, attempt.idempotency_key, attempt.step)
        ]


# Returns the facts that a command writes about its targets at that time; none: nothing to do. May raise to refuse, and
# may be asked again. Pure.
CommandDecision = Callable[[Mapping[str, CommandedRun], datetime], Sequence[Fact]]


def first_signal(history: Iterable[RunSignalReceived], key: SignalKey | None) -> RunSignalReceived | None:
    """Return the first command of that key, in the order of the run's thread; None without a key."""
    if key is None:
        return None
    return next((each for each in history if (each.signal_type, each.idempotency_key) == key), None)
