"""Whatever the database raises during a read: the read is repeated, or raises an error of ours."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

import pytest

from squid_dagster.api import Squid
from squid_dagster.inspection.attention import attention
from squid_dagster.journal import PostgresStorage, RunFilter, verify
from squid_dagster.journal.contract.worker_liveness import WorkerRow
from squid_dagster.journal.postgres.connection.sqlstates import ErrorAction, sqlstate_rule
from squid_dagster.journal.postgres.views.counts import count_runs
from squid_dagster.journal.transfer.transfer import export_journal
from squid_dagster.protocol import run_thread
from squid_dagster.protocol.errors import StorageRefused, StorageUnavailable
from squid_dagster.workflow import Workflow
from tests.facts import started
from tests.faults import Faults
from tests.journal.access import raw
from tests.journal.connection.test_failures import CODES, REPEATED

MINUTE = timedelta(minutes=1)
WORKER = WorkerRow(worker_id="w", kind="worker", queues=("default",), definitions=None, host="h", pid=1, capacity=1)


class FaultyReader(NamedTuple):
    """A journal with a run that is open, a card and a worker, read by a role whose reads can be made to fail."""

    owner: PostgresStorage
    squid: Squid
    run_id: str
    faults: Faults

    @property
    def storage(self) -> PostgresStorage:
        """The storage of that role."""
        assert isinstance(self.squid.journal, PostgresStorage)
        return self.squid.journal


@pytest.fixture
def reader(postgres: PostgresStorage) -> Iterator[FaultyReader]:
    """A journal with something of everything in it."""
    workflow = Workflow("one")
    workflow.step(name="step")(lambda: None)
    owner = Squid(postgres, workflow)
    run_id = owner.start("one").run_id
    owner.backlog.create("card", "a card")
    owner.journal.append(run_thread(run_id), [started(run_id)])  # once more, which is an anomaly
    owner.journal.put_checkpoint(run_thread(run_id), 1, "{}")
    owner.runtime.liveness.report(WORKER)
    faults = Faults(postgres)
    storage = faults.reader(postgres)
    yield FaultyReader(postgres, Squid(storage, workflow), run_id, faults)
    storage.close()
    faults.close()
    with raw(postgres) as connection:
        connection.execute(f"DROP OWNED BY reads_{postgres.schema}")
        connection.execute(f"DROP ROLE reads_{postgres.schema}")


def _status(reader: FaultyReader) -> object:
    """Read what `squid status` shows."""
    runtime, storage = reader.squid.runtime, reader.storage
    queues, workers = runtime.queries.queues(), runtime.liveness.workers(MINUTE)
    needed = attention(storage, runtime.queries, queues, workers, storage.now())
    return queues, needed, count_runs(storage, 10)


READS: dict[str, Callable[[FaultyReader], object]] = {
    "inspect_run": lambda d: d.squid.inspect_run(d.run_id),
    "explain_run": lambda d: d.squid.explain_run(d.run_id),
    "inspect_run_graph": lambda d: d.squid.inspect_run_graph(d.run_id),
    "inspect_run_timeline": lambda d: d.squid.inspect_run_timeline(d.run_id),
    "list_runs": lambda d: d.squid.list_runs(),
    "dead_letters": lambda d: d.squid.dead_letters(),
    "status": _status,
    "get_run": lambda d: d.squid.runtime.queries.get_run(d.run_id),
    "list rows": lambda d: d.squid.runtime.queries.list_runs(RunFilter(), None, 5),
    "runs_to_repair": lambda d: d.squid.runtime.queries.runs_to_repair("", 5),
    "runs_to_list": lambda d: d.squid.runtime.queries.runs_to_list(5),
    "queues": lambda d: d.squid.runtime.queries.queues(),
    "backlog of queues": lambda d: d.squid.runtime.queries.backlog(["default"], None, 5),
    "anomalies": lambda d: d.squid.runtime.queries.anomalies(None, 5),
    "schedule_cursor": lambda d: d.squid.runtime.queries.schedule_cursor("one", "night"),
    "workers": lambda d: d.squid.runtime.liveness.workers(MINUTE),
    "visible": lambda d: [attempt.runnable_key for attempt in d.squid.runtime.dispatch.visible("default")],
    "expired": lambda d: d.squid.runtime.dispatch.expired("default"),
    "read": lambda d: d.storage.read(run_thread(d.run_id)),
    "read_run": lambda d: d.storage.read_run(d.run_id),
    "read_between": lambda d: d.storage.read_between(0, 2**62),
    "revision": lambda d: d.storage.revision(run_thread(d.run_id)),
    "find_commit": lambda d: d.storage.find_commit(UUID(int=1)),
    "get_checkpoint": lambda d: d.storage.get_checkpoint(run_thread(d.run_id)),
    "card": lambda d: d.squid.backlog.get("card"),
    "cards": lambda d: d.squid.backlog.list(),
    "history of a card": lambda d: d.squid.backlog.history("card"),
    "stats of cards": lambda d: d.squid.backlog.stats().counts,
}
WALKS: dict[str, Callable[[FaultyReader], object]] = {
    "differences of cards": lambda d: d.squid.backlog.differences(),
    "verify": lambda d: verify(d.storage),
    "export": lambda d: export_journal(d.storage, lambda _: None),
}
"""Reads of everything, which their caller repeats."""
_GIVEN_UP = {("57014", name) for name in ("inspect_run", "status", *WALKS)}
"""Errors after which a read is repeated for a while; tried to the end for some reads alone."""


def test_a_read_that_was_rolled_back_by_chance_is_repeated(reader: FaultyReader) -> None:
    wrong: dict[str, object] = {}
    for name, read in READS.items():
        for code in REPEATED:
            with reader.faults.raising(code, times=2):
                try:
                    read(reader)
                except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
                    wrong[f"{name}: {code}"] = repr(error)
                if reader.faults.raised() < 2:
                    wrong[f"{name}: {code}"] = f"only {reader.faults.raised()} of the reads were seen"
    assert wrong == {}


def test_a_read_that_fails_for_good_is_told_by_an_error_of_ours(reader: FaultyReader) -> None:
    wrong: dict[str, object] = {}
    for name, read in {**READS, **WALKS}.items():
        for code in CODES:
            if code in REPEATED and (code, name) not in _GIVEN_UP:
                continue
            with reader.faults.raising(code):
                if (complaint := _complaint(reader, read, code)) is not None:
                    wrong[f"{name}: {code}"] = complaint
        # and the same call reads as soon as the database lets it
        read(reader)
    assert wrong == {}


def _complaint(reader: FaultyReader, read: Callable[[FaultyReader], object], code: str) -> str | None:
    """Return what is wrong with the error that a read raises, or with its answer."""
    known = sqlstate_rule(code)
    expected = StorageRefused if known.action is ErrorAction.REFUSE else StorageUnavailable
    words = ("grant",) if code == "42501" else (code, known.words, known.remedy)
    try:
        return f"answered: {read(reader)!r}"
    except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
        fits = isinstance(error, expected) and all(word in str(error) for word in words)
        return None if fits else repr(error)


_STEADY = (
    "inspect_run_timeline",
    "list_runs",
    "read_run",
    "read_between",
    "card",
    "stats of cards",
)
"""Reads whose answers are the same at any time."""
_HARM = {
    "cancelled": "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE usename = %s AND state <> 'idle'",
    "ended": "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = %s AND state <> 'idle'",
}


@pytest.mark.parametrize("harm", _HARM)
def test_reads_whose_statements_are_cancelled_or_whose_sessions_are_ended_answer_right_or_with_an_error_of_ours(
    reader: FaultyReader, harm: str
) -> None:
    # given what each read answers
    expected = {name: repr(READS[name](reader)) for name in _STEADY}
    complaints: list[str] = []

    def read() -> None:
        while harmed < 50:
            for name in _STEADY:
                try:
                    actual = repr(READS[name](reader))
                except StorageUnavailable:
                    continue
                except Exception as error:  # noqa: BLE001  whatever it is, it is the finding
                    complaints.append(f"{name}: {error!r}")
                    return
                if actual != expected[name]:
                    complaints.append(f"{name}: {actual}")

    # when its statements are harmed again and again
    harmed, role = 0, f"reads_{reader.storage.schema}"
    reading = threading.Thread(target=read)
    with raw(reader.owner) as connection:
        reading.start()
        while harmed < 50 and reading.is_alive():
            row = connection.execute(_HARM[harm], (role,)).fetchone()
            harmed += row[0] if row is not None else 0
        reading.join()
    assert complaints == []
    # then all is read as before once that is over
    assert {name: repr(READS[name](reader)) for name in _STEADY} == expected
