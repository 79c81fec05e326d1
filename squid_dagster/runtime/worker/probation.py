"""When a worker may begin suspects: attempts whose earlier delivery was lost, which may end the process again.

When a worker dies, all attempts that it held become suspects, of which at most one is the cause. So that the others are
not lost again: nothing begins within `QUIET_SECONDS` before or after a suspect, unless the one that began first has
ended; and a suspect on its last delivery runs alone in the worker from beginning to end, so that only itself (or its
host) can make it a dead letter. Owns no lock: only the claiming thread uses it.
"""

from collections.abc import Container, Sequence

from squid_dagster.journal.contract.dispatch_store import Claim, Suspects
from squid_dagster.protocol.folds.attempt import Suspicion

QUIET_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 60.0  # for a worker to become empty; then a last delivery begins beside running steps


class Probation:
    """The rule for the next claim of one worker. All times are seconds of one monotonic clock."""

    def __init__(self, lease_seconds: float) -> None:
        """Start without a suspect."""
        self._patience = min(lease_seconds, LONGEST_WAIT_SECONDS)
        self._began_at = float("-inf")  # when an attempt began, the latest one
        self._suspect: str | None = None  # the claim that nothing may begin beside
        self._is_last = False
        self._passed_over = Suspicion.NONE  # by the latest claim
        self._passed_at = 0.0  # since when one on its last delivery is passed over

    @property
    def waits(self) -> bool:
        """Whether the latest claim has passed over a suspect."""
        return self._passed_over is not Suspicion.NONE

    def rule(self, held: Container[str], holds_any: bool, now: float) -> Suspects | None:
        """Return what the next claim may take, given the ids of held claims; None if nothing now."""
        begins_alone = self._is_last or now < self._began_at + QUIET_SECONDS
        if begins_alone and self._suspect is not None and self._suspect in held:
            return None
        self._suspect = None
        if not holds_any:
            return Suspects(Suspicion.LAST, alone=True)
        match self._passed_over:
            case Suspicion.LOST:
                return Suspects(Suspicion.LOST) if now >= self._began_at + QUIET_SECONDS else None
            case Suspicion.LAST:
                return Suspects(Suspicion.LAST) if now >= self._passed_at + self._patience else None
        return Suspects(Suspicion.NONE)

    def observe(self, claims: Sequence[Claim], taken: Suspicion, passed_over: Suspicion, now: float) -> None:
        """Record the result of a claim, and the suspicion of what it took and of what it passed over."""
        if passed_over is Suspicion.LAST and self._passed_over is not Suspicion.LAST:
            self._passed_at = now
        self._passed_over = passed_over
        if claims:
            self._began_at = now
        if claims and taken is not Suspicion.NONE:
            self._suspect, self._is_last = claims[0].ref.claim_id, taken is Suspicion.LAST
