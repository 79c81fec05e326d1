"""What a campaign leaves behind: the journal, what steps and roles did outside of it, rows, and the servers' logs."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from squid_dagster.journal import PostgresStorage
from squid_dagster.protocol.entries import Entry, StoredFact, by_run
from squid_dagster.protocol.facts import RunStarted
from squid_dagster.testing.invariants import read_all
from tests.chaos import effects
from tests.chaos.workflows import TABLE

Line = dict[str, Any]


class Row(NamedTuple):
    """What a transactional step wrote."""

    key: str
    run_id: str
    n: int


@dataclass(slots=True)
class Run:
    """All facts of one run, by position."""

    run_id: str
    facts: list[StoredFact]

    @property
    def start(self) -> RunStarted | None:
        """How it was started."""
        return next((fact for fact in self.facts if isinstance(fact, RunStarted)), None)

    @property
    def workflow(self) -> str | None:
        """The workflow that it is a run of."""
        return None if self.start is None else self.start.workflow

    @property
    def number(self) -> int:
        """The `n` of its payload; -1 where it has none."""
        number: Any = -1 if self.start is None else self.start.input.get("n", -1)
        return int(number)


@dataclass(frozen=True)
class Evidence:
    """Everything that the checker judges by, read once."""

    planned: Mapping[int, str]  # the runs that were to be started: their workflows by number
    entries: list[Entry]  # the whole journal, by position
    lines: list[Line]  # of the file of effects, in their order
    rows: list[Row]
    server_logs: str = ""

    @cached_property
    def runs(self) -> dict[str, Run]:
        """The runs of the journal, by id."""
        groups = by_run(self.entries)
        return {run_id: Run(run_id, [entry.fact for entry in group]) for run_id, group in groups.items() if run_id}

    def of(self, workflow: str) -> Iterator[Run]:
        """Yield the runs of one workflow."""
        return (run for run in self.runs.values() if run.workflow == workflow)

    def recorded(self, *kinds: str) -> Iterator[Line]:
        """Yield what was recorded outside of the journal, of some kinds, in its order."""
        return (line for line in self.lines if line["kind"] in kinds)

    def write(self, path: Path) -> None:
        """Write the journal into a file, one entry in a line: its server is gone when the findings are looked into."""
        with path.open("w") as file:
            for entry in self.entries:
                fact: Any = entry.fact
                data = fact.model_dump(mode="json") if hasattr(fact, "model_dump") else fact._asdict()
                file.write(json.dumps([entry.position, entry.thread, entry.seq, data], default=str) + "\n")


def gather(storage: PostgresStorage, effects_path: Path, server_logs: str, planned: Mapping[int, str]) -> Evidence:
    """Read everything once, the journal in batches up to a cut."""
    return Evidence(
        planned=planned,
        entries=list(read_all(storage)),
        lines=list(effects.read(effects_path)),
        rows=[Row(*row) for row in storage.rows(f"SELECT key, run_id, n FROM {TABLE}")],
        server_logs=server_logs,
    )
