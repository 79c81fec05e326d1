"""Workflows that the tests of the plugin run. Side effects go to files that a payload names."""

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel

from squid_dagster import Fail, Resource, Retry, StepContext, Workflow


class Number(BaseModel):
    """A number."""

    number: int = 0


quick = Workflow("quick", payload=Number, version="1")


@quick.step
def count(number: int) -> int:
    """Return the next number."""
    return number + 1


talking = Workflow("talking", version="1")


@talking.step
def say(ctx: StepContext) -> str:
    """Log a word, and print it."""
    word = "hello"
    ctx.log.debug("debug %s", word)
    ctx.log.info("info %s", word)
    ctx.log.warning("warning %s", word)
    print(f"printed {word}", flush=True)
    return word


failing = Workflow("failing", version="1")


@failing.step(retry=Retry(max_attempts=2, initial=timedelta(milliseconds=10), jitter=0.0))
def stumble(ctx: StepContext) -> None:
    """Fail, and fail again."""
    if ctx.attempt == 1:
        raise ValueError("the first time")
    raise Fail("the last time")


class Held(BaseModel):
    """The file of the marks of a held step, and the file for which it waits."""

    marks: str
    gate: str


holding = Workflow("holding", payload=Held, version="1")


@holding.step
def hold(ctx: StepContext, marks: str, gate: str) -> str:
    """Append a mark; return when the gate exists, or the attempt is cancelled."""
    with Path(marks).open("a") as file:
        file.write(f"{ctx.fencing_token}\n")
    while not Path(gate).exists() and not ctx.cancelled.wait(0.05):
        pass
    return "held"


class Greeter:
    """A resource of the location."""

    def __init__(self, greeting: str = "hello") -> None:
        """Store the greeting."""
        self.greeting = greeting


greeting = Workflow("greeting", version="1")


@greeting.step
def greet(greeter: Annotated[Any, Resource("greeter")]) -> str:
    """Return the greeting."""
    return str(greeter.greeting)


def wait_until(condition: Any, seconds: float = 60.0) -> None:
    """Wait until a condition holds; fail when it never does."""
    ends = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < ends, "it never came to that"
        pause.wait(0.02)
