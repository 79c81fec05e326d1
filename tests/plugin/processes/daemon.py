"""A real Dagster in tests: its processes around the location in `gated_location`, a journal and a ledger.

`Stack` runs the processes; tests kill them, delete their storage, and wait for what follows.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg

from examples import ledger
from examples.stack import Stack
from squid_dagster.api import Squid
from squid_dagster.journal.contract.queries import QueueRow
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.plugin.dispatch.job import RUN_KIND
from squid_dagster.plugin.external.dagster_runs import storage_id
from tests.plugin.processes import gated_location

T = TypeVar("T")


class Deployment:
    """A journal, Dagster's processes that serve it, and the ledger that steps act on."""

    def __init__(self, folder: Path, url: str, schema: str) -> None:
        """Create an empty journal; start nothing."""
        self.gate, self.book = folder / "gate", folder / "ledger.db"
        self.storage = PostgresStorage(url, schema)
        self.storage.upgrade()
        self.squid = Squid(self.storage, list(gated_location.WORKFLOWS))
        environment = {
            "SQUID_DATABASE_URL": url,
            "SQUID_SCHEMA": schema,
            gated_location.GATE: str(self.gate),
            ledger.LEDGER: str(self.book),
        }
        self.stack = Stack(folder / "dagster", "tests.plugin.processes.gated_location", environment)

    def close(self) -> None:
        """End all processes and connections."""
        self.gate.touch()  # steps that wait may end
        self.stack.close()
        self.squid.close()
        self.storage.close()

    # --- the journal -------------------------------------------------------------------------------------

    def flight(self) -> QueueRow | None:
        """Return the row of the default queue; None if it is empty."""
        return next((row for row in self.squid.runtime.queries.queues() if row.queue == "default"), None)

    def open_runs(self) -> int:
        """Count runs that have not ended."""
        rows = self.storage.rows("SELECT count(*) FROM {schema}.runs WHERE terminal_status IS NULL")
        return int(rows[0][0])

    def drains(self) -> dict[str, int]:
        """Return the processes of drain runs that count as alive, by the id of their Dagster run."""
        rows = self.squid.live_workers()
        return {row.details["dagster_run_id"]: row.pid for row in rows if row.kind == RUN_KIND}

    def holder(self, run_id: str, after: str | None = None) -> str | None:
        """Return the Dagster run that holds a claim of this run, unless that is `after`."""
        rows = self.storage.rows(
            "SELECT owner_id FROM {schema}.attempts "
            "WHERE run_id = %s AND status = 'claimed' AND due_at > clock_timestamp()",
            run_id,
        )
        owner = str(rows[0][0]).removeprefix("dagster:") if rows else None
        return None if owner == after else owner

    # --- Dagster -----------------------------------------------------------------------------------------

    def instance_id(self) -> str:
        """Return the id of Dagster's present storage."""
        with self.instance() as instance:
            return storage_id(instance)

    @contextmanager
    def instance(self) -> Iterator[dg.DagsterInstance]:
        """Open Dagster's storage beside the processes."""
        with dg.DagsterInstance.from_config(str(self.stack.home)) as instance:
            yield instance

    def terminate(self, dagster_run_id: str) -> str:
        """Terminate a Dagster run as a click in the UI does; return the type of the answer."""
        query = "mutation($id: String!) {terminateRun(runId: $id, terminatePolicy: SAFE_TERMINATE) {__typename}}"
        answer: dict[str, Any] = self.stack.ask(query, id=dagster_run_id)
        return str(answer["terminateRun"]["__typename"])


def wait_for(condition: Callable[[], T | None], stack: Stack, seconds: float = 90.0) -> T:
    """Wait until a condition returns a value, and return it; fail with Dagster's logs when it never does."""
    ends = time.monotonic() + seconds
    pause = threading.Event()
    while not (value := condition()):
        assert time.monotonic() < ends, f"it never came to that:\n{stack.log('daemon')}\n{stack.log('code')}"
        pause.wait(0.1)
    return value


def is_running(pid: int) -> bool:
    """Return whether a process is there. A zombie is not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
