"""A driver program of its own, since one process has one master: `python -m tests.spark.driver`.

The first line on stdin is the order for a session, as JSON; each other line is something to do. What it finds it prints
as lines of JSON.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from pyspark.accumulators import AccumulatorParam
from pyspark.sql import SparkSession

from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.spark.fold import folds
from squid_dagster.spark.fold.run_rows import Row
from squid_dagster.spark.session.session import open_session
from squid_dagster.spark.source.credentials import handed_over
from squid_dagster.spark.source.data_source import read_journal
from squid_dagster.spark.tables.refresh import refresh
from squid_dagster.spark.tables.warehouse import TABLES, Warehouse
from tests.spark.clusters import command_line, digest, parent_of

Ancestors = dict[int, list[tuple[int, str]]]
FoldRows = Callable[[folds.Groups], Iterator[Row]]


def say(**values: Any) -> None:
    """Print one line of JSON for the parent process."""
    print(json.dumps(values), flush=True)


def ancestors() -> list[tuple[int, str]]:
    """Return the processes above this one, nearest first, each with how it was called."""
    processes: list[tuple[int, str]] = []
    pid: int | None = os.getppid()
    while pid:
        processes.append((pid, command_line(pid)))
        pid = parent_of(pid)
    return processes


class _Union(AccumulatorParam[Ancestors]):
    def zero(self, value: Ancestors) -> Ancestors:
        return {}

    def addInPlace(self, value1: Ancestors, value2: Ancestors) -> Ancestors:
        return {**value1, **value2}


def watched(session: SparkSession, trap: Path | None) -> tuple[FoldRows, Callable[[], Ancestors]]:
    """Return the fold of a task's runs, which also records its processes, and a function that returns the record.

    The first task that finds no file `trap` writes its executor's process id to it, and waits to be killed.
    """
    noted, history_rows = session.sparkContext.accumulator({}, _Union()), folds.history_rows
    known: set[int] = set()  # each task has a copy of its own

    def fold(groups: folds.Groups) -> Iterator[Row]:
        if os.getpid() not in known:
            known.add(os.getpid())
            noted.add({os.getpid(): ancestors()})
            if trap is not None and _laid(trap):
                signal.pause()
        return history_rows(groups)

    return fold, lambda: noted.value


def _laid(trap: Path) -> bool:
    if trap.exists():
        return False
    mine = trap.with_suffix(f".{os.getpid()}")
    mine.write_text(str(next(pid for pid, command in ancestors() if "CoarseGrainedExecutorBackend" in command)))
    try:
        os.link(mine, trap)  # whole, and only once
    except FileExistsError:
        return False
    return True


class Driver:
    """A session and a journal, and what can be asked of them."""

    def __init__(self, order: Mapping[str, Any], location: Mapping[str, str]) -> None:
        """Open the session; the location is how executors find the database."""
        self.session = open_session(order["master"], order["settings"])
        self.storage = PostgresStorage(order["url"], order["schema"])
        self.location = location
        self.remote = order["master"].startswith("sc://")

    def look(self) -> None:
        """Read the journal, fold it, and tell what came out and what can be seen of it."""
        schema, upto = self.storage.schema, self.storage.cut()
        frame = read_journal(self.session, self.location, schema=schema, upto=upto, only=folds.COLUMNS, partitions=2)
        units = folds.fold_runs(frame, 2)
        with redirect_stdout(StringIO()) as plans:
            units.explain("extended")
            units.explain("formatted")
        web = None if self.remote else self.session.sparkContext.uiWebUrl
        say(looked={"entries": frame.count(), "units": digest(units), "plans": plans.getvalue(), "web": web})

    def rebuild(self, path: str, trap: str | None = None) -> None:
        """Rebuild all tables, and tell what they say and which processes folded."""
        original = folds.history_rows
        fold, noted = watched(self.session, Path(trap) if trap else None)
        folds.history_rows = fold  # type: ignore[assignment]  # of the same type, but for names
        try:
            warehouse = Warehouse(path)
            done = refresh(self.session, self.storage, self.location, warehouse, full=True)
        finally:
            folds.history_rows = original
        say(rebuilt={"tables": self._tables(warehouse), "rows": done.rows, "folded_in": noted(), "pid": os.getpid()})

    def refresh(self, path: str) -> None:
        """Refresh all tables after what is new, and tell what they say."""
        warehouse = Warehouse(path)
        done = refresh(self.session, self.storage, self.location, warehouse)
        say(refreshed={"tables": self._tables(warehouse), "full": done.full})

    def _tables(self, warehouse: Warehouse) -> dict[str, str]:
        return {table: digest(warehouse.read(self.session, table)) for table in TABLES}


def main() -> None:
    """Run the commands of stdin until it ends."""
    order = json.loads(sys.stdin.readline())
    with handed_over(order["secret_url"]) as location:
        driver = Driver(order, location)
        for line in sys.stdin:
            name, *arguments = line.split()
            getattr(driver, name)(*arguments)
        driver.storage.close()
        driver.session.stop()


if __name__ == "__main__":
    main()
