"""Random histories of the runtime: what Spark folds of them is what the live rows say, in every column.

The fast way of settlements, the general way and memory are held to each other by histories of the same kind
(`tests/journal/fast_settlement/test_histories.py`); here, Spark is held to the rows that Postgres was left with. One
job folds all of them.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, LiteralString

import pytest
from pyspark.sql import SparkSession

from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.postgres.views.rows import iso, time
from squid_dagster.protocol import Entry, RunUnit
from squid_dagster.protocol.entries import by_run
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.spark.fold.folds import COLUMNS
from squid_dagster.spark.source.data_source import read_journal
from tests.facts import T0, child, heartbeat, started
from tests.journal.access import put
from tests.journal.fast_settlement.test_histories import JournalDriver, RandomOperations
from tests.spark.reading import location
from tests.spark.view_rows import fold_runs_with_views

SEEDS, STEPS = (101, 102, 103), 120
_VIEWS: dict[str, LiteralString] = {
    "runs": "SELECT to_json(v) FROM {schema}.runs v",
    "attempts": "SELECT to_json(v) FROM {schema}.attempts v",
    "children": "SELECT to_json(v) FROM {schema}.children v",
    "queues": "SELECT to_json(v) FROM {schema}.queues v",
    "anomalies": "SELECT to_json(v) FROM {schema}.anomalies v",
}
Values = dict[str, Any]


@dataclass
class StoredHistory:
    """A journal in which everything has happened: its live rows, what Spark made of it, and its facts."""

    live: dict[str, list[Values]]
    folded: dict[str | None, Values]
    facts: dict[str | None, list[Entry]]

    @property
    def runs(self) -> Iterator[tuple[Values, Values, list[Entry]]]:
        """Each run: its live row, what Spark says, and its facts."""
        assert len(self.live["runs"]) == len(self.folded) - 1
        return ((row, self.folded[row["run_id"]], self.facts[row["run_id"]]) for row in self.live["runs"])

    def of(self, view: str, run_id: str) -> list[Values]:
        """Return the live rows of a run."""
        return [row for row in self.live[view] if row["run_id"] == run_id]


def disturb(driver: JournalDriver, clock: VirtualClock) -> None:
    """Write to open runs what others may: a child, and what no rule follows."""
    at = (clock.now() - T0).total_seconds()
    for run in driver.runs[::3]:
        if not driver.squid.inspect_run(run).terminal:
            put(driver.storage, child(run, at=at, child_run_id=f"{run}-a"), started(run, at=at, workflow="other"))
            put(driver.storage, child(run, at=at, child_run_id=f"{run}-b"), heartbeat(run, "nowhere", at=at))


@pytest.fixture(scope="module")
def played(spark: SparkSession, postgres_url: str, schema_names: Iterator[str]) -> Iterator[StoredHistory]:
    """Histories by chance, one after the other: each begins with what the one before has left open."""
    clock = VirtualClock(T0)
    storage = PostgresStorage(postgres_url, next(schema_names), clock=clock)
    storage.upgrade()
    driver = JournalDriver(storage, clock)
    for seed in SEEDS:
        done = [name for name, _ in RandomOperations(seed).steps([driver], STEPS)]
        assert len(set(done)) == 9
        disturb(driver, clock)
    driver.squid.pause_queue("slow")
    cut = storage.cut()
    entries = read_journal(spark, location(storage), schema=storage.schema, upto=cut, only=COLUMNS, partitions=2)
    folded = [row.asDict(recursive=True) for row in fold_runs_with_views(entries, 2).collect()]
    yield StoredHistory(
        {view: [row for (row,) in storage.rows(text)] for view, text in _VIEWS.items()},
        {row["run_id"]: row for row in folded},
        by_run(storage.read_between(0, cut)),
    )
    storage.close()


def test_there_is_something_of_everything(played: StoredHistory) -> None:
    statuses = Counter(row["status"] for row in played.live["runs"])
    assert {"completed", "failed", "cancelled", "running", "paused", "quarantined", "new"} <= statuses.keys(), statuses
    assert {row["status"] for row in played.live["attempts"]} >= {"available", "claimed", "completed", "failed"}
    assert all(len(played.live[view]) > 5 for view in ("attempts", "children", "anomalies"))
    runs = [folded["run"] for folded in played.folded.values() if folded["run"] is not None]
    assert all(sum(run[name] for run in runs) > 0 for name in ("retries", "expiries", "resolutions", "anomalies"))
    assert played.live["queues"] == [{"queue": "slow", "paused": True}]


@pytest.mark.parametrize("view", _VIEWS)
def test_the_rows_that_spark_makes_for_a_view_are_those_that_are_live(played: StoredHistory, view: str) -> None:
    actual = [row for folded in played.folded.values() for row in json.loads(folded["views"][view])]
    assert _texts(actual) == _texts(played.live[view])


def test_what_spark_says_of_a_run_is_what_its_live_row_says(played: StoredHistory) -> None:
    for live, folded, entries in played.runs:
        types = Counter(entry.fact.type for entry in entries)
        attempts, start = folded["attempts"], time(live["started_at"])
        assert _plain(folded["run"]) == {
            **_part(live, "workflow trigger queue status definition_version definition_fingerprint parent_run_id"),
            **_part(live, "replayed_from_run_id fenced planned_visits applied_visits"),
            **{name: time(live[name]) for name in ("window_start", "started_at", "ended_at")},
            "paused_step": live["manual_state"] and live["manual_state"][0],
            "quarantined": live["quarantine"] is not None,
            "children": len(played.of("children", live["run_id"])),
            "anomalies": len(played.of("anomalies", live["run_id"])),
            # what no live row has follows from the facts
            "error": _error(next((e.fact for e in entries if e.fact.type == "run_terminal"), None)),
            "attempts": types["attempt_scheduled"] + _retries(entries),
            "retries": _retries(entries),
            "expiries": sum(attempt["expiries"] for attempt in attempts),
            "commands": types["run_signal_received"],
            "resolutions": types["manual_step_resolved"],
        }
        for name in ("indexed", "cataloged"):
            assert _listed(folded[name]) == live[name]
        assert (folded["first_position"], folded["last_position"]) == (live["position"], entries[-1].position)
        assert (folded["entries"], folded["queues"]) == (len(entries), None)
        assert folded["day"] == (start.date() if start else None)
        assert _plain(folded)["latest"] == max((attempt["last_at"] for attempt in map(_plain, attempts)), default=None)


def test_what_spark_says_of_attempts_is_what_their_live_rows_say(played: StoredHistory) -> None:
    for live, folded, entries in played.runs:
        attempts = {attempt["runnable_key"]: attempt for attempt in map(_plain, folded["attempts"])}
        assert len(attempts) == len(folded["attempts"])
        rows = {row["runnable_key"]: _of_row(row) for row in played.of("attempts", live["run_id"])}
        unit = RunUnit.fold(entries)
        if live["terminal_status"] is not None:  # they have no rows any more
            assert rows == {}
            rows = {key: _of_fold(attempt, unit) for key, attempt in unit.dispatch.attempts.items()}
        for key, attempt in attempts.items():
            error = unit.dispatch.attempts[key].error  # a live row has no contents
            assert attempt == {**rows[key], **_observed(entries, key), "error": _error_text(error)}
        assert attempts.keys() == rows.keys()


def test_what_spark_says_of_children_and_anomalies_is_what_their_live_rows_say(played: StoredHistory) -> None:
    columns = "child_run_id child_workflow child_trigger child_key"
    for live, folded, _ in played.runs:
        run_id = live["run_id"]
        assert _texts(map(_plain, folded["children"])) == _texts(
            {**_part(row, columns), "started_at": time(row["started_at"])} for row in played.of("children", run_id)
        )
        assert _texts(folded["anomalies"]) == _texts(played.of("anomalies", run_id))
    assert played.folded[None]["queues"] == played.live["queues"]
    assert played.folded[None]["anomalies"] == []


# --- rows and their spelling ------------------------------------------------------------------------------------------


def _texts(rows: Iterable[Values]) -> list[str]:
    """Return rows as sorted JSON, with times in one format."""
    spelled = ({name: _spelled(name, value) for name, value in row.items()} for row in rows)
    return sorted(json.dumps(row, sort_keys=True) for row in spelled)


def _spelled(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return iso(value)
    is_time = isinstance(value, str) and (name.endswith("_at") or name in ("lease_until", "window_start"))
    return iso(time(value)) if is_time else value


def _plain(row: Values) -> Values:
    """Return Spark's times in UTC; Spark returns them in the zone of this process, without naming it."""
    return {name: value.astimezone(UTC) if isinstance(value, datetime) else value for name, value in row.items()}


def _listed(row: Values | None) -> list[Any] | None:
    """Return an index entry as a live row has it."""
    return None if row is None else [row["workflow"], row["queue"], iso(row["indexed_at"].astimezone(UTC))]


def _part(row: Values, names: str) -> Values:
    return {name: row[name] for name in names.split()}


def _of_row(row: Values) -> Values:
    """Return the live row of an attempt in Spark's columns."""
    return {
        **_part(row, "runnable_key idempotency_key workflow queue step status owner_id attempt_number max_deliveries"),
        **_part(row, "deliveries fencing_token position"),
        **{name: time(row[name]) for name in ("visible_at", "lease_until", "settled_at", "last_at")},
        "priority": -row["rank"],
        "planned": row["planned_digest"] is not None,
        "applied": row["applied_digest"] is not None,
    }


def _of_fold(attempt: Attempt, unit: RunUnit) -> Values:
    """Return an attempt by the fold in this process, in Spark's columns."""
    names = "runnable_key idempotency_key workflow queue step owner_id attempt_number max_deliveries deliveries"
    names += " fencing_token position visible_at lease_until settled_at last_at priority"
    key = attempt.runnable_key
    return {
        **{name: getattr(attempt, name) for name in names.split()},
        "status": attempt.status.value,
        "planned": key in unit.run.planned,
        "applied": key in unit.run.applied,
    }


def _observed(entries: Sequence[Entry], key: str) -> Values:
    """Return the times of an attempt that no live row has; every claim here is a valid one."""
    scheduled = [_ for _ in entries if key in (_key(_, "retry_runnable_key"), _scheduled_key(_))]
    claims: list[datetime] = []
    held, expiries = False, 0
    for entry in entries:
        if _key(entry, "runnable_key") != key:
            continue
        if entry.fact.type == "attempt_claimed":
            claims.append(entry.fact.occurred_at)
            expiries += held
            held = True
        elif entry.fact.type in ("attempt_released", "attempt_failed", "attempt_completed"):
            held = False
    return {
        "scheduled_at": scheduled[0].fact.occurred_at,
        "first_claimed_at": claims[0] if claims else None,
        "claimed_at": claims[-1] if claims else None,
        "claims": len(claims),
        "expiries": expiries,
    }


def _key(entry: Entry, name: str) -> str | None:
    return getattr(entry.fact, name, None)


def _scheduled_key(entry: Entry) -> str | None:
    return _key(entry, "runnable_key") if entry.fact.type == "attempt_scheduled" else None


def _retries(entries: Sequence[Entry]) -> int:
    return sum(_key(entry, "retry_runnable_key") is not None for entry in entries)


def _error(end: Any) -> str | None:
    return _error_text(None if end is None else end.error)


def _error_text(error: Any) -> str | None:
    return None if error is None else json.dumps(error, sort_keys=True)
