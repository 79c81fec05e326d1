"""What code of schema version 5 sends: starts, claims and ends of runs, by the signatures of that version.

It knows nothing of later code, and repeats a transaction after the same errors as that code did.
"""

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import uuid4

import psycopg
from psycopg import sql

T = TypeVar("T")

_START = """SELECT start_runs(%s::uuid, %s::text, clock_timestamp(), true, %s::text[], 1, 2, %s::json, %s::json,
    %s::json)"""
_CLAIM = "SELECT claim_attempts(%s::uuid, %s, 'old', '1 minute', %s::text[], %s::text[], NULL, NULL)"
_END = "SELECT end_runs(%s::uuid, %s::text[], %s::json, %s::json, 'end', NULL)"
_LOCK = "SELECT lock_units(30000, %s::text[], '{}', '{}', '{}', '{}', '{}')"
_APPEND = """SELECT append_entries(%s::uuid, %s::text[], %s::bigint[], %s::int[], %s::json, NULL, NULL, NULL, NULL,
    NULL, NULL)"""
_LONG_AGO = "2026-01-01T00:00:00Z"
KEY = "step#1"


def start_arguments(run_ids: Sequence[str], queue: str, commit: object = None) -> tuple[Any, tuple[object, ...]]:
    """Return the statement that starts runs, with one attempt each: three facts of each run."""
    flags = dict.fromkeys(("fenced", "quarantined", "unfenced", "has_children"), False)
    row = {"position": -1, "status": "running", "queue": queue, "start_digest": "x", "planned_visits": 1, **flags}
    attempt = {
        "runnable_key": KEY,
        "idempotency_key": "step",
        "attempt_number": 1,
        "queue": queue,
        "definition": "d",
        "rank": 0,
        "due_at": _LONG_AGO,
        "last_at": _LONG_AGO,
        "position": -1,
        "status": "available",
        "deliveries": 0,
        "max_deliveries": 5,
        "fencing_token": 0,
        "planned_digest": "x",
    }
    facts: list[dict[str, Any]] = [{"type": "attempt_scheduled", "run_id": run_id, "data": {}} for run_id in run_ids]
    facts += [{"k": k, "type": "run_started", "run_id": run_id, "data": {}} for run_id in run_ids for k in (1, 2)]
    rows = [{**row, "run_id": run_id, "applied_visits": 0} for run_id in run_ids]
    attempts = [{**attempt, "run_id": run_id} for run_id in run_ids]
    texts = map(json.dumps, (facts, rows, attempts))
    return _START, (commit or uuid4(), queue, list(run_ids), *texts)


def claim_one(connection: psycopg.Connection[Any], queue: str, claim: str, commit: object = None) -> str:
    """Claim the next attempt under an id, which is the hash of its token, too; return its run."""
    values = (commit or uuid4(), queue, [claim], [claim])
    (answer,) = connection.execute(_CLAIM, values).fetchone() or ({"claimed": []},)
    (row,) = answer["claimed"]
    return str(row["run_id"])


def end_arguments(claims: Sequence[tuple[str, str, str]], commit: object = None) -> tuple[Any, tuple[object, ...]]:
    """Return the statement that ends runs, by run, claim and queue: three facts of each run."""
    about = [[KEY, claim, claim, queue] for _, claim, queue in claims]
    outcomes = [
        [{"queue": queue, "runnable_key": KEY, "claim_id": claim, "result": {}}, None] for _, claim, queue in claims
    ]
    runs = [run_id for run_id, _, _ in claims]
    return _END, (commit or uuid4(), runs, json.dumps(about), json.dumps(outcomes))


def append_facts(
    connection: psycopg.Connection[Any], run_ids: Sequence[str], threads: Sequence[str], commit: object = None
) -> None:
    """Lock runs, and append a fact to each thread, in a transaction that is open or not."""
    facts = [
        {"ord": n, "t": n, "k": 1, "type": "x", "run_id": run_ids[0], "at": _LONG_AGO, "data": {}}
        for n in range(1, len(threads) + 1)
    ]
    with connection.transaction():
        connection.execute(_LOCK, (list(run_ids),))
        count = len(threads)
        values = (commit or uuid4(), list(threads), [None] * count, [1] * count, json.dumps(facts))
        connection.execute(_APPEND, values)


class Worker(threading.Thread):
    """Starts a run on each of its queues, claims and ends one of each, and appends to all threads, until stopped."""

    def __init__(self, url: str, schema: str, *queues: str) -> None:
        """Connect."""
        super().__init__(daemon=True)
        self.queues, self.ended, self.appended, self.again = queues, list[str](), 0, 0
        self.states: list[str] = []  # errors after which a transaction is not repeated
        self._own = f"own-{uuid4().hex}"
        self._stop_it = threading.Event()
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=None)
        self._connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))

    def run(self) -> None:
        """Run the worker."""
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
        for queue in self.queues:
            self._start(queue)
        claims = sorted(self._claim(queue) for queue in self.queues)
        ended = self._persistently(lambda id_: self._execute(*end_arguments(claims, id_)))
        assert len(ended["ended"]) == len(claims)
        self.ended += [run_id for run_id, _, _ in claims]
        threads = sorted([*(f"squid:dispatch:{queue}" for queue in self.queues), f"squid:run:{self._own}"])
        self._persistently(lambda id_: append_facts(self._connection, [self._own], threads, id_))
        self.appended += len(threads)

    def _start(self, queue: str) -> None:
        run_id = f"run-{uuid4().hex}"
        self._persistently(lambda id_: self._execute(*start_arguments([run_id], queue, id_)))

    def _claim(self, queue: str) -> tuple[str, str, str]:
        claim = uuid4().hex
        return self._persistently(lambda id_: claim_one(self._connection, queue, claim, id_)), claim, queue

    def _execute(self, text: Any, values: tuple[object, ...]) -> Any:
        row = self._connection.execute(text, values).fetchone()
        return None if row is None else row[0]

    def _persistently(self, attempt: Callable[[Any], T]) -> T:
        commit = uuid4()
        for _ in range(20):
            try:
                return attempt(commit)
            except psycopg.Error as error:
                if error.sqlstate != "SQ002":
                    raise
                self.again += 1
        raise AssertionError("told to begin again twenty times")
