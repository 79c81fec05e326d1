"""What code of schema version 5 sends: starts, claims and ends of runs, by the signatures of that version.

It knows nothing of later code, and does what that code did when the database told it to begin again.
"""

import json
import threading
from collections.abc import Callable
from typing import Any, TypeVar
from uuid import uuid4

import psycopg
from psycopg import sql

T = TypeVar("T")

_START = """SELECT start_runs(%s::uuid, %s::text, clock_timestamp(), true, %s::text[], 1, 2, %s::json, %s::json,
    %s::json)"""
_CLAIM = "SELECT claim_attempts(%s::uuid, %s, %s, '1 minute', %s::text[], %s::text[], NULL, NULL)"
_END = "SELECT end_runs(%s::uuid, %s::text[], %s::json, %s::json, 'end', NULL)"
_LOCK = "SELECT lock_units(30000, %s::text[], '{}', '{}', '{}', '{}', '{}')"
_APPEND = """SELECT append_entries(%s::uuid, %s::text[], '{NULL}', '{2}', %s::json, NULL, NULL, NULL, NULL, NULL,
    NULL)"""


class Worker(threading.Thread):
    """Starts runs on a queue, claims them, ends them, and appends to a thread of its own, until told to stop."""

    def __init__(self, url: str, schema: str, queue: str) -> None:
        """Connect."""
        super().__init__(daemon=True)
        self.queue, self.ended, self.appended, self.again = queue, list[str](), 0, 0
        self.states: list[str] = []  # of errors that are no reason to begin again
        self._stop_it = threading.Event()
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=None)
        self._connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))

    def run(self) -> None:
        """Work."""
        try:
            while not self._stop_it.is_set():
                self._work()
        except psycopg.Error as error:
            self.states.append(f"{error.sqlstate}: {error}")
        finally:
            self._connection.close()

    def stop(self) -> None:
        """Wait until the work at hand is done."""
        self._stop_it.set()
        self.join(60)

    def _work(self) -> None:
        run_id, commit = f"run-{uuid4().hex}", uuid4()
        self._persistently(lambda: self._start(run_id, commit))
        claim, commit = uuid4().hex, uuid4()
        claimed = self._persistently(lambda: self._one(_CLAIM, commit, self.queue, "old", [claim], [claim]))
        (row,) = claimed["claimed"]
        commit = uuid4()
        about = [[row["runnable_key"], claim, claim, self.queue]]
        outcome = [[{"queue": self.queue, "runnable_key": row["runnable_key"], "claim_id": claim, "result": {}}, None]]
        ended = self._persistently(
            lambda: self._one(_END, commit, [row["run_id"]], json.dumps(about), json.dumps(outcome))
        )
        assert ended["ended"] == [1]
        self.ended.append(row["run_id"])
        commit = uuid4()
        self._persistently(lambda: self._append(commit))
        self.appended += 2

    def _start(self, run_id: str, commit: object) -> None:
        row = {"run_id": run_id, "position": -1, "status": "running", "queue": self.queue, "start_digest": "x"}
        flags = dict.fromkeys(("fenced", "quarantined", "unfenced", "has_children"), False)
        attempt = {
            "run_id": run_id,
            "runnable_key": "step#1",
            "idempotency_key": "step",
            "attempt_number": 1,
            "queue": self.queue,
            "definition": "d",
            "rank": 0,
            "due_at": "2026-01-01T00:00:00Z",
            "last_at": "2026-01-01T00:00:00Z",
            "position": -1,
            "status": "available",
            "deliveries": 0,
            "max_deliveries": 5,
            "fencing_token": 0,
            "planned_digest": "x",
        }
        facts: list[dict[str, Any]] = [{"type": "attempt_scheduled", "run_id": run_id, "data": {}}]
        facts += [{"k": k, "type": "run_started", "run_id": run_id, "data": {}} for k in (1, 2)]
        rows = json.dumps([{**row, **flags, "planned_visits": 1, "applied_visits": 0}])
        self._one(_START, commit, self.queue, [run_id], json.dumps(facts), rows, json.dumps([attempt]))

    def _append(self, commit: object) -> None:
        thread, about = f"squid:run:own-{self.queue}", f"own-{self.queue}"
        facts: list[dict[str, Any]] = [
            {"ord": k, "t": 1, "k": k, "type": "x", "run_id": about, "at": "2026-01-01T00:00:00Z", "data": {}}
            for k in (1, 2)
        ]
        with self._connection.transaction():
            self._one(_LOCK, [about])
            self._one(_APPEND, commit, [thread], json.dumps(facts))

    def _one(self, text: Any, *values: object) -> Any:
        row = self._connection.execute(text, values).fetchone()
        return None if row is None else row[0]

    def _persistently(self, attempt: Callable[[], T]) -> T:
        for _ in range(20):
            try:
                return attempt()
            except psycopg.Error as error:
                if error.sqlstate != "SQ002":
                    raise
                self.again += 1
        raise AssertionError("told to begin again twenty times")
