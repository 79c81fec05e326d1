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
from tests.recovery.append_sites import RecordingStorage
from tests.recovery.scenario import LATER, RECOVER, Client, Scenario, clock_at, ends_of, play, work
from tests.recovery.scenarios import SCENARIOS

_FAILED = 70
_result_pipe = -1  # in a forked process, the pipe to the process that waits for it


class Way(StrEnum):
    """How other processes continue after a crash. None of them knows where it happened."""

    SPLIT = "recovery first, on a storage that appends to one thread at a time"
    WHOLE = "recovery first, on Postgres"
    WORKERS = "workers first, on a storage that appends to one thread at a time"


def ways(scenario: Scenario) -> set[Way]:
    """Return the ways to continue. An interrupted recovery is continued by a recovery: workers do not see its work."""
    return set(Way) - {Way.WORKERS} if RECOVER in scenario.moves else set(Way)


class Case(NamedTuple):
    """One play: a name that all of its names begin with, and its number."""

    name: str
    number: int


def fork(task: Callable[[], Any]) -> tuple[int, Any]:
    """Run a task in a forked process; return its exit code, and its result unless it crashed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        global _result_pipe
        code, _result_pipe = _FAILED, writing
        try:
            os.close(reading)
            answer = json.dumps(task()).encode()
            code = 0
        except BaseException:  # noqa: BLE001  reported to the waiting process
            answer = json.dumps(traceback.format_exc()).encode()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(answer)
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, json.loads(answer) if answer else None


def end_here(boundary: Boundary) -> NoReturn:
    """End the process at a boundary by `os._exit`, after writing where that is."""
    os.write(_result_pipe, json.dumps(boundary.label).encode())
    exit_process(boundary)


@dataclass(slots=True)
class ScenarioPlayer:
    """One scenario on one schema, with a new case for each play."""

    url: str
    schema: str
    scenario: Scenario
    plays: int = 0

    def next_case(self) -> Case:
        """Return a case that was not played yet."""
        self.plays += 1
        return Case(f"c{self.plays:04}", self.plays)

    def open(self, after: timedelta = timedelta(0)) -> tuple[PostgresStorage, VirtualClock]:
        """Open the journal by a clock of its own."""
        clock = clock_at(after)
        return PostgresStorage(self.url, self.schema, clock=clock), clock

    def client(self, storage: Storage, clock: VirtualClock, case: Case) -> Client:
        """Return the client of one play."""
        squid = Squid(
            storage,
            self.scenario.workflows,
            queue=case.name,
            resources={"clock": clock, **self.scenario.resources},
            random_unit=lambda: 0.0,
        )
        return Client(squid, clock, *case)

    def prepare(self) -> int:
        """Create the schema."""
        return self.open()[0].upgrade()

    def undisturbed(self, case: Case) -> Any:
        """Run it to its end, thread by thread; return all appends of the part that will be interrupted, and the end."""
        storage, clock = self.open()
        recording = RecordingStorage(storage)
        play(self.client(split(storage), clock, case), self.scenario.before)
        play(self.client(recording, clock, case), self.scenario.moves)
        play(self.client(split(storage), clock, case), self.scenario.after)
        self.client(split(storage), clock, case).squid.recover()
        appends = [boundary.label for boundary in recording.boundaries]
        return {"appends": appends, "lines": recording.lines, "end": ends_of(storage)[case.name]}

    def whole(self, case: Case, on: str) -> Any:
        """Run it to its end where a commit spans threads, in memory or on Postgres; return the end."""
        storage: Storage
        storage, clock = self.open()
        if on == "memory":
            storage = MemoryStorage(clock)
        client = self.client(storage, clock, case)
        for moves in (self.scenario.before, self.scenario.moves, self.scenario.after):
            play(client, moves)
        client.squid.recover()
        return {"end": ends_of(storage)[case.name]}

    def crash(self, case: Case, after: int) -> None:
        """Run it until the append of that number, and end the process there."""
        storage, clock = self.open()
        play(self.client(split(storage), clock, case), self.scenario.before)
        ending = InjectedStorage(storage, Plan(crash_after=after, crash=end_here), atomic_across_threads=False)
        play(self.client(ending, clock, case), self.scenario.moves)

    def go_on(self, cases: list[Case], way: Way) -> Any:
        """Run the clients that continue after crashes, with one recovery for all of them; return the end of each play.

        `asked` lists what had to be asked for again, since it was not on record; `left` counts the runs that a second
        recovery would still look at and change.
        """
        storage, clock = self.open(LATER)
        journal: Storage = storage if way is Way.WHOLE else split(storage)
        clients = [self.client(journal, clock, case) for case in cases]
        shared = clients[0].squid.runtime
        for client in clients:  # the stores of the first client have folded the journal already
            client.squid.runtime = replace(client.squid.runtime, dispatch=shared.dispatch, queries=shared.queries)
        if way is Way.WORKERS:
            for client in clients:
                work(client)
        report = clients[0].squid.recover()
        again = clients[0].squid.recover()
        left = again.repaired + again.listed
        for client in clients:
            play(client, self.scenario.moves)
            play(client, self.scenario.after)
        clients[0].squid.recover()
        ends = ends_of(storage)
        return {
            "left": left,
            "bad": [*report.held, *report.failed],
            "plays": [{"end": ends.get(client.case), "asked": client.asked} for client in clients],
        }

    def crash_everywhere(self, windows: int, way: Way) -> Iterator[dict[str, Any]]:
        """Crash at each boundary, and continue from all of them.

        A recovery that is interrupted has a journal of its own, or it would repair what another play has left.
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
        """Crash after the appends of these numbers, each in a play of its own, and continue from all of them."""
        cases = [self.next_case() for _ in numbers]
        crashes = [fork(partial(self.crash, case, after)) for after, case in zip(numbers, cases, strict=True)]
        code, result = fork(partial(self.go_on, cases, way))
        return {"windows": list(numbers), "crashes": crashes, "code": code, "result": result}


def split(storage: Storage) -> InjectedStorage:
    """Wrap the storage so that it appends to one thread at a time."""
    return InjectedStorage(storage, atomic_across_threads=False)


def enumerate_windows(player: ScenarioPlayer, say: Callable[[Any], None]) -> None:
    """Crash one scenario at each of its boundaries, and continue in each way."""
    name = player.scenario.name
    code, answer = fork(player.prepare)
    if code == 0:
        code, answer = fork(partial(player.undisturbed, player.next_case()))
    say({"kind": "undisturbed", "scenario": name, "code": code, "result": answer})
    if code != 0:
        return
    for on in ("memory", "postgres"):
        code, result = fork(partial(player.whole, player.next_case(), on))
        say({"kind": "whole", "scenario": name, "on": on, "code": code, "result": result})
    for way in sorted(ways(player.scenario)):
        for result in player.crash_everywhere(len(answer["appends"]), way):
            say({"kind": "crashed", "scenario": name, "way": way, **result})


def main(url: str, schema: str, *numbers: str) -> None:
    """Run the scenarios of these numbers, each on a schema of its own."""
    _warm_up(url, schema)
    gc.freeze()
    for number in numbers:
        enumerate_windows(ScenarioPlayer(url, f"{schema}_{number}", SCENARIOS[int(number)]), _say)


def _warm_up(url: str, schema: str) -> None:
    """Import and build what is imported and built on first use, so that no play has to; connect to nothing."""
    make_engine(url).dispose()
    player = ScenarioPlayer(url, schema, SCENARIOS[0])
    player.whole(player.next_case(), "memory")


def _say(message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
