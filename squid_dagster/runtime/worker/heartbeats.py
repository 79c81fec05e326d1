"""One loop that extends the leases of all claims of a process, in one append for all of them."""

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
        """Start with the first claim, end with `close`. If `every` is None, beat every third of a lease.

        An unavailable database is logged by `outage`.

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
        """Extend these claims from now on; return their cancellations, which are set when a claim is lost."""
        valid_until = time.monotonic() + self._lease.total_seconds()
        cancellations = [Cancellation() for _ in claims]
        with self._lock:
            for claim, cancellation in zip(claims, cancellations, strict=True):
                self._held[claim.ref.claim_id] = (claim, cancellation, valid_until)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="squid-heartbeats", daemon=True)
                self._thread.start()
        return cancellations

    def note_outcome(self, claim: Claim) -> None:
        """Record that a step has ended: a refused outcome is logged by the code that writes it.

        So a heartbeat of the settled claim, before `remove`, logs no warning.
        """
        with self._lock:
            if claim.ref.claim_id in self._held:
                self._outcomes.add(claim.ref.claim_id)

    def remove(self, claims: list[Claim]) -> None:
        """Remove claims that are settled or released."""
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
        """Extend all leases once, or those of these claims; return whether each of them could be tried.

        The others are repeated soon: for example, another session may have locked their run.
        """
        with self._lock:
            held = [entry for key, entry in self._held.items() if only is None or key in only]
        self._again = set()
        if not held:
            self._outage.end("the heartbeat")  # nothing waits for it
            return True
        sent = time.monotonic()
        try:
            answers = self._dispatch.heartbeat([claim.ref for claim, _, _ in held], self._lease)
        except Exception as error:  # noqa: BLE001  without this loop all claims would be lost
            self._postpone(held, error)
            return False
        with self._lock:
            for (claim, cancellation, _), answer in zip(held, answers, strict=True):
                key = claim.ref.claim_id
                if answer.error is None and key in self._held:
                    self._held[key] = (claim, cancellation, sent + self._lease.total_seconds())
        waiting = [entry for entry, answer in zip(held, answers, strict=True) if answer.unavailable]
        refused = [
            claim
            for (claim, _, _), answer in zip(held, answers, strict=True)
            if answer.error is not None and not answer.unavailable
        ]
        with self._lock:
            settled = {claim.ref.claim_id for claim in refused} & self._outcomes
        self._drop(refused, without_warning=settled)
        if waiting:
            self._postpone(waiting, next(answer.error for answer in answers if answer.error and answer.unavailable))
        else:
            self._outage.end("the heartbeat")
        return not waiting

    def _postpone(self, held: Sequence[tuple[Claim, Cancellation, float]], error: Exception) -> None:
        """Keep claims that could not be extended for the next beat; drop those whose lease may have run out."""
        self._outage.begin("the heartbeat", error)
        late = [claim for claim, _, valid_until in held if valid_until < time.monotonic()]
        self._drop(late)  # their results would be refused
        self._again = {claim.ref.claim_id for claim, _, _ in held} - {claim.ref.claim_id for claim in late}

    def _drop(self, claims: list[Claim], without_warning: Collection[str] = ()) -> None:
        with self._lock:
            for claim in claims:
                held = self._held.pop(claim.ref.claim_id, None)
                self._outcomes.discard(claim.ref.claim_id)
                if held is None:
                    continue
                held[1].set()
                if claim.ref.claim_id not in without_warning:
                    logger.warning("the claim on %s is lost: its result will be dropped", claim.ref.runnable_key)
