"""Plays scenarios in processes that end at a boundary, and on from there: `python -m tests.recovery.crashing ...`.

It imports everything once and forks for every play, so that a play costs milliseconds. It never connects to anything
itself, and has one thread, so that forking is safe. What it finds goes to stdout, one JSON object for each line.
"""

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Any

from squid_dagster.api import Squid
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.connection import make_engine
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.journal.storage import Storage
from tests.recovery.scenarios import SCENARIOS
from tests.recovery.splitting import CRASHED, SplitStorage
from tests.recovery.stage import LATER, Scenario, Scene, clock_at, end_of, play, work

_FAILED = 70


class Way(StrEnum):
    """How others go on after a crash. None of them knows where it happened."""

    SPLIT = "recovery first, on a storage that appends to one thread at a time"
    WHOLE = "recovery first, on Postgres"
    WORKERS = "workers first, on a storage that appends to one thread at a time"
    WORKERS_WHOLE = "workers first, on Postgres"


def fork(play_it: Callable[[], Any]) -> tuple[int, Any]:
    """Do something in a process of its own; give its exit code, and what it gave unless it crashed."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = _FAILED
        try:
            os.close(reading)
            told = json.dumps(play_it()).encode()
            code = 0
        except BaseException:
            told = json.dumps(traceback.format_exc()).encode()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(told)
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, json.loads(told) if told else None


class Theatre:
    """One scenario on one schema, played as often as it takes."""

    def __init__(self, url: str, schema: str, scenario: Scenario) -> None:
        """Nothing is connected yet."""
        self._url, self._schema, self._scenario = url, schema, scenario
        self._plays = 0

    def next_case(self) -> tuple[str, int]:
        """Give a name and a number that no other play has."""
        self._plays += 1
        return f"c{self._plays:04}", self._plays

    def open(self, after: timedelta = timedelta(0)) -> PostgresStorage:
        """Open the journal by a clock of its own."""
        return PostgresStorage(self._url, self._schema, clock=clock_at(after))

    def scene(self, storage: Storage, clock: Any, case: str, number: int) -> Scene:
        """Give the stage for one play."""
        scenario = self._scenario
        squid = Squid(
            storage, scenario.workflows, queue=case, resources=scenario.resources, random_unit=lambda: 0.0
        )
        return Scene(squid, clock, case, number)

    def prepare(self) -> None:
        """Make the schema."""
        storage = self.open()
        storage.upgrade()
        storage.close()

    def undisturbed(self, case: str, number: int, below: Storage | None = None, *, split: bool = True) -> Any:
        """Play it to its end; give all appends of the part that will be interrupted, and the end."""
        storage = below or self.open()
        clock = getattr(storage, "clock", None) or getattr(storage, "_clock", None)
        noted = SplitStorage(storage)
        stage = noted if split else storage
        play(self.scene(SplitStorage(storage) if split else storage, clock, case, number), self._scenario.before)
        play(self.scene(stage, clock, case, number), self._scenario.moves)
        play(self.scene(SplitStorage(storage) if split else storage, clock, case, number), self._scenario.after)
        self.scene(storage, clock, case, number).squid.recover()
        return {"appends": noted.noted, "end": end_of(storage, case)}

    def crash(self, case: str, number: int, after: int) -> None:
        """Play it until the append of that number, and end there."""
        storage = self.open()
        play(self.scene(SplitStorage(storage), storage.clock, case, number), self._scenario.before)
        play(self.scene(SplitStorage(storage, end_after=after), storage.clock, case, number), self._scenario.moves)

    def go_on(self, case: str, number: int, way: Way) -> Any:
        """Play on after a crash, as others would; give the end, and what they had to ask for again."""
        storage = self.open(LATER)
        split = way in (Way.SPLIT, Way.WORKERS)
        scene = self.scene(SplitStorage(storage) if split else storage, storage.clock, case, number)
        if way in (Way.WORKERS, Way.WORKERS_WHOLE):
            work(scene)
        first = scene.squid.recover()
        second = scene.squid.recover()
        play(scene, self._scenario.moves)
        play(scene, self._scenario.after)
        scene.squid.recover()
        return {
            "end": end_of(storage, case),
            "asked": scene.asked,
            "recovered": str(first),
            "bad": [*first.held, *first.failed],
            "left": second.repaired,
        }


def enumerate_windows(url: str, schema: str, scenario: Scenario, say: Callable[[Any], None]) -> None:
    """Crash one scenario at each of its boundaries, and let others go on in each way."""
    theatre = Theatre(url, schema, scenario)
    for step in (theatre.prepare, lambda: theatre.undisturbed(*theatre.next_case())):
        code, found = fork(step)
        if code != 0:
            say({"scenario": scenario.name, "error": found})
            return
        theatre.next_case()
    say({"scenario": scenario.name, **found})
    for below in ("memory", "postgres"):
        case, number = theatre.next_case()
        code, other = fork(lambda: theatre.undisturbed(case, number, _storage(theatre, below), split=False))
        say({"scenario": scenario.name, "whole on": below, "code": code, "end": other if code else other["end"]})
    for after in range(1, len(found["appends"]) + 1):
        for way in Way:
            case, number = theatre.next_case()
            crashed, told = fork(lambda: theatre.crash(case, number, after))
            window: dict[str, Any] = {"scenario": scenario.name, "window": after, "way": way.value, "crashed": crashed}
            if crashed == CRASHED:
                code, told = fork(lambda: theatre.go_on(case, number, way))
                window["code"] = code
            say({**window, "told": told})


def _storage(theatre: Theatre, below: str) -> Storage:
    return MemoryStorage(clock_at()) if below == "memory" else theatre.open()


def main(url: str, schema: str, *numbers: str) -> None:
    """Play the scenarios of these numbers, each on a schema of its own."""
    _warm_up(url, schema)
    gc.freeze()
    for number in numbers:
        enumerate_windows(url, f"{schema}_{number}", SCENARIOS[int(number)], _say)


def _warm_up(url: str, schema: str) -> None:
    """Import and build what is imported and built on first use, so that no play has to; connects to nothing."""
    scenario = SCENARIOS[0]
    theatre = Theatre(url, schema, scenario)
    make_engine(url).dispose()
    theatre.undisturbed("warm", 0, MemoryStorage(clock_at()), split=False)


def _say(found: Any) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
