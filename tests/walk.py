"""Careful writers, simulated one move at a time: what `plausible_histories` are made of."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from squid_dagster.protocol import AttemptClaimed, Fact
from tests.facts import (
    RUNS,
    STEPS,
    applied,
    cataloged,
    child,
    claimed,
    completed,
    dead_lettered,
    failed,
    failed_with_retry,
    fence,
    fenced,
    heartbeat,
    indexed,
    planned,
    quarantined,
    queue_paused,
    queue_resumed,
    queued,
    released,
    runnable,
    scheduled,
    signal,
    started,
    step_paused,
    step_resolved,
    t,
    terminal,
    wakeup,
)


@dataclass
class Work:
    """What careful writers know about one attempt."""

    run: str
    step: str
    visit: int
    attempt: int
    visible: float
    cap: int
    state: str = "open"
    claim: str | None = None
    lease: float = 0
    deliveries: int = 0
    applied: bool = False

    @property
    def about(self) -> dict[str, Any]:
        return {"run": self.run, "step": self.step, "visit": self.visit, "attempt": self.attempt}


@dataclass
class Walk:
    """Writers that follow the rules, whose workers crash, sleep and come back too late."""

    draw: st.DrawFn
    now: float = 0
    facts: list[Fact] = field(default_factory=list)
    works: list[Work] = field(default_factory=list)
    visits: dict[tuple[str, str], int] = field(default_factory=dict)
    tokens: dict[tuple[str, str, int], int] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    claims: int = 0

    def pick(self, works: list[Work]) -> Work | None:
        alive = [work for work in works if work.run not in self.ended]
        return self.draw(st.sampled_from(alive)) if alive else None

    def held(self) -> Work | None:
        return self.pick([w for w in self.works if w.state == "open" and w.claim and w.lease > self.now])

    def start(self, run: str) -> None:
        now = self.now
        self.facts += [signal(run, at=now), started(run, at=now), queued(run, at=now)]
        self.facts += [indexed(run, at=now), cataloged(run, at=now)]

    def plan(self) -> None:
        run, step = self.draw(st.sampled_from(RUNS[:2])), self.draw(st.sampled_from(STEPS))
        if run in self.ended:
            return
        visit = self.visits[run, step] = self.visits.get((run, step), 0) + 1
        visible, cap = self.now + self.draw(st.sampled_from((0, 0, 30))), self.draw(st.sampled_from((1, 2, 5)))
        intent: dict[str, Any] = {"visible_at": t(visible), "max_deliveries": cap}
        intent["priority"] = self.draw(st.sampled_from((0, 0, 5, -5)))
        self.facts.append(planned(runnable(run, step, visit=visit, **intent), run=run, at=self.now))
        self.facts.append(scheduled(run, step, visit=visit, at=self.now, **intent))
        self.works.append(Work(run, step, visit, 1, visible, cap))

    def claim(self) -> None:
        due = [w for w in self.works if w.state == "open" and max(w.visible, w.lease) <= self.now]
        work = self.pick([w for w in due if w.deliveries < w.cap])
        if work is None:
            return
        self.claims += 1
        work.claim, work.deliveries = f"claim-{self.claims}", work.deliveries + 1
        lease = self.draw(st.sampled_from((20, 60)))
        work.lease = self.now + lease
        visit = (work.run, work.step, work.visit)
        token = self.tokens[visit] = self.tokens.get(visit, 0) + 1
        self.facts.append(claimed(**work.about, at=self.now, claim=work.claim, lease=lease, fencing_token=token))

    def heartbeat(self) -> None:
        if (work := self.held()) is not None and work.claim:
            lease = self.draw(st.sampled_from((10, 60)))
            work.lease = max(work.lease, self.now + lease)
            self.facts.append(heartbeat(**work.about, at=self.now, claim=work.claim, lease=lease))

    def complete(self) -> None:
        if (work := self.held()) is not None and work.claim:
            work.state = "completed"
            self.facts.append(completed(**work.about, at=self.now, claim=work.claim))

    def fail(self) -> None:
        if (work := self.held()) is not None and work.claim:
            work.state = "failed"
            if work.attempt == 3:
                self.facts.append(failed(**work.about, at=self.now, claim=work.claim))
                return
            delay = self.draw(st.sampled_from((0, 20)))
            self.facts.append(failed_with_retry(**work.about, at=self.now, claim=work.claim, delay=delay))
            retry = Work(work.run, work.step, work.visit, work.attempt + 1, self.now + delay, work.cap)
            self.works.append(retry)
            again = runnable(**retry.about, visible_at=t(retry.visible), max_deliveries=work.cap)
            self.facts.append(planned(again, run=work.run, at=self.now))

    def release(self) -> None:
        if (work := self.held()) is not None and work.claim:
            self.facts.append(released(**work.about, at=self.now, claim=work.claim))
            work.claim, work.lease, work.deliveries = None, 0, work.deliveries - 1

    def interrupt(self) -> None:
        if (work := self.held()) is not None and work.claim:
            if work.deliveries >= work.cap:
                work.state = "dead"
                given_up = {**fence(work.claim), "error": {"message": "interrupted"}}
                self.facts.append(dead_lettered(**work.about, at=self.now, deliveries=work.deliveries, **given_up))
                return
            self.facts.append(released(**work.about, at=self.now, claim=work.claim, counted=True))
            work.claim, work.lease = None, 0

    def dead_letter(self) -> None:
        lost = [w for w in self.works if w.state == "open" and w.claim and w.lease <= self.now]
        work = self.pick([w for w in lost if w.deliveries >= w.cap])
        if work is not None:
            work.state = "dead"
            self.facts.append(dead_lettered(**work.about, at=self.now, deliveries=work.deliveries))

    def come_back_too_late(self) -> None:
        """Settle a claim that its worker has lost."""
        lost = [fact for fact in self.facts if isinstance(fact, AttemptClaimed)]
        if lost:
            fence = self.draw(st.sampled_from(lost))
            settle = self.draw(st.sampled_from((completed, failed, released, heartbeat)))
            self.facts.append(settle(fence.run_id, runnable_key=fence.runnable_key, at=self.now, claim=fence.claim_id))

    def apply(self) -> None:
        work = self.pick([w for w in self.works if w.state == "completed" and not w.applied])
        if work is not None:
            work.applied = True
            self.facts.append(applied(**work.about, at=self.now))

    def ask(self) -> None:
        """Wait for a person, or answer as one."""
        run = self.draw(st.sampled_from(RUNS[:2]))
        if run in self.ended:
            return
        if run in self.waiting:
            self.facts.append(step_resolved(run, self.waiting.pop(run), at=self.now))
        else:
            self.waiting[run] = "review"
            self.facts.append(step_paused(run, at=self.now))

    def end(self) -> None:
        run = self.draw(st.sampled_from(RUNS[:2]))
        if run not in self.ended:
            self.ended.add(run)
            self.facts.append(terminal(run, at=self.now))
            if any(work.run == run and work.state == "open" for work in self.works):
                self.facts.append(fenced(run, at=self.now))

    def notice(self) -> None:
        """Append a fact that changes no attempt."""
        run = self.draw(st.sampled_from(RUNS[:2]))
        choices: list[Fact] = [queue_paused(at=self.now), queue_resumed(at=self.now), signal(run, at=self.now)]
        choices += [] if run in self.ended else [child(run, at=self.now), quarantined(run, at=self.now)]
        choices += [wakeup(**w.about, at=self.now) for w in self.works if w.run == run and run not in self.ended]
        self.facts.append(self.draw(st.sampled_from(choices)))

    def wait(self) -> None:
        self.now += self.draw(st.sampled_from((10, 10, 20, 60)))


MOVES: tuple[Callable[[Walk], None], ...] = (
    *(Walk.plan,) * 3,
    *(Walk.claim,) * 6,
    *(Walk.heartbeat,) * 2,
    *(Walk.complete,) * 3,
    *(Walk.fail,) * 2,
    Walk.release,
    Walk.interrupt,
    *(Walk.dead_letter,) * 2,
    Walk.come_back_too_late,
    *(Walk.apply,) * 2,
    Walk.ask,
    Walk.end,
    Walk.notice,
    *(Walk.wait,) * 5,
)
