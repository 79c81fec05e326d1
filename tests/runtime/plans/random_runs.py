"""Random workers, crashes, recoveries and decisions of people, until nothing more happens by itself."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from random import Random

from squid_dagster.api import Squid
from squid_dagster.inspection import RunSnapshot
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.dispatch_store import Answer, Settlement
from squid_dagster.runtime.execution.executor import Executor
from squid_dagster.runtime.execution.settlement import settle
from squid_dagster.workflow.authoring.step_context import Cancellation

LEASE = timedelta(seconds=20)
_TURNS = 1500


@dataclass
class RandomRun:
    """One run, alone on its queue. `crashes` is how often a worker may vanish with what it holds."""

    chance: Random
    squid: Squid
    clock: VirtualClock
    run_id: str
    queue: str = "default"
    crashes: int = 12

    def to_the_end(self) -> RunSnapshot:
        """Execute the run until it has ended, or is left waiting for a person."""
        for _ in range(_TURNS):
            snapshot = self.squid.inspect_run(self.run_id)
            if snapshot.terminal:
                return snapshot
            if snapshot.manual_state is not None:
                if self.chance.randrange(4) == 0:
                    return snapshot
                self._decide(snapshot.manual_state.kind)
            elif not self._work() and not self._wait(snapshot):
                self.squid.recover(self.queue)
                snapshot = self.squid.inspect_run(self.run_id)
                if snapshot.reason == "dead_letter":
                    if self.chance.randrange(2):
                        return snapshot
                    self.squid.retry_attempt(self.run_id, snapshot.dead_letters[0].runnable_key)
        raise AssertionError(f"still at work after {_TURNS} turns: {self.squid.explain_run(self.run_id).summary}")

    def _decide(self, kind: str) -> None:
        if kind == "pause":
            self.squid.resume(self.run_id)
        else:
            self.chance.choice([self.squid.approve, self.squid.reject])(self.run_id, actor="ada")

    def _work(self) -> bool:
        """Claim some attempts, execute them, and settle them together or one by one, in any order; or lose them."""
        runtime = self.squid.runtime
        limit = self.chance.randint(1, 3)
        held = runtime.dispatch.claim(self.queue, "w", limit=limit, lease=LEASE, definitions=runtime.registry.keys)
        if held and self.crashes > 0 and self.chance.randrange(8) == 0:
            self.crashes -= 1
            return True
        self.chance.shuffle(held)
        done = []
        for claim in held:
            came = Executor(runtime, asyncio.run).perform(claim, Cancellation())
            assert not isinstance(came, Answer)
            done.append(Settlement(claim.ref, came))
        for group in [done] if self.chance.randrange(2) else [[settlement] for settlement in done]:
            for answer in settle(runtime, group).answers:
                # A sibling may have ended the run meanwhile; nothing else can be wrong with a fresh claim.
                assert answer.error is None or type(answer.error).__name__ == "TerminalRun"
        return bool(held)

    def _wait(self, snapshot: RunSnapshot) -> bool:
        """Advance the clock to the next due time; return whether there is one."""
        dues = [attempt.visible_at for attempt in snapshot.scheduled_attempts]
        dues += [
            attempt.lease_until for attempt in snapshot.attempts if attempt.status == "claimed" and attempt.lease_until
        ]
        later = [due for due in dues if due > self.clock.now()]
        if later:
            self.clock.advance(min(later) - self.clock.now())
        return bool(later)
