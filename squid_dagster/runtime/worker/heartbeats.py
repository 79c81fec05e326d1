"""One loop that keeps all claims of a process alive, in one append for all of them."""

import threading
import time
from collections.abc import Collection, Sequence
from datetime import timedelta

from squid_dagster.journal.contract.dispatch_store import Claim, DispatchStore
from squid_dagster.logs import redacting_logger
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.runtime.worker.outage import Outage
from squid_dagster.workflow.authoring.step_context import Cancellation

logger = redacting_logger(__name__)


class Heartbeats:
    """Extends leases while steps run. A claim that is lost sets its step's cancellation; its result is dropped."""

    def __init__(
        self,
        dispatch: DispatchStore,
        lease: timedelta,
        every: timedelta | None = None,
        outage: Outage | None = None,
    ) -> None:
        """Begin when the first claim is added, end with `close`. None: every third of a lease.

        That the database cannot be reached is said to `outage`.

        Raises:
            InvalidArgument: a lease would run out between two of them.
        """
        if every is not None and not timedelta(0) < every < lease:
            raise InvalidArgument(f"heartbeat must be above zero and below the lease of {lease}, not {every}")
        self._dispatch, self._lease, self._outage = dispatch, lease, outage or Outage("heartbeats")
        self._every = (lease / 3 if every is None else every).total_seconds()
        self._held: dict[str, tuple[Claim, Cancellation, float]] = {}
        self._outcomes: set[str] = set()  # claims whose steps have ended
        self._again: set[str] = set()  # claims that could not be extended the last time
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, claims: list[Claim]) -> list[Cancellation]:
        """Keep these claims alive from now on; give what tells their steps that a claim is lost."""
        valid_until = time.monotonic() + self._lease.total_seconds()
        found = [Cancellation() for _ in claims]
        with self._lock:
            for claim, cancellation in zip(claims, found, strict=True):
                self._held[claim.ref.claim_id] = (claim, cancellation, valid_until)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="squid-heartbeats", daemon=True)
                self._thread.start()
        return found

    def note_outcome(self, claim: Claim) -> None:
        """Note that a step has ended: whether its outcome counts is logged where that is written.

        A heartbeat that meets the settled claim, before `remove`, has nothing to warn of.
        """
        with self._lock:
            if claim.ref.claim_id in self._held:
                self._outcomes.add(claim.ref.claim_id)

    def remove(self, claims: list[Claim]) -> None:
        """Let go of claims that are settled or given back."""
        with self._lock:
            for claim in claims:
                self._held.pop(claim.ref.claim_id, None)
                self._outcomes.discard(claim.ref.claim_id)

    def close(self) -> None:
        """End the loop; leases then run out by themselves."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _loop(self) -> None:
        pause, soon = self._every, self._lease.total_seconds() / 30
        all_at = time.monotonic() + pause
        while not self._ended.wait(pause):
            if not self._again or time.monotonic() >= all_at:
                self.beat()
                all_at = time.monotonic() + self._every
            else:
                self.beat(self._again)
            left = max(0.0, all_at - time.monotonic())
            pause = min(left, soon) if self._again else left

    def beat(self, only: Collection[str] | None = None) -> bool:
        """Extend all leases once, or those of these claims; return whether the database could do it for each.

        Those for which it could not are to be tried again soon. Another session may hold a lock on a run of theirs.
        """
        with self._lock:
            held = [each for key, each in self._held.items() if only is None or key in only]
        self._again = set()
        if not held:
            self._outage.end("the heartbeat")  # there is nothing more to wait for
            return True
        sent = time.monotonic()
        try:
            answers = self._dispatch.heartbeat([claim.ref for claim, _, _ in held], self._lease)
        except Exception as error:  # noqa: BLE001  whatever it is, without this loop all claims would be lost
            self._postpone(held, error)
            return False
        with self._lock:
            for (claim, cancellation, _), answer in zip(held, answers, strict=True):
                key = claim.ref.claim_id
                if answer.error is None and key in self._held:
                    self._held[key] = (claim, cancellation, sent + self._lease.total_seconds())
        waiting = [each for each, answer in zip(held, answers, strict=True) if answer.unavailable]
        refused = [
            claim
            for (claim, _, _), answer in zip(held, answers, strict=True)
            if answer.error is not None and not answer.unavailable
        ]
        with self._lock:
            settled = {claim.ref.claim_id for claim in refused} & self._outcomes
        self._drop(refused, unsaid=settled)
        if waiting:
            self._postpone(waiting, next(answer.error for answer in answers if answer.error and answer.unavailable))
        else:
            self._outage.end("the heartbeat")
        return not waiting

    def _postpone(self, held: Sequence[tuple[Claim, Cancellation, float]], error: Exception) -> None:
        """Note claims that could not be extended now; let go of those that may have run out without an answer."""
        self._outage.begin("the heartbeat", error)
        late = [claim for claim, _, valid_until in held if valid_until < time.monotonic()]
        self._drop(late)  # their results would be refused
        self._again = {claim.ref.claim_id for claim, _, _ in held} - {claim.ref.claim_id for claim in late}

    def _drop(self, claims: list[Claim], unsaid: Collection[str] = ()) -> None:
        with self._lock:
            for claim in claims:
                held = self._held.pop(claim.ref.claim_id, None)
                self._outcomes.discard(claim.ref.claim_id)
                if held is None:
                    continue
                held[1].set()
                if claim.ref.claim_id not in unsaid:
                    logger.warning("the claim on %s is lost: its result will be dropped", claim.ref.runnable_key)
