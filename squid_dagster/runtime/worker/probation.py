"""When a worker may begin attempts whose earlier delivery was lost: such a suspect may end the process again.

A worker's death makes suspects of all attempts that it held, of which at most one is to blame. So that the others are
not taken along again and again: nothing begins within `QUIET_SECONDS` before or after a suspect, unless the one that
began first has ended; and a suspect on its last delivery has the worker to itself, from its beginning to its end, so
that nothing but itself (or its host) can make a dead letter of it. Owns no lock: the claiming thread asks.
"""

from collections.abc import Container, Sequence

from squid_dagster.journal.contract.dispatch_store import Claim, Suspects
from squid_dagster.protocol.folds.attempt import Suspicion

QUIET_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 60.0  # for a worker to become empty; a last delivery then begins beside what still runs


class Probation:
    """The rule for the next claim of one worker. All times are seconds of one monotonic clock."""

    def __init__(self, lease_seconds: float) -> None:
        """Begin without any suspect."""
        self._patience = min(lease_seconds, LONGEST_WAIT_SECONDS)
        self._began_at = float("-inf")  # when an attempt began, the latest one
        self._suspect: str | None = None  # the claim that nothing may begin beside
        self._is_last = False
        self._passed_over = Suspicion.NONE  # by the latest claim
        self._passed_at = 0.0  # since when there is one on its last delivery

    @property
    def waits(self) -> bool:
        """Whether a suspect is there that the latest claim had to leave behind."""
        return self._passed_over is not Suspicion.NONE

    def rule(self, held: Container[str], holds_any: bool, now: float) -> Suspects | None:
        """Return what the next claim may take, given the ids of the claims that are held; None: nothing now."""
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
        """Record what a claim got, how bad the suspect is that it took, and the one that it left behind."""
        if passed_over is Suspicion.LAST and self._passed_over is not Suspicion.LAST:
            self._passed_at = now
        self._passed_over = passed_over
        if claims:
            self._began_at = now
        if claims and taken is not Suspicion.NONE:
            self._suspect, self._is_last = claims[0].ref.claim_id, taken is Suspicion.LAST
