"""Facts for tests: builders with sensible defaults, their places in a journal, and strategies of whole histories.

Builders count time in seconds after `T0`. `plausible_histories` walk through what careful writers do,
`hostile_histories` hold any fact at any time, `histories` are either or a mixture. No fold is used here: what facts
mean is for tests to say.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from squid_dagster.protocol import (
    CATALOG_THREAD,
    FACT_TYPES,
    AttemptClaimed,
    AttemptCompleted,
    AttemptDeadLettered,
    AttemptFailed,
    AttemptHeartbeat,
    AttemptReleased,
    AttemptScheduled,
    ChildRunStarted,
    Entry,
    EntryQuarantined,
    Fact,
    LiveWakeupEmitted,
    MalformedFact,
    ManualStepPaused,
    ManualStepResolved,
    Origin,
    QueuePaused,
    QueueResumed,
    RunCataloged,
    RunFenced,
    RunIndexed,
    Runnable,
    RunnableApplied,
    RunnablesPlanned,
    RunQueued,
    RunSignalReceived,
    RunStarted,
    RunTerminal,
    UnknownFact,
    dispatch_thread,
    idempotency_key,
    run_index_thread,
    run_thread,
    runnable_key,
)
from squid_dagster.protocol.entries import StoredFact

# Under SQUID_MUTANTS every run judges by the same examples and stops at the first failure, as it is.
_MUTANTS = bool(os.environ.get("SQUID_MUTANTS"))
settings.register_profile(
    "squid",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=_MUTANTS,
    database=None if _MUTANTS else settings.get_profile("default").database,
    phases=(Phase.explicit, Phase.generate) if _MUTANTS else tuple(Phase),
)
settings.load_profile("squid")

T0 = datetime(2026, 1, 1, tzinfo=UTC)
RUN, STEP, QUEUE, WORKFLOW = "run-1", "charge", "default", "billing"
RUNS, STEPS, QUEUES, CLAIMS = ("run-1", "run-2", "run-3"), ("charge", "ship"), ("default", "slow"), ("a", "b", "c")


# --- builders -------------------------------------------------------------------------------------------------------


def t(seconds: float) -> datetime:
    """Give the time so many seconds after `T0`."""
    return T0 + timedelta(seconds=seconds)


def token_hash(claim: str) -> str:
    """Give the hash of the token that belongs to a claim id."""
    return hashlib.sha256(claim.encode()).hexdigest()


def key(run: str = RUN, step: str = STEP, attempt: int = 1, visit: int = 1) -> str:
    """Give a runnable key."""
    return runnable_key(run, step, visit, attempt)


def _about(run: str, step: str, attempt: int, visit: int, at: float) -> dict[str, Any]:
    return {"run_id": run, "runnable_key": runnable_key(run, step, visit, attempt), "occurred_at": t(at)}


def _fence(claim: str) -> dict[str, Any]:
    return {"claim_id": claim, "claim_token_hash": token_hash(claim)}


def signal(run: str = RUN, *, at: float = 0, **fields: Any) -> RunSignalReceived:
    """A command reached the run."""
    base = {"run_id": run, "occurred_at": t(at), "signal_type": "start_run", "payload": {}, "metadata": {}}
    return RunSignalReceived(**{**base, **fields})


def started(run: str = RUN, *, at: float = 0, **fields: Any) -> RunStarted:
    """The run exists."""
    return RunStarted(**{"run_id": run, "occurred_at": t(at), "workflow": WORKFLOW, "queue": QUEUE, **fields})


def runnable(run: str = RUN, step: str = STEP, *, attempt: int = 1, visit: int = 1, **fields: Any) -> Runnable:
    """One planned attempt; `scheduled` with the same arguments has the same intent."""
    base = {
        "run_id": run,
        "runnable_key": runnable_key(run, step, visit, attempt),
        "idempotency_key": idempotency_key(run, step, visit),
        "attempt_number": attempt,
        "step": step,
        "input": {"amount": 5},
        "visible_at": t(0),
    }
    return Runnable(**{**base, **fields})


def planned(*runnables: Runnable, run: str = RUN, at: float = 0, **fields: Any) -> RunnablesPlanned:
    """Work was decided on: the first attempt at `charge`, unless told otherwise."""
    base = {"run_id": run, "occurred_at": t(at), "runnables": list(runnables) or [runnable(run)]}
    return RunnablesPlanned(**{**base, **fields})


def applied(
    run: str = RUN, step: str = STEP, *, attempt: int = 1, visit: int = 1, at: float = 40, **fields: Any
) -> RunnableApplied:
    """An outcome became part of the run."""
    return RunnableApplied(**{**_about(run, step, attempt, visit, at), "result": {"ok": True}, **fields})


def child(run: str = RUN, *, at: float = 20, child_run_id: str = "child-1", **fields: Any) -> ChildRunStarted:
    """The run links a child."""
    base = {
        "run_id": run,
        "occurred_at": t(at),
        "child_run_id": child_run_id,
        "child_workflow": "refund",
        "child_trigger": "api",
        "child_key": "refund-1",
        "origin": Origin(runnable_key=key(run), step=STEP, attempt=1),
    }
    return ChildRunStarted(**{**base, **fields})


def step_paused(run: str = RUN, step: str = "review", *, at: float = 20, **fields: Any) -> ManualStepPaused:
    """The run waits for an approval, unless `kind` says otherwise."""
    return ManualStepPaused(**{"run_id": run, "step": step, "occurred_at": t(at), "kind": "approval", **fields})


def step_resolved(run: str = RUN, step: str = "review", *, at: float = 30, **fields: Any) -> ManualStepResolved:
    """A person approved, unless `action` says otherwise."""
    return ManualStepResolved(**{"run_id": run, "step": step, "occurred_at": t(at), "action": "approved", **fields})


def terminal(run: str = RUN, *, at: float = 50, **fields: Any) -> RunTerminal:
    """The run completed, unless `status` says otherwise."""
    return RunTerminal(**{"run_id": run, "occurred_at": t(at), "status": "completed", **fields})


def quarantined(run: str = RUN, *, at: float = 20, **fields: Any) -> EntryQuarantined:
    """An entry of the run cannot be read."""
    base = {"run_id": run, "occurred_at": t(at), "entry_thread": dispatch_thread(QUEUE), "entry_seq": 1}
    return EntryQuarantined(**{**base, "reason": "unreadable", **fields})


def queued(run: str = RUN, *, at: float = 0, **fields: Any) -> RunQueued:
    """The run's work goes through the queue."""
    return RunQueued(**{"run_id": run, "occurred_at": t(at), **fields})


def scheduled(
    run: str = RUN, step: str = STEP, *, attempt: int = 1, visit: int = 1, at: float = 0, **fields: Any
) -> AttemptScheduled:
    """An attempt may be claimed from `T0` on."""
    base = {
        **_about(run, step, attempt, visit, at),
        "idempotency_key": idempotency_key(run, step, visit),
        "attempt_number": attempt,
        "step": step,
        "input": {"amount": 5},
        "visible_at": t(0),
        "workflow": WORKFLOW,
    }
    return AttemptScheduled(**{**base, **fields})


def claimed(
    run: str = RUN,
    step: str = STEP,
    *,
    attempt: int = 1,
    visit: int = 1,
    at: float = 10,
    claim: str = "a",
    lease: float = 60,
    **fields: Any,
) -> AttemptClaimed:
    """A worker holds the attempt for `lease` seconds."""
    base = {**_about(run, step, attempt, visit, at), **_fence(claim), "lease_until": t(at + lease)}
    return AttemptClaimed(**{**base, "owner_id": f"worker-{claim}", **fields})


def heartbeat(
    run: str = RUN,
    step: str = STEP,
    *,
    attempt: int = 1,
    visit: int = 1,
    at: float = 20,
    claim: str = "a",
    lease: float = 60,
    **fields: Any,
) -> AttemptHeartbeat:
    """The holder extends its lease to `lease` seconds from now."""
    base = {**_about(run, step, attempt, visit, at), **_fence(claim), "lease_until": t(at + lease)}
    return AttemptHeartbeat(**{**base, **fields})


def released(
    run: str = RUN,
    step: str = STEP,
    *,
    attempt: int = 1,
    visit: int = 1,
    at: float = 30,
    claim: str = "a",
    **fields: Any,
) -> AttemptReleased:
    """The holder gives the attempt back."""
    return AttemptReleased(**{**_about(run, step, attempt, visit, at), **_fence(claim), **fields})


def completed(
    run: str = RUN,
    step: str = STEP,
    *,
    attempt: int = 1,
    visit: int = 1,
    at: float = 30,
    claim: str = "a",
    **fields: Any,
) -> AttemptCompleted:
    """The holder succeeded."""
    base = {**_about(run, step, attempt, visit, at), **_fence(claim), "result": {"ok": True}}
    return AttemptCompleted(**{**base, **fields})


def failed(
    run: str = RUN,
    step: str = STEP,
    *,
    attempt: int = 1,
    visit: int = 1,
    at: float = 30,
    claim: str = "a",
    **fields: Any,
) -> AttemptFailed:
    """The holder failed, for good."""
    base = {**_about(run, step, attempt, visit, at), **_fence(claim), "error": {"message": "declined"}}
    return AttemptFailed(**{**base, **fields})


def failed_with_retry(
    run: str = RUN,
    step: str = STEP,
    *,
    attempt: int = 1,
    visit: int = 1,
    at: float = 30,
    claim: str = "a",
    delay: float = 10,
    **fields: Any,
) -> AttemptFailed:
    """The holder failed, and the next attempt is due `delay` seconds later."""
    retry = {"retry_runnable_key": runnable_key(run, step, visit, attempt + 1), "retry_visible_at": t(at + delay)}
    return failed(run, step, attempt=attempt, visit=visit, at=at, claim=claim, **{**retry, **fields})


def dead_lettered(
    run: str = RUN,
    step: str = STEP,
    *,
    attempt: int = 1,
    visit: int = 1,
    at: float = 100,
    deliveries: int = 1,
    **fields: Any,
) -> AttemptDeadLettered:
    """Somebody found the attempt out of deliveries."""
    return AttemptDeadLettered(**{**_about(run, step, attempt, visit, at), "deliveries": deliveries, **fields})


def wakeup(
    run: str = RUN, step: str = STEP, *, attempt: int = 1, visit: int = 1, at: float = 5, **fields: Any
) -> LiveWakeupEmitted:
    """Somebody was told about the attempt."""
    return LiveWakeupEmitted(**{**_about(run, step, attempt, visit, at), **fields})


def fenced(run: str = RUN, *, at: float = 50, **fields: Any) -> RunFenced:
    """The run has ended while attempts were open."""
    return RunFenced(**{"run_id": run, "occurred_at": t(at), **fields})


def queue_paused(queue: str = QUEUE, *, at: float = 5, **fields: Any) -> QueuePaused:
    """No claim from the queue."""
    return QueuePaused(**{"queue": queue, "occurred_at": t(at), **fields})


def queue_resumed(queue: str = QUEUE, *, at: float = 6, **fields: Any) -> QueueResumed:
    """Claims may go on."""
    return QueueResumed(**{"queue": queue, "occurred_at": t(at), **fields})


def indexed(run: str = RUN, *, at: float = 0, workflow: str = WORKFLOW, **fields: Any) -> RunIndexed:
    """The run can be found under its workflow."""
    return RunIndexed(**{"run_id": run, "occurred_at": t(at), "workflow": workflow, "queue": QUEUE, **fields})


def cataloged(run: str = RUN, *, at: float = 0, workflow: str = WORKFLOW, **fields: Any) -> RunCataloged:
    """The run can be found among all."""
    return RunCataloged(**{"run_id": run, "occurred_at": t(at), "workflow": workflow, "queue": QUEUE, **fields})


EXAMPLES: tuple[Fact, ...] = (
    signal(),
    started(),
    planned(),
    applied(),
    child(),
    step_paused(),
    step_resolved(),
    terminal(),
    quarantined(),
    queued(),
    scheduled(),
    claimed(),
    heartbeat(),
    released(),
    completed(),
    failed_with_retry(),
    dead_lettered(),
    wakeup(),
    fenced(),
    queue_paused(),
    queue_resumed(),
    indexed(),
    cataloged(),
)
"""One fact of every type."""


# --- places in the journal ------------------------------------------------------------------------------------------


class OnThread(NamedTuple):
    """A stored fact with the thread it was found on; unreadable ones do not say it themselves."""

    thread: str
    fact: StoredFact


def unknown(thread: str = dispatch_thread(QUEUE), run: str | None = RUN, at: float = 20) -> OnThread:
    """A fact of a type that a later version may have written."""
    return OnThread(thread, UnknownFact("attempt_teleported", run, t(at), {"to": "mars"}))


def malformed(
    thread: str = dispatch_thread(QUEUE), run: str | None = RUN, at: float = 20, type_name: str = "attempt_claimed"
) -> OnThread:
    """A fact that cannot be decoded."""
    return OnThread(thread, MalformedFact(type_name, run, t(at), "runnable_key: Field required", "{}"))


def entries(items: Iterable[Fact | OnThread], after: Sequence[Entry] = ()) -> list[Entry]:
    """Place facts on their threads: contiguous there, growing with gaps over the journal, behind `after` if given."""
    revisions = {entry.thread: entry.seq for entry in after}
    position = after[-1].position if after else 0
    placed = []
    for item in items:
        thread, fact = (item.thread, item.fact) if isinstance(item, OnThread) else (item.thread, item)
        revisions[thread] = revisions.get(thread, 0) + 1
        position += 2
        placed.append(Entry(thread, revisions[thread], position, fact))
    return placed


# --- strategies: values ---------------------------------------------------------------------------------------------

texts = st.one_of(
    st.sampled_from(["", "a", "\\u0000", "\\\\u0000", "\\", '"', "ü", "🦑", "\u2028", "null", "NaN"]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8),
)
"""Any text that Postgres can hold."""

numbers = st.one_of(
    st.integers(),
    st.sampled_from([2**63, -(2**63) - 1, 10**30, 0, 1]),
    st.sampled_from([1e300, -0.0, 0.0, 1.0, 5e-324, 1.7976931348623157e308, 0.1]),
    st.floats(allow_nan=False, allow_infinity=False),
)


def _lists(elements: st.SearchStrategy[Any], max_size: int) -> st.SearchStrategy[list[Any]]:
    # Left alone, hypothesis keeps lists so short that hardly any attempt lives to be settled; several short ones in a
    # row are long enough and still shrink well.
    parts = [st.lists(elements, max_size=10) for _ in range(-(-max_size // 10))]
    return st.tuples(*parts).map(lambda found: [element for part in found for element in part][:max_size])


def json_values() -> st.SearchStrategy[JsonValue]:
    """Any JSON value that a fact may hold."""
    leaves = st.one_of(st.none(), st.booleans(), numbers, texts)
    return st.recursive(
        leaves, lambda v: st.one_of(st.lists(v, max_size=3), st.dictionaries(texts, v, max_size=3)), max_leaves=8
    )


def json_objects() -> st.SearchStrategy[dict[str, JsonValue]]:
    """Any JSON object that a fact may hold."""
    return st.dictionaries(texts, json_values(), max_size=3)


# --- strategies: hostile histories ----------------------------------------------------------------------------------

_GRID = tuple(range(0, 130, 10))
_STRANGE_FIELDS: tuple[dict[str, Any], ...] = (
    {"note": {"seen": [1, "x", None]}},
    {"step_hint": "ship"},
    {"child": None},
    {"Ünknown": 10**30},
)
# Names that other facts use, with values of other types: a fold must not mistake them for its own.
_MISLEADING_FIELDS: tuple[dict[str, Any], ...] = ({"runnable_key": 7}, {"step": {"a": 1}}, {"child_run_id": ["x"]})


def with_fields(fact: Fact, **fields: Any) -> Fact:
    """Give the fact with some fields replaced or added, validated anew."""
    changed: Fact = type(fact).model_validate({**dict(fact), **(fact.__pydantic_extra__ or {}), **fields})
    return changed


@st.composite
def _fact(draw: st.DrawFn) -> Fact:
    """Any fact at any time about one of a few runs, steps, attempts and claims."""
    claim, at = draw(st.sampled_from((*CLAIMS[:1], *CLAIMS))), float(draw(st.sampled_from(_GRID)))
    run, step, attempt, queue = RUN, STEP, 1, QUEUE
    # Most facts are about one and the same attempt, so that they meet.
    if draw(st.integers(0, 3)) == 3:
        run, step = draw(st.sampled_from(RUNS)), draw(st.sampled_from(STEPS))
        attempt, queue = draw(st.sampled_from((1, 2, 3))), draw(st.sampled_from(QUEUES[:1] * 6 + QUEUES))
    build = draw(st.sampled_from(_HOSTILE))
    return build(draw, _Draw(run, step, attempt, claim, at, queue))


class _Draw(NamedTuple):
    run: str
    step: str
    attempt: int
    claim: str
    at: float
    queue: str

    @property
    def about(self) -> dict[str, Any]:
        return {"run": self.run, "step": self.step, "attempt": self.attempt, "at": self.at, "queue": self.queue}


def _hostile_plan(draw: st.DrawFn, d: _Draw) -> Fact:
    steps = draw(st.lists(st.sampled_from(STEPS), max_size=2))
    amount = draw(st.sampled_from((5, 5, 6)))
    works = [runnable(d.run, step, attempt=d.attempt, input={"amount": amount}) for step in steps]
    return planned(*works, run=d.run, at=d.at)


def _hostile_schedule(draw: st.DrawFn, d: _Draw) -> Fact:
    # Now and then a key of another run, which must stay a matter of the run that the fact names.
    owner = draw(st.sampled_from((d.run,) * 9 + RUNS[:1]))
    return scheduled(
        **d.about,
        runnable_key=key(owner, d.step, d.attempt),
        visible_at=t(draw(st.sampled_from((0, 0, 0, 30)))),
        max_deliveries=draw(st.sampled_from((1, 2, 5))),
        priority=draw(st.sampled_from((0, 0, 5))),
    )


def _hostile_claim(draw: st.DrawFn, d: _Draw) -> Fact:
    token = draw(st.sampled_from((None, None, None, 1, 2)))
    return claimed(**d.about, claim=d.claim, lease=draw(st.sampled_from((10, 20, 60))), fencing_token=token)


def _hostile_failure(draw: st.DrawFn, d: _Draw) -> Fact:
    error: dict[str, Any] = {"error": {"message": draw(st.sampled_from(("declined", "declined", "timeout")))}}
    retry = draw(st.sampled_from((0, 1, 1, 2)))
    if retry == 0:
        return failed(**d.about, claim=d.claim, **error)
    target = key(d.run, d.step, d.attempt + retry)
    return failed_with_retry(**d.about, claim=d.claim, retry_runnable_key=target, **error)


def _hostile_pause(draw: st.DrawFn, d: _Draw) -> Fact:
    return step_paused(d.run, d.step, at=d.at, kind=draw(st.sampled_from(("pause", "approval"))))


def _hostile_resolution(draw: st.DrawFn, d: _Draw) -> Fact:
    return step_resolved(d.run, d.step, at=d.at, action=draw(st.sampled_from(("resumed", "approved", "rejected"))))


def _hostile_end(draw: st.DrawFn, d: _Draw) -> Fact:
    status = draw(st.sampled_from(("completed", "failed", "cancelled")))
    return terminal(d.run, at=d.at, status=status, error={"message": "no"} if status == "failed" else None)


def _result(draw: st.DrawFn) -> dict[str, Any]:
    return {"result": draw(st.sampled_from(({"ok": True}, {"ok": True}, {"ok": False}, None)))}


# Attempt facts come most often: they have the most rules.
_HOSTILE: tuple[Callable[[st.DrawFn, _Draw], Fact], ...] = (
    *(_hostile_schedule,) * 4,
    *(_hostile_claim,) * 8,
    *(lambda draw, d: heartbeat(**d.about, claim=d.claim, lease=draw(st.sampled_from((10, 60)))),) * 3,
    *(lambda _, d: released(**d.about, claim=d.claim),) * 2,
    *(lambda draw, d: completed(**d.about, claim=d.claim, **_result(draw)),) * 6,
    *(_hostile_failure,) * 3,
    *(lambda _, d: dead_lettered(**d.about, deliveries=d.attempt),) * 2,
    lambda _, d: wakeup(**d.about),
    lambda _, d: queued(d.run, at=d.at, queue=d.queue),
    lambda _, d: fenced(d.run, at=d.at, queue=d.queue),
    lambda _, d: queue_paused(d.queue, at=d.at),
    lambda _, d: queue_resumed(d.queue, at=d.at),
    lambda _, d: signal(d.run, at=d.at, idempotency_key=d.claim),
    lambda _, d: started(d.run, at=d.at, trigger=None if d.claim == "a" else d.claim),
    *(_hostile_plan,) * 2,
    *(lambda draw, d: applied(d.run, d.step, attempt=d.attempt, at=d.at, **_result(draw)),) * 2,
    lambda _, d: child(d.run, at=d.at, child_run_id=f"child-{d.claim}", child_trigger=d.step),
    _hostile_pause,
    _hostile_resolution,
    _hostile_end,
    lambda _, d: quarantined(d.run, at=d.at, entry_seq=d.attempt),
    lambda _, d: indexed(d.run, at=d.at, workflow=d.step if d.claim == "a" else WORKFLOW, queue=d.queue),
    lambda _, d: cataloged(d.run, at=d.at, workflow=d.step if d.claim == "a" else WORKFLOW, queue=d.queue),
)


@st.composite
def facts(draw: st.DrawFn) -> Fact:
    """Any fact; one in ten with fields that this version does not know."""
    fact = draw(_fact())
    strange = draw(st.sampled_from(({},) * 20 + _STRANGE_FIELDS[:1] + _MISLEADING_FIELDS))
    added = {name: value for name, value in strange.items() if name not in type(fact).model_fields}
    return with_fields(fact, **added) if added else fact


def hostile_histories(max_size: int = 30) -> st.SearchStrategy[list[Fact]]:
    """Any facts, in any order or in the order of their times."""
    shuffled = _lists(facts(), max_size)
    begun = shuffled.map(lambda history: [planned(), scheduled(), planned(run="run-2"), scheduled("run-2"), *history])
    return shuffled | begun | begun.map(lambda history: sorted(history, key=lambda fact: fact.occurred_at))


# --- strategies: plausible histories --------------------------------------------------------------------------------


@dataclass
class _Work:
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
class _Walk:
    """A small world of writers that follow the rules, whose workers crash, sleep and come back too late."""

    draw: st.DrawFn
    now: float = 0
    facts: list[Fact] = field(default_factory=list)
    works: list[_Work] = field(default_factory=list)
    visits: dict[tuple[str, str], int] = field(default_factory=dict)
    tokens: dict[tuple[str, str, int], int] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    claims: int = 0

    def pick(self, works: list[_Work]) -> _Work | None:
        alive = [work for work in works if work.run not in self.ended]
        return self.draw(st.sampled_from(alive)) if alive else None

    def held(self) -> _Work | None:
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
        self.works.append(_Work(run, step, visit, 1, visible, cap))

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
            retry = _Work(work.run, work.step, work.visit, work.attempt + 1, self.now + delay, work.cap)
            self.works.append(retry)
            again = runnable(**retry.about, visible_at=t(retry.visible), max_deliveries=work.cap)
            self.facts.append(planned(again, run=work.run, at=self.now))

    def release(self) -> None:
        if (work := self.held()) is not None and work.claim:
            self.facts.append(released(**work.about, at=self.now, claim=work.claim))
            work.claim, work.lease, work.deliveries = None, 0, work.deliveries - 1

    def dead_letter(self) -> None:
        lost = [w for w in self.works if w.state == "open" and w.claim and w.lease <= self.now]
        work = self.pick([w for w in lost if w.deliveries >= w.cap])
        if work is not None:
            work.state = "dead"
            self.facts.append(dead_lettered(**work.about, at=self.now, deliveries=work.deliveries))

    def come_back_too_late(self) -> None:
        """A worker that lost its claim settles it all the same."""
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
        """Something that changes no attempt."""
        run = self.draw(st.sampled_from(RUNS[:2]))
        choices: list[Fact] = [queue_paused(at=self.now), queue_resumed(at=self.now), signal(run, at=self.now)]
        choices += [] if run in self.ended else [child(run, at=self.now), quarantined(run, at=self.now)]
        choices += [wakeup(**w.about, at=self.now) for w in self.works if w.run == run and run not in self.ended]
        self.facts.append(self.draw(st.sampled_from(choices)))

    def wait(self) -> None:
        self.now += self.draw(st.sampled_from((10, 10, 20, 60)))


_MOVES: tuple[Callable[[_Walk], None], ...] = (
    *(_Walk.plan,) * 3,
    *(_Walk.claim,) * 6,
    *(_Walk.heartbeat,) * 2,
    *(_Walk.complete,) * 3,
    *(_Walk.fail,) * 2,
    _Walk.release,
    *(_Walk.dead_letter,) * 2,
    _Walk.come_back_too_late,
    *(_Walk.apply,) * 2,
    _Walk.ask,
    _Walk.end,
    _Walk.notice,
    *(_Walk.wait,) * 5,
)


@st.composite
def plausible_histories(draw: st.DrawFn, max_size: int = 30) -> list[Fact]:
    """What careful writers do to two runs; only their late workers break a rule."""
    walk = _Walk(draw)
    for run in RUNS[:2]:
        walk.start(run)
    walk.plan()
    for move in draw(_lists(st.sampled_from(_MOVES), max_size)):
        move(walk)
    return walk.facts


@st.composite
def mixed_histories(draw: st.DrawFn, max_size: int = 30) -> list[Fact]:
    """A plausible history with repeats, facts whose clock went back, and hostile facts thrown in."""
    history = list(draw(plausible_histories(max_size=max_size)))
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, len(history)))
        again = history[draw(st.integers(0, len(history) - 1))]
        earlier = with_fields(again, occurred_at=again.occurred_at - timedelta(seconds=20))
        history.insert(place, draw(st.one_of(st.just(again), st.just(earlier), facts())))
    return history


def histories(max_size: int = 30) -> st.SearchStrategy[list[Fact]]:
    """Plausible, hostile and mixed histories: lists of facts in the order in which they are appended."""
    return st.one_of(plausible_histories(max_size), hostile_histories(max_size), mixed_histories(max_size))


# --- strategies: journals -------------------------------------------------------------------------------------------

_THREADS = (
    *(run_thread(run) for run in RUNS),
    *(dispatch_thread(queue) for queue in QUEUES),
    run_index_thread(WORKFLOW),
    CATALOG_THREAD,
)


@st.composite
def _unreadable(draw: st.DrawFn) -> OnThread:
    thread, run = draw(st.sampled_from(_THREADS)), draw(st.sampled_from((*RUNS, None)))
    if thread.startswith(run_thread("")):
        run = thread.removeprefix(run_thread(""))
    if draw(st.booleans()):
        return unknown(thread, run)
    return malformed(thread, run, type_name=draw(st.sampled_from(sorted(FACT_TYPES))))


@st.composite
def journals(draw: st.DrawFn, max_size: int = 30) -> list[Entry]:
    """The entries of a history with unknown and malformed ones among them, as a storage would give them back."""
    items: list[Fact | OnThread] = list(draw(histories(max_size)))
    for _ in range(draw(st.integers(0, 3))):
        items.insert(draw(st.integers(0, len(items))), draw(_unreadable()))
    return entries(items)
