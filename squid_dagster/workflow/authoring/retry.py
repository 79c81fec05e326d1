"""How often a step is tried, and the pause between two attempts. Pure: random numbers are arguments."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from squid_dagster.protocol.argument_checks import checked
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.workflow.authoring.step_outcomes import Fail
from squid_dagster.workflow.values import MAX_DURATION, is_duration, is_number, is_whole, shown

MAX_FACTOR = 1000


@dataclass(frozen=True, slots=True)
class Retry:
    """A policy: `max_attempts` in all, the first pause `initial`, each further one `factor` times as long, none longer
    than `maximum`. `jitter` is the share of each pause, from 0 to 1, by which it may be shortened at random.

    Numbers are checked when the workflow is frozen.
    """

    max_attempts: int = 3
    initial: timedelta = timedelta(seconds=1)
    maximum: timedelta = timedelta(hours=1)
    factor: float = 2.0
    jitter: float = 0.0

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield the fields that are wrong, each with a sentence that says why."""
        if not is_whole(self.max_attempts) or self.max_attempts < 1:
            yield "max_attempts", f"must be a whole number of at least 1, not {shown(self.max_attempts)}"
        initial_is_good = is_duration(self.initial, at_least=timedelta(0))
        if not initial_is_good:
            yield "initial", f"must be a timedelta from 0 to {MAX_DURATION.days} days, not {shown(self.initial)}"
        if not is_duration(self.maximum, at_least=timedelta(0)):
            yield "maximum", f"must be a timedelta from 0 to {MAX_DURATION.days} days, not {shown(self.maximum)}"
        elif initial_is_good and self.maximum < self.initial:
            yield "maximum", f"{self.maximum} is less than the first pause, {self.initial}: raise it"
        if not is_number(self.factor) or not 1 <= self.factor <= MAX_FACTOR:
            yield "factor", f"must be from 1 (which keeps all pauses equal) to {MAX_FACTOR}, not {shown(self.factor)}"
        if not is_number(self.jitter) or not 0 <= self.jitter <= 1:
            yield "jitter", f"must be a number from 0 to 1, not {shown(self.jitter)}"


@checked
def delay(
    policy: Retry | None, failed_attempt_number: int, random_unit: float, error: BaseException | None = None
) -> timedelta | None:
    """Return the pause before the next attempt, or None when there is none.

    There is none without a policy, after the last attempt, and after an `error` that is a `Fail`. `random_unit` is a
    number from 0 up to 1 that the caller drew; the longest pause comes from 0.

    Raises:
        InvalidArgument: `failed_attempt_number` is below 1, or `random_unit` is not from 0 to 1.
    """
    if not is_whole(failed_attempt_number) or failed_attempt_number < 1:
        raise InvalidArgument(f"failed_attempt_number must be 1 or more, not {shown(failed_attempt_number)}")
    if not 0 <= random_unit <= 1:
        raise InvalidArgument(f"random_unit must be from 0 to 1, not {shown(random_unit)}")
    if policy is None or isinstance(error, Fail) or failed_attempt_number >= policy.max_attempts:
        return None
    return _pause(policy, failed_attempt_number - 1) * (1 - policy.jitter * random_unit)


def _pause(policy: Retry, doublings: int) -> timedelta:
    if not policy.initial:
        return policy.initial
    try:
        growth = float(policy.factor) ** doublings
    except OverflowError:
        return policy.maximum
    if policy.initial.total_seconds() * growth >= policy.maximum.total_seconds():
        return policy.maximum
    return min(policy.initial * growth, policy.maximum)
