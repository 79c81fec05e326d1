"""Processes that play scenarios, end at a boundary, and go on from there.

Started by `python -m tests.recovery.crash_processes URL SCHEMA NUMBER ...`.

The first process imports everything once and forks for every play, so that a play costs milliseconds. It never connects
to anything itself and has one thread, so that forking is safe. It prints what it finds, one JSON object for each line.
"""

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, NoReturn

from squid_dagster.api import Squid
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.connection.pool import make_engine
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.testing import Boundary, InjectedStorage, Plan, exit_process
from tests.recovery.append_sites import NotingStorage
from tests.recovery.scenario import LATER, RECOVER, Scenario, Scene, clock_at, ends_of, play, work
from tests.recovery.scenarios import SCENARIOS

_FAILED = 70
_told_to = -1  # in a forked process, the pipe to whoever waits for it


class Way(StrEnum):
    """How others go on after a crash. None of them knows where it happened."""

    SPLIT = "recovery first, on a storage that appends to one thread at a time"
    WHOLE = "recovery first, on Postgres"
    WORKERS = "workers first, on a storage that appends to one thread at a time"


def ways(scenario: Scenario) -> set[Way]:
    """Give the ways to go on. What recovery is at work on, no worker sees: there it goes first."""
    return set(Way) - {Way.WORKERS} if RECOVER in scenario.moves else set(Way)


class Case(NamedTuple):
    """One play: a name that all of its names begin with, and its number."""

    name: str
    number: int


def fork(task: Callable[[], Any]) -> tuple[int, Any]:
    """Do something in a process of its own; give its exit code, and what it gave unless it crashed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        global _told_to
        code, _told_to = _FAILED, writing
        try:
            os.close(reading)
            told = json.dumps(task()).encode()
            code = 0
        except BaseException:  # noqa: BLE001  told to whoever waits
            told = json.dumps(traceback.format_exc()).encode()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(told)
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, json.loads(told) if told else None


def end_here(boundary: Boundary) -> NoReturn:
    """End the process at a boundary, for real; its last word is where that is."""
    os.write(_told_to, json.dumps(boundary.label).encode())
    exit_process(boundary)


@dataclass(slots=True)
class Theatre:
    """One scenario on one schema, played as often as it takes."""

    url: str
    schema: str
    scenario: Scenario
    plays: int = 0

    def next_case(self) -> Case:
        """Give a play that was not played yet."""
        self.plays += 1
        return Case(f"c{self.plays:04}", self.plays)

    def open(self, after: timedelta = timedelta(0)) -> tuple[PostgresStorage, VirtualClock]:
        """Open the journal by a clock of its own."""
        clock = clock_at(after)
        return PostgresStorage(self.url, self.schema, clock=clock), clock

    def scene(self, storage: Storage, clock: VirtualClock, case: Case) -> Scene:
        """Give the stage for one play."""
        squid = Squid(
            storage,
            self.scenario.workflows,
            queue=case.name,
            resources={"clock": clock, **self.scenario.resources},
            random_unit=lambda: 0.0,
        )
        return Scene(squid, clock, *case)

    def prepare(self) -> int:
        """Make the schema."""
        return self.open()[0].upgrade()

    def undisturbed(self, case: Case) -> Any:
        """Play it to its end, thread by thread; give all appends of the part that will be interrupted, and the end."""
        storage, clock = self.open()
        noting = NotingStorage(storage)
        play(self.scene(split(storage), clock, case), self.scenario.before)
        play(self.scene(noting, clock, case), self.scenario.moves)
        play(self.scene(split(storage), clock, case), self.scenario.after)
        self.scene(split(storage), clock, case).squid.recover()
        appends = [each.label for each in noting.boundaries]
        return {"appends": appends, "lines": noting.lines, "end": ends_of(storage)[case.name]}

    def whole(self, case: Case, on: str) -> Any:
        """Play it to its end where a commit is one, in memory or on Postgres; give the end."""
        storage: Storage
        storage, clock = self.open()
        if on == "memory":
            storage = MemoryStorage(clock)
        scene = self.scene(storage, clock, case)
        for moves in (self.scenario.before, self.scenario.moves, self.scenario.after):
            play(scene, moves)
        scene.squid.recover()
        return {"end": ends_of(storage)[case.name]}

    def crash(self, case: Case, after: int) -> None:
        """Play it until the append of that number, and end there."""
        storage, clock = self.open()
        play(self.scene(split(storage), clock, case), self.scenario.before)
        ending = InjectedStorage(storage, Plan(crash_after=after, crash=end_here), atomic_across_threads=False)
        play(self.scene(ending, clock, case), self.scenario.moves)

    def go_on(self, cases: list[Case], way: Way) -> Any:
        """Go on after crashes as others would, with one recovery for all of them; give the end of each play.

        `asked` is what somebody had to ask for again, since it was not on record; `left` the runs that a second
        recovery would still look at and change.
        """
        storage, clock = self.open(LATER)
        stage: Storage = storage if way is Way.WHOLE else split(storage)
        scenes = [self.scene(stage, clock, case) for case in cases]
        shared = scenes[0].squid.runtime
        for scene in scenes:  # who knows the journal need not fold it again
            scene.squid.runtime = replace(scene.squid.runtime, dispatch=shared.dispatch, queries=shared.queries)
        if way is Way.WORKERS:
            for scene in scenes:
                work(scene)
        report = scenes[0].squid.recover()
        again = scenes[0].squid.recover()
        left = again.repaired + again.listed
        for scene in scenes:
            play(scene, self.scenario.moves)
            play(scene, self.scenario.after)
        scenes[0].squid.recover()
        ends = ends_of(storage)
        return {
            "left": left,
            "bad": [*report.held, *report.failed],
            "plays": [{"end": ends.get(scene.case), "asked": scene.asked} for scene in scenes],
        }

    def crash_everywhere(self, windows: int, way: Way) -> Iterator[dict[str, Any]]:
        """Crash at each boundary, and go on from all of them.

        A recovery that is interrupted has a journal to itself, or it would repair what another one has left.
        """
        numbers = range(1, windows + 1)
        if RECOVER not in self.scenario.moves:
            yield self.crash_at(numbers, way)
            return
        for number in numbers:
            alone = replace(self, schema=f"{self.schema}_{way.name[0].lower()}{number}")
            fork(alone.prepare)
            yield alone.crash_at([number], way)

    def crash_at(self, numbers: Sequence[int], way: Way) -> dict[str, Any]:
        """Crash after the appends of these numbers, each in a play of its own, and go on from all of them."""
        cases = [self.next_case() for _ in numbers]
        crashes = [fork(partial(self.crash, case, after)) for after, case in zip(numbers, cases, strict=True)]
        code, told = fork(partial(self.go_on, cases, way))
        return {"windows": list(numbers), "crashes": crashes, "code": code, "told": told}


def split(storage: Storage) -> InjectedStorage:
    """Give the storage, one thread at a time."""
    return InjectedStorage(storage, atomic_across_threads=False)


def enumerate_windows(theatre: Theatre, say: Callable[[Any], None]) -> None:
    """Crash one scenario at each of its boundaries, and let others go on in each way."""
    name = theatre.scenario.name
    code, found = fork(theatre.prepare)
    if code == 0:
        code, found = fork(partial(theatre.undisturbed, theatre.next_case()))
    say({"kind": "undisturbed", "scenario": name, "code": code, "told": found})
    if code != 0:
        return
    for on in ("memory", "postgres"):
        code, told = fork(partial(theatre.whole, theatre.next_case(), on))
        say({"kind": "whole", "scenario": name, "on": on, "code": code, "told": told})
    for way in sorted(ways(theatre.scenario)):
        for told in theatre.crash_everywhere(len(found["appends"]), way):
            say({"kind": "crashed", "scenario": name, "way": way, **told})


def main(url: str, schema: str, *numbers: str) -> None:
    """Play the scenarios of these numbers, each on a schema of its own."""
    _warm_up(url, schema)
    gc.freeze()
    for number in numbers:
        enumerate_windows(Theatre(url, f"{schema}_{number}", SCENARIOS[int(number)]), _say)


def _warm_up(url: str, schema: str) -> None:
    """Import and build what is imported and built on first use, so that no play has to; connects to nothing."""
    make_engine(url).dispose()
    theatre = Theatre(url, schema, SCENARIOS[0])
    theatre.whole(theatre.next_case(), "memory")


def _say(found: Any) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
