"""`verify` names what was changed past the library, and names nothing on a healthy journal."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from squid_dagster.journal import DiscrepancyKind, PostgresDispatchStore, PostgresStorage, quarantine, verify
from squid_dagster.journal.postgres.connection.pool import pooled_connection
from squid_dagster.protocol import MalformedFact, RunProjection
from tests.facts import QUEUE, queue_paused
from tests.journal.access import all_entries
from tests.journal.writers import start

ENTRIES = '"{schema}".journal_entries'


@pytest.fixture
def journal(postgres: PostgresStorage) -> PostgresStorage:
    """Three runs, one of them claimed, and a queue that was paused once."""
    start(postgres, ["run-1", "run-2", "run-3"])
    PostgresDispatchStore(postgres).claim(QUEUE, "worker")
    postgres.append("squid:dispatch:slow", [queue_paused("slow")])
    return postgres


@contextmanager
def _behind_our_back(storage: PostgresStorage) -> Iterator[None]:
    """Disable the trigger that refuses changes, as only the owner of the table can."""
    name = f'"{storage.schema}".journal_entries'
    _do(storage, f"ALTER TABLE {name} DISABLE TRIGGER journal_entries_append_only")
    yield
    _do(storage, f"ALTER TABLE {name} ENABLE ALWAYS TRIGGER journal_entries_append_only")


def _do(storage: PostgresStorage, text: str) -> None:
    with pooled_connection(storage.engine) as connection:
        assert connection.execute(text.replace("{schema}", storage.schema).encode()).rowcount != 0


def test_nothing_is_named_on_a_healthy_journal(journal: PostgresStorage) -> None:
    progress: list[int] = []
    assert verify(journal, progress.append) == []
    assert progress[-1] == len(all_entries(journal))


def test_a_changed_payload_is_named_with_thread_and_sequence(journal: PostgresStorage) -> None:
    with _behind_our_back(journal):
        _do(journal, f"UPDATE {ENTRIES} SET data = '{{}}' WHERE thread = 'squid:run:run-2' AND seq = 1")

    (finding,) = verify(journal)

    assert finding.kind is DiscrepancyKind.CORRUPT_ENTRY
    assert (finding.thread, finding.seq, finding.run_id) == ("squid:run:run-2", 1, "run-2")


def test_a_payload_changed_to_another_valid_one_is_named_too(journal: PostgresStorage) -> None:
    with _behind_our_back(journal):
        _do(
            journal,
            f"UPDATE {ENTRIES} SET data = replace(data::text, 'writers', 'waiters')::json "
            "WHERE thread = 'squid:run:run-2' AND seq = 1",
        )

    (finding,) = verify(journal)

    assert finding.kind is DiscrepancyKind.CORRUPT_ENTRY
    assert "digest" in finding.detail


def test_a_gap_is_named(journal: PostgresStorage) -> None:
    with _behind_our_back(journal):
        _do(journal, f"DELETE FROM {ENTRIES} WHERE thread = 'squid:dispatch:default' AND seq = 3")

    kinds = {(finding.kind, finding.thread, finding.seq) for finding in verify(journal)}

    assert (DiscrepancyKind.GAP, "squid:dispatch:default", 4) in kinds
    # The fact that is gone explained rows of its run; they are named as well, and nothing else is.
    assert {kind for kind, _, _ in kinds} <= {DiscrepancyKind.GAP, DiscrepancyKind.VIEW_DIFFERS}


def test_a_duplicate_is_named(journal: PostgresStorage) -> None:
    schema = journal.schema
    _do(journal, 'DROP INDEX "{schema}".journal_entries_thread')
    with _behind_our_back(journal):
        _do(
            journal,
            f"INSERT INTO {ENTRIES} SELECT nextval('\"{schema}\".journal_numbers') << 20, thread, seq, type, run_id, "
            f"occurred_at, data, digest FROM {ENTRIES} WHERE thread = 'squid:run:run-1' AND seq = 1",
        )

    findings = verify(journal)

    assert [(f.kind, f.thread, f.seq) for f in findings] == [(DiscrepancyKind.DUPLICATE, "squid:run:run-1", 1)]


def test_a_wrong_revision_is_named(journal: PostgresStorage) -> None:
    _do(journal, "UPDATE \"{schema}\".journal_threads SET rev = 9 WHERE id = 'squid:run:run-3'")

    (finding,) = verify(journal)

    assert (finding.kind, finding.thread) == (DiscrepancyKind.WRONG_REVISION, "squid:run:run-3")
    assert "9" in finding.detail


def test_a_thread_that_lost_its_row_is_named(journal: PostgresStorage) -> None:
    _do(journal, "DELETE FROM \"{schema}\".journal_threads WHERE id = 'squid:run:run-3'")

    (finding,) = verify(journal)

    assert (finding.kind, finding.thread) == (DiscrepancyKind.WRONG_REVISION, "squid:run:run-3")


def test_entries_that_changed_places_are_named(journal: PostgresStorage) -> None:
    with _behind_our_back(journal):
        _do(journal, f"UPDATE {ENTRIES} SET position = -position WHERE thread = 'squid:run:run-1'")

    kinds = {finding.kind for finding in verify(journal) if finding.thread == "squid:run:run-1"}

    assert DiscrepancyKind.OUT_OF_ORDER in kinds


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        ("UPDATE \"{schema}\".runs SET status = 'idle' WHERE run_id = 'run-1'", "runs run-1: other values in status"),
        ("DELETE FROM \"{schema}\".runs WHERE run_id = 'run-1'", "runs run-1: a row is missing"),
        (
            "UPDATE \"{schema}\".attempts SET due_at = NULL, rank = 3 WHERE run_id = 'run-2'",
            "attempts run-2/run-2:step:1:1: other values in due_at, rank",
        ),
        ("DELETE FROM \"{schema}\".attempts WHERE run_id = 'run-2'", "attempts run-2/run-2:step:1:1: a row is missing"),
        (
            "INSERT INTO \"{schema}\".attempts (run_id, runnable_key) VALUES ('nobody', 'x')",
            "attempts nobody/x: a row that no fact explains",
        ),
        ('UPDATE "{schema}".queues SET paused = false', "queues slow: other values in paused"),
        (
            "INSERT INTO \"{schema}\".anomalies VALUES ('squid:run:run-1', 1, 1, 1, 'run-1', 'x', 'x', NULL)",
            "anomalies squid:run:run-1/1/1: a row that no fact explains",
        ),
    ],
)
def test_a_view_that_differs_is_named(journal: PostgresStorage, damage: str, named: str) -> None:
    _do(journal, damage)

    findings = verify(journal)

    assert [(finding.kind, finding.detail) for finding in findings] == [(DiscrepancyKind.VIEW_DIFFERS, named)]


def test_a_corrupted_entry_quarantines_only_its_run(journal: PostgresStorage) -> None:
    with _behind_our_back(journal):
        _do(journal, f"UPDATE {ENTRIES} SET data = '[1]' WHERE thread = 'squid:dispatch:default' AND run_id = 'run-2'")
    bad = [entry for entry in journal.read("squid:dispatch:default") if isinstance(entry.fact, MalformedFact)]

    stopped = quarantine(journal, bad)
    again = quarantine(journal, bad)

    assert (stopped, again) == (["run-2"], [])
    run = RunProjection.fold(journal.read("squid:run:run-2"))
    assert run.status == "quarantined"
    assert run.quarantine is not None
    assert (run.quarantine.thread, run.quarantine.seq) == ("squid:dispatch:default", bad[0].seq)
    claimed = PostgresDispatchStore(journal).claim(QUEUE, "worker", limit=10)
    assert [claim.ref.run_id for claim in claimed] == ["run-3"]  # run-1 is held, run-2 stopped, run-3 goes on
    assert {finding.run_id for finding in verify(journal)} == {"run-2"}


def test_an_entry_of_no_run_is_surfaced_and_stops_nobody(journal: PostgresStorage) -> None:
    with _behind_our_back(journal):
        _do(journal, f"UPDATE {ENTRIES} SET data = '3' WHERE thread = 'squid:dispatch:slow'")

    (entry,) = journal.read("squid:dispatch:slow")

    assert isinstance(entry.fact, MalformedFact)
    assert (entry.thread, entry.seq) == ("squid:dispatch:slow", 1)
    assert quarantine(journal, [entry]) == []
    assert DiscrepancyKind.CORRUPT_ENTRY in {finding.kind for finding in verify(journal)}
