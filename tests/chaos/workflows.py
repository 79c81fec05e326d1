"""The workflows of chaos: every shape that the runtime knows, and steps that hurt their own process.

How each run must end follows from its payload alone (`expectations`), whatever faults come in between.
"""

import os
import time
from datetime import timedelta
from pathlib import Path

import sqlalchemy
from pydantic import BaseModel

from squid_dagster import Defer, Fail, Retry, StepContext, Workflow, path
from tests.chaos.effects import FIRST_SAFE_DESCRIPTOR, VARIABLE, prepare, record

prepare()

CRASH_CODE = 86
ROUNDS = 4
SIBLINGS = 4
CHILDREN = 2
RETRY = Retry(max_attempts=4, initial=timedelta(milliseconds=50), jitter=0.5)


class Numbered(BaseModel):
    """The payload of every workflow here."""

    n: int


def acted(ctx: StepContext, kind: str = "step") -> None:
    """Record that a step was called."""
    record(
        kind,
        run=ctx.run_id,
        workflow=ctx.workflow,
        step=ctx.step,
        key=ctx.idempotency_key,
        attempt=ctx.attempt,
        token=ctx.fencing_token,
    )


# --- a chain ---

chain = Workflow("chain", payload=Numbered)


@chain.step
def first(ctx: StepContext, n: int) -> int:
    acted(ctx)
    return n + 1


@chain.step
def second(ctx: StepContext, first: int) -> int:
    acted(ctx)
    return first + 1


@chain.step
def third(ctx: StepContext, second: int) -> int:
    acted(ctx)
    return second + 1


# --- fan-out and join ---

fan = Workflow("fan", payload=Numbered)


def _sibling(place: int) -> None:
    def sibling(ctx: StepContext, n: int) -> int:
        acted(ctx)
        return n + place

    fan.step(name=f"sibling_{place}", output=f"part_{place}")(sibling)


for _place in range(SIBLINGS):
    _sibling(_place)


@fan.step
def total(ctx: StepContext, part_0: int, part_1: int, part_2: int, part_3: int) -> int:
    acted(ctx)
    return part_0 + part_1 + part_2 + part_3


# --- a loop ---

loop = Workflow("loop", payload=Numbered)


@loop.step(output="rounds", max_visits=ROUNDS + 1)
def turn(ctx: StepContext) -> int:
    acted(ctx)
    return int(ctx.state.get("rounds") or 0) + 1  # type: ignore[arg-type]


@loop.step
def leave(ctx: StepContext, rounds: int) -> int:
    acted(ctx)
    return rounds


loop.route(turn, to=turn, when=path("rounds") < ROUNDS)
loop.route(turn, to=leave)
loop.route(leave, to="complete")


# --- retries, deferrals, waits, error routes ---

retried = Workflow("retried", payload=Numbered)


@retried.step(retry=RETRY)
def stumble(ctx: StepContext, n: int) -> int:
    acted(ctx)
    if ctx.attempt < 3:
        raise RuntimeError(f"attempt {ctx.attempt} of {n}")
    if n % 5 == 0 and ctx.fencing_token % 2:
        raise Defer("not yet", after=timedelta(milliseconds=100))
    return n


failing = Workflow("failing", payload=Numbered)


@failing.step
def refuse(ctx: StepContext, n: int) -> int:
    acted(ctx)
    raise Fail(f"{n} is refused")


routed = Workflow("routed", payload=Numbered)


@routed.step(output="odd")
def look(ctx: StepContext, n: int) -> bool:
    acted(ctx)
    if n % 3 == 0:
        raise Fail("divisible by three")
    return n % 2 == 1


@routed.step
def even_way(ctx: StepContext) -> str:
    acted(ctx)
    return "even"


@routed.step
def odd_way(ctx: StepContext) -> str:
    acted(ctx)
    return "odd"


@routed.step
def error_way(ctx: StepContext) -> str:
    acted(ctx)
    return "error"


routed.wait("rest", timedelta(milliseconds=200))
routed.route(look, to="rest", when=path("odd") == True)  # noqa: E712  a condition is data
routed.route(look, to=even_way)
routed.route(look, on="error", to=error_way)
routed.route("rest", to=odd_way)
for _end in (even_way, odd_way, error_way):
    routed.route(_end, to="complete")


# --- people ---

reviewed = Workflow("reviewed", payload=Numbered)


@reviewed.step(output="asked")
def ask(ctx: StepContext, n: int) -> int:
    acted(ctx)
    return n


@reviewed.step
def go_on(ctx: StepContext) -> str:
    acted(ctx)
    return "approved"


reviewed.approval("review")
reviewed.route(ask, to="review")
reviewed.route("review", to=go_on)
reviewed.route("review", on="error", to="fail")
reviewed.route(go_on, to="complete")

endless = Workflow("endless", payload=Numbered)  # the operator cancels it
endless.wait("a_day", timedelta(days=1))
endless.route("a_day", to="complete")


# --- children ---

parent = Workflow("parent", payload=Numbered)


@parent.step
def spawn(ctx: StepContext, n: int) -> list[str]:
    acted(ctx)
    return [ctx.start_child_run("chain", {"n": n}, child_key=f"child-{i}").run_id for i in range(CHILDREN)]


# --- sagas ---

saga = Workflow("saga", payload=Numbered)


def undo_flight(ctx: StepContext, flight: str) -> None:
    acted(ctx, "undo")


def undo_hotel(ctx: StepContext, hotel: str) -> None:
    acted(ctx, "undo")


@saga.step(output="flight", compensate=undo_flight)
def book_flight(ctx: StepContext, n: int) -> str:
    acted(ctx)
    return f"flight-{n}"


@saga.step(output="hotel", compensate=undo_hotel)
def book_hotel(ctx: StepContext, flight: str) -> str:
    acted(ctx)
    return f"hotel for {flight}"


@saga.step(retry=RETRY)
def pay(ctx: StepContext, n: int, hotel: str) -> str:
    acted(ctx)
    if n % 2:
        raise Fail("no money")
    return "paid"


# --- transactional and isolated steps ---

booked = Workflow("booked", payload=Numbered)
TABLE = "public.chaos_rows"


@booked.step(transactional=True)
def enter(ctx: StepContext, connection: sqlalchemy.Connection, n: int) -> int:
    acted(ctx)
    row = {"key": ctx.idempotency_key, "run": ctx.run_id, "n": n}
    connection.execute(sqlalchemy.text(f"INSERT INTO {TABLE} (key, run_id, n) VALUES (:key, :run, :n)"), row)
    return n


@booked.step
def after_entry(ctx: StepContext, enter: int) -> int:
    acted(ctx)
    return enter


isolated = Workflow("isolated", payload=Numbered)


@isolated.step(isolate=True, retry=RETRY)
def alone(n: int) -> int:
    if n % 2 and _first_time(f"isolated-{n}"):
        os.abort()
    return n


def _first_time(name: str) -> bool:
    """Return whether this is the first call with that name, in any process."""
    try:
        (Path(os.environ[VARIABLE]).parent / name).mkdir()  # no descriptor that another step could close
    except FileExistsError:
        return False
    return True


# --- a step that hangs ---

hanging = Workflow("hanging", payload=Numbered)  # the operator cancels it once it hangs
DEAF_SECONDS = 4.0


@hanging.step
def hang(ctx: StepContext, n: int) -> int:
    """Wait for the cancellation, then ignore it for some seconds: however it ends, it has no result."""
    acted(ctx)
    while not ctx.cancelled:
        time.sleep(0.05)
    time.sleep(DEAF_SECONDS)
    raise Defer("it was told to stop", after=timedelta(0))


# --- steps that hurt their process ---

slow = Workflow("slow", payload=Numbered)


@slow.step
def dawdle(ctx: StepContext, n: int) -> int:
    acted(ctx)
    time.sleep(1.0 + n % 3)  # the step itself: long enough that faults come in the middle of it
    return n


crashing = Workflow("crashing", payload=Numbered)


@crashing.step
def crash_once(ctx: StepContext, n: int) -> int:
    acted(ctx)
    if _first_time(f"crashing-{n}"):
        record("crash", run=ctx.run_id)
        os._exit(CRASH_CODE)
    return n


poison = Workflow("poison", payload=Numbered)  # becomes a dead letter, which the operator cancels


@poison.step(max_deliveries=2)
def always_crash(ctx: StepContext, n: int) -> int:
    acted(ctx)
    record("crash", run=ctx.run_id)
    os.abort()


forking = Workflow("forking", payload=Numbered)


@forking.step
def fork(ctx: StepContext, n: int) -> str:
    acted(ctx)
    child = os.fork()
    if child == 0:
        return "child"  # on purpose: the child returns from the step, and must do nothing with the result
    os.waitpid(child, 0)
    return "parent"


closing = Workflow("closing", payload=Numbered)


@closing.step
def close_descriptors(ctx: StepContext, n: int) -> int:
    acted(ctx)
    record("closed", run=ctx.run_id)
    if _first_time(f"closing-{n}"):
        os.closerange(3, FIRST_SAFE_DESCRIPTOR)
    return n


WORKFLOWS = [
    *(chain, fan, loop, retried, failing, routed, reviewed, endless, parent, saga, booked, isolated, slow),
    *(hanging, crashing, poison, forking, closing),
]
