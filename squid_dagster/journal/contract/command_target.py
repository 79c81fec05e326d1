"""What a command reads of a run: the planner's state, the attempts that it names, and its first occurrence."""

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

    `runnable_key` asks for one attempt, `visit` for all attempts of an idempotency key, `dead_letters` for those of
    open visits, and `signal` for the first command of that key. A run that has ended has no attempts any more.
    """

    run_id: str
    runnable_key: str | None = None
    visit: str | None = None
    dead_letters: bool = False
    signal: SignalKey | None = None

    @property
    def asks_for_attempts(self) -> bool:
        """Whether the run's part of its queue is read."""
        return self.dead_letters or self.runnable_key is not None or self.visit is not None

    @property
    def keys(self) -> list[str]:
        """The keys of the named attempt and the next one, by which all others of its visit are found.

        Of a visit, the first two, as the planner names them; other writers may use other keys.
        """
        of_visit = [] if self.visit is None else [f"{self.visit}:1", f"{self.visit}:2"]
        if self.runnable_key is None:
            return of_visit
        visit, _, number = self.runnable_key.rpartition(":")
        is_number = number.isascii() and number.isdecimal() and len(number) <= 9
        return [*of_visit, self.runnable_key, *([f"{visit}:{int(number) + 1}"] if is_number else [])]


@dataclass(frozen=True, slots=True)
class CommandedRun:
    """One locked run: a decision may fold the facts that it returns into the state.

    `dispatch` holds at least the attempts that the target asks for, with the others of their visits.
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
        """The dead letters that the run has not continued from."""
        state = self.state
        return [
            attempt
            for key, attempt in self.dispatch.attempts.items()
            if attempt.status is AttemptStatus.DEAD_LETTERED
            and f"{attempt.idempotency_key}:{attempt.attempt_number + 1}" not in state.planned
            and not state.is_closed(key, attempt.idempotency_key, attempt.step)
        ]


# Returns the facts that a command writes about its targets at that time; none: nothing to do. May raise to refuse, and
# may be called again. Pure.
CommandDecision = Callable[[Mapping[str, CommandedRun], datetime], Sequence[Fact]]


def first_signal(history: Iterable[RunSignalReceived], key: SignalKey | None) -> RunSignalReceived | None:
    """Return the first command of that key, in the order of the run's thread; None without a key."""
    if key is None:
        return None
    return next((signal for signal in history if (signal.signal_type, signal.idempotency_key) == key), None)
