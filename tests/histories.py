"""Strategies of whole histories, from the values in them to journals of any kind.

`plausible_histories` are what careful writers do, `hostile_histories` hold any fact at any time, `histories`
are either or a mixture. No fold is used here: what facts mean is for tests to assert.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from hypothesis import strategies as st
from pydantic import JsonValue

from squid_dagster.protocol import (
    CATALOG_THREAD,
    FACT_TYPES,
    Entry,
    Fact,
    dispatch_thread,
    run_index_thread,
    run_thread,
    to_json,
)
from tests.facts import (
    CLAIMS,
    QUEUE,
    QUEUES,
    RUN,
    RUNS,
    STEP,
    STEPS,
    WORKFLOW,
    OnThread,
    applied,
    cataloged,
    child,
    claimed,
    completed,
    dead_lettered,
    entries,
    failed,
    failed_with_retry,
    fence,
    fenced,
    heartbeat,
    indexed,
    key,
    malformed,
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
    unknown,
    wakeup,
    with_fields,
)
from tests.walk import MOVES, Walk

# --- values ---------------------------------------------------------------------------------------------------------

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
    return st.tuples(*parts).map(lambda lists: [element for part in lists for element in part][:max_size])


def json_values() -> st.SearchStrategy[JsonValue]:
    """Generate any JSON value that a fact may hold."""
    leaves = st.one_of(st.none(), st.booleans(), numbers, texts)
    return st.recursive(
        leaves, lambda v: st.one_of(st.lists(v, max_size=3), st.dictionaries(texts, v, max_size=3)), max_leaves=8
    )


def json_objects() -> st.SearchStrategy[dict[str, JsonValue]]:
    """Generate any JSON object that a fact may hold."""
    return st.dictionaries(texts, json_values(), max_size=3)


# --- hostile histories ----------------------------------------------------------------------------------------------

_GRID = tuple(range(0, 130, 10))
_STRANGE_FIELDS: tuple[dict[str, Any], ...] = (
    {"note": {"seen": [1, "x", None]}},
    {"step_hint": "ship"},
    {"child": None},
    {"Ünknown": 10**30},
)
# Names that other facts use, with values of other types: a fold must not mistake them for its own.
_MISLEADING_FIELDS: tuple[dict[str, Any], ...] = ({"runnable_key": 7}, {"step": {"a": 1}}, {"child_run_id": ["x"]})


@st.composite
def _fact(draw: st.DrawFn) -> Fact:
    """Generate any fact at any time about one of a few runs, steps, attempts and claims."""
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
    # At times a key of another run: the fact is about the run that it names all the same.
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
    *(lambda draw, d: released(**d.about, claim=d.claim, counted=draw(st.sampled_from((None, True)))),) * 2,
    *(lambda draw, d: completed(**d.about, claim=d.claim, **_result(draw)),) * 6,
    *(_hostile_failure,) * 3,
    *(lambda _, d: dead_lettered(**d.about, deliveries=d.attempt),) * 2,
    lambda _, d: dead_lettered(**d.about, deliveries=d.attempt, **fence(d.claim)),
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
    """Generate any fact; one in ten with fields that this version does not know."""
    fact = draw(_fact())
    strange = draw(st.sampled_from(({},) * 20 + _STRANGE_FIELDS[:1] + _MISLEADING_FIELDS))
    added = {name: value for name, value in strange.items() if name not in type(fact).model_fields}
    return with_fields(fact, **added) if added else fact


def hostile_histories(max_size: int = 30) -> st.SearchStrategy[list[Fact]]:
    """Generate any facts, in any order or in the order of their times."""
    shuffled = _lists(facts(), max_size)
    begun = shuffled.map(lambda history: [planned(), scheduled(), planned(run="run-2"), scheduled("run-2"), *history])
    return shuffled | begun | begun.map(lambda history: sorted(history, key=lambda fact: fact.occurred_at))


# --- plausible histories --------------------------------------------------------------------------------------------


@st.composite
def plausible_histories(draw: st.DrawFn, max_size: int = 30) -> list[Fact]:
    """Generate what careful writers do to two runs; only their late workers break a rule."""
    walk = Walk(draw)
    for run in RUNS[:2]:
        walk.start(run)
    walk.plan()
    for move in draw(_lists(st.sampled_from(MOVES), max_size)):
        move(walk)
    return walk.facts


@st.composite
def mixed_histories(draw: st.DrawFn, max_size: int = 30) -> list[Fact]:
    """Generate a plausible history with repeats, facts whose clock went back, and hostile facts among them."""
    history = list(draw(plausible_histories(max_size=max_size)))
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, len(history)))
        again = history[draw(st.integers(0, len(history) - 1))]
        earlier = with_fields(again, occurred_at=again.occurred_at - timedelta(seconds=20))
        history.insert(place, draw(st.one_of(st.just(again), st.just(earlier), facts())))
    return history


def histories(max_size: int = 30) -> st.SearchStrategy[list[Fact]]:
    """Generate plausible, hostile and mixed histories: lists of facts in the order in which they are appended."""
    return st.one_of(plausible_histories(max_size), hostile_histories(max_size), mixed_histories(max_size))


# --- journals -------------------------------------------------------------------------------------------------------

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
    """Generate the entries of a history with unknown and malformed ones among them, as a storage returns them."""
    items: list[Fact | OnThread] = list(draw(histories(max_size)))
    for _ in range(draw(st.integers(0, 3))):
        items.insert(draw(st.integers(0, len(items))), draw(_unreadable()))
    return entries(items)


def renamed(fact: Fact, prefix: str) -> Fact:
    """Return the same fact about another run and another queue."""
    text = to_json(fact)
    for name in RUNS:
        text = text.replace(name, f"{prefix}-{name[-1]}")
    for queue in QUEUES:
        text = text.replace(f'"queue":"{queue}"', f'"queue":"{prefix}-{queue}"')
    return type(fact).model_validate_json(text)
