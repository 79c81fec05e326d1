"""What `crash_processes` prints, collected from its processes: one answer for each window, in each way to continue."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from squid_dagster.testing import CRASH_EXIT_CODE
from tests.processes import Child, children
from tests.recovery.append_sites import Line
from tests.recovery.crash_processes import Way, ways
from tests.recovery.scenarios import SCENARIOS

PROCESSES = max(2, min(4, os.cpu_count() or 2))


class Window(NamedTuple):
    """A place where a process ended: right after one append of a scenario, before the next one or before its answer."""

    scenario: str
    number: int
    after: str
    before: str | None

    def __str__(self) -> str:
        """Return the place."""
        return f"{self.scenario}, window {self.number}: {self.after} | {self.before or 'the answer'}"


class Undisturbed(NamedTuple):
    """A scenario without a crash: its appends, the lines of the library that led to them, and its end."""

    appends: list[str]
    lines: list[list[Line]]
    end: dict[str, Any]


@dataclass(slots=True)
class Enumeration:
    """The result of all plays. `wrong` lists for each window what was not as it should be, by the way to continue."""

    undisturbed: dict[str, Undisturbed] = field(default_factory=dict)
    ends_of_whole: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    wrong: dict[Window, list[str]] = field(default_factory=dict)
    ways: dict[Window, set[Way]] = field(default_factory=dict)
    asked_again: dict[Window, set[str]] = field(default_factory=dict)
    left_by_recovery: list[str] = field(default_factory=list)

    @property
    def covered(self) -> list[Window]:
        """The windows from which every way leads to the end of the scenario."""
        wanted = {scenario.name: ways(scenario) for scenario in SCENARIOS}
        return [
            window for window, wrong in self.wrong.items() if not wrong and self.ways[window] == wanted[window.scenario]
        ]

    def take(self, message: dict[str, Any]) -> None:
        """Add one message of a process."""
        name, result = message["scenario"], message["result"]
        assert message["code"] == 0, f"{name}, {message.get('way', message['kind'])}: {result}"
        match message["kind"]:
            case "undisturbed":
                lines = [[Line(*line) for line in lines] for lines in result["lines"]]
                self.undisturbed[name] = Undisturbed(result["appends"], lines, result["end"])
                for window in self._windows(name):
                    self.wrong[window], self.ways[window], self.asked_again[window] = [], set(), set()
            case "whole":
                self.ends_of_whole[name, message["on"]] = result["end"]
            case "crashed":
                self._take_crashes(message)

    def _windows(self, name: str) -> Iterator[Window]:
        appends: list[str | None] = [*self.undisturbed[name].appends, None]
        for number, after in enumerate(appends[:-1], 1):
            yield Window(name, number, after or "", appends[number])

    def _take_crashes(self, message: dict[str, Any]) -> None:
        name, way, result = message["scenario"], Way(message["way"]), message["result"]
        if result["left"] or result["bad"]:
            self.left_by_recovery.append(f"{name}, {way}: {result['left']} repairs left, {result['bad']} refused")
        expected, windows = self.undisturbed[name].end, list(self._windows(name))
        for number, (code, ended), play in zip(message["windows"], message["crashes"], result["plays"], strict=True):
            window = windows[number - 1]
            self.asked_again[window] |= set(play["asked"])
            self.ways[window].add(way)
            # Who comes first in a recovery depends on the runs' ids, which differ from play to play.
            if code != CRASH_EXIT_CODE or ended not in self.undisturbed[name].appends:
                self.wrong[window].append(f"{way}: it did not end there, but with {code}: {ended}")
            elif play["end"] != expected:
                self.wrong[window].append(f"{way}: {difference(expected, play['end'])}")


def difference(expected: Any, actual: Any, path: str = "") -> str:
    """Describe where two ends differ, each place once."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        keys = sorted({*expected, *actual})
        differences = [
            difference(expected.get(key), actual.get(key), f"{path}.{key}" if path else key)
            for key in keys
            if expected.get(key) != actual.get(key)
        ]
        return "; ".join(differences)
    return f"{path} should be {json.dumps(expected):.300} and is {json.dumps(actual):.300}"


def enumerate_all(url: str, schema: str) -> Enumeration:
    """Run all scenarios in some processes at once; return what they print."""
    enumeration = Enumeration()
    with children() as started:
        for place in range(PROCESSES):
            numbers = [str(number) for number in range(place, len(SCENARIOS), PROCESSES)]
            started.append(Child("tests.recovery.crash_processes", url, f"{schema}_{place}", *numbers))
        for child in started:
            code = child.end(timeout=900)
            assert code == 0, child.errors()
            for line in child.lines:
                enumeration.take(json.loads(line))
    assert len(enumeration.undisturbed) == len(SCENARIOS), "a scenario was not played"
    return enumeration
