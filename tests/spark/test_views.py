"""The live views restored by Spark alone: equal in every column, whatever was lost, while others write."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, LiteralString

import pytest
from pyspark.sql import SparkSession

from squid_dagster.journal import (
    PostgresDispatchStore,
    PostgresQueries,
    PostgresStorage,
    RunFilter,
    rebuild_views,
    verify,
)
from squid_dagster.journal.postgres.views.rebuild import Rebuild
from squid_dagster.protocol import Entry, Fact
from squid_dagster.protocol.entries import by_run
from squid_dagster.protocol.errors import InvalidArgument, StorageUnavailable
from squid_dagster.spark.fold import live_views
from squid_dagster.spark.fold.folds import Groups
from squid_dagster.spark.fold.live_views import RebuildTables, restore_views
from squid_dagster.spark.fold.worker_journal import WorkFailed
from squid_dagster.spark.source.credentials import locate
from tests.facts import queue_paused, queue_resumed, terminal
from tests.journal.writers import start
from tests.processes import Child, children
from tests.spark.journal_generator import Plan, generate
from tests.spark.reading import location
from tests.spark.synthetic_runs import EventRates

RICH = EventRates(retries=0.3, expiries=0.2, approvals=0.2, children=0.2, anomalies=0.3, unfinished=0.2)
_DUMP: dict[str, LiteralString] = {
    "runs": "SELECT to_json(v)::text FROM {schema}.runs v ORDER BY run_id",
    "attempts": "SELECT to_json(v)::text FROM {schema}.attempts v ORDER BY run_id, runnable_key",
    "children": "SELECT to_json(v)::text FROM {schema}.children v ORDER BY run_id, child_run_id",
    "queues": "SELECT to_json(v)::text FROM {schema}.queues v ORDER BY queue",
    "anomalies": "SELECT to_json(v)::text FROM {schema}.anomalies v ORDER BY thread, seq, ordinal",
}
_LOSSES: dict[str, tuple[LiteralString, ...]] = {
    "dropped": tuple("DROP TABLE {schema}." + view for view in _DUMP),
    "emptied": tuple("TRUNCATE {schema}." + view for view in _DUMP),
    "changed": (
        "UPDATE {schema}.runs SET status = 'idle', queue = 'nowhere' WHERE hashtext(run_id) % 2 = 0",
        "DELETE FROM {schema}.attempts WHERE hashtext(run_id) % 3 = 0",
        "INSERT INTO {schema}.attempts (run_id, runnable_key) VALUES ('nobody', 'x')",
        "UPDATE {schema}.queues SET paused = NOT paused",
    ),
}


@pytest.fixture
def journal(postgres: PostgresStorage) -> PostgresStorage:
    """A journal in which everything happens, paused queues and anomalies included."""
    generate(postgres, Plan(1_200, seed=7, mix=RICH, runs_per_commit=30))
    start(postgres, ["fresh-1", "fresh-2"])
    paused: list[Fact] = [queue_paused("slow"), queue_paused("fast"), queue_resumed("fast")]
    for fact in paused:
        postgres.append(fact.thread, [fact])
    return postgres


def dump(storage: PostgresStorage) -> dict[str, list[Any]]:
    """Return all rows of all views."""
    return {view: storage.rows(text) for view, text in _DUMP.items()}


def do(storage: PostgresStorage, *texts: LiteralString) -> None:
    """Run statements, each of which finds something to do."""
    with storage.connection() as connection:
        for text in texts:
            assert connection.execute(storage.sql(text)).rowcount != 0


def asked(storage: PostgresStorage) -> list[Any]:
    """Return the answers to the runtime's own queries."""
    queries = PostgresQueries(storage)
    return [queries.list_runs(RunFilter(), None, 500), queries.queues(), queries.runs_to_list(100)]


@pytest.mark.parametrize("loss", _LOSSES)
def test_after_their_loss_the_views_are_equal_in_every_column(
    spark: SparkSession, journal: PostgresStorage, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, answers = dump(journal), asked(journal)
    do(journal, *_LOSSES[loss])
    progress: list[int] = []
    # In this process alone: the driver folds nothing, and neither does it write a row of the journal's past.
    monkeypatch.setattr(live_views, "fold_run", None)

    restored = restore_views(spark, journal, location(journal), partitions=2, progress=progress.append)

    assert dump(journal) == before
    assert asked(journal) == answers
    assert verify(journal) == []
    rebuilt = rebuild_views(journal)
    assert dump(journal) == before
    assert (restored.runs, restored.entries, restored.cut) == (rebuilt.runs, rebuilt.entries, rebuilt.cut)
    assert progress == [restored.entries]
    (claim,) = PostgresDispatchStore(journal).claim("default", "worker", lease=timedelta(minutes=1))
    assert claim.ref.run_id.startswith(("fresh", "run"))


def test_nothing_is_lost_that_others_write_meanwhile(
    spark: SparkSession, postgres: PostgresStorage, postgres_url: str
) -> None:
    with children() as crowd:
        crowd += [
            Child("tests.journal.writers", "work", postgres_url, postgres.schema, str(number), "100000")
            for number in range(2)
        ]
        for child in crowd:
            child.wait_for_lines(20)
        do(postgres, *_LOSSES["dropped"])

        restored = restore_views(spark, postgres, location(postgres), partitions=2)

        for child in crowd:  # they go on, on the new views
            child.wait_for_lines(len(child.lines) + 20)
            assert child.process.poll() is None, child.errors()
    assert verify(postgres) == []
    assert restored.runs > 0
    before = dump(postgres)
    rebuild_views(postgres)
    assert dump(postgres) == before


def test_a_task_that_fails_leaves_the_old_views_and_the_next_one_mends_all(
    spark: SparkSession, journal: PostgresStorage
) -> None:
    before = dump(journal)
    guard: LiteralString = " TRIGGER journal_entries_append_only"
    do(journal, "ALTER TABLE {schema}.journal_entries DISABLE" + guard)
    too_much: LiteralString = "replace(data::text, '\"attempt_number\":1', '\"attempt_number\":99999999999')::json"
    do(
        journal,
        "UPDATE {schema}.journal_entries SET data = "
        + too_much
        + ", digest = {schema}.entry_digest(thread, seq, type, run_id, occurred_at, "
        + too_much
        + ") WHERE run_id = 'fresh-2' AND type = 'attempt_scheduled'",
    )

    with pytest.raises(WorkFailed, match=r"are as they were.*out of range") as caught:
        restore_views(spark, journal, location(journal), partitions=2)

    assert "Traceback" not in str(caught.value)
    assert dump(journal) == before
    do(
        journal,
        "DELETE FROM {schema}.journal_entries WHERE run_id = 'fresh-2' AND type = 'attempt_scheduled'",
        "ALTER TABLE {schema}.journal_entries ENABLE ALWAYS" + guard,
    )
    restore_views(spark, journal, location(journal), partitions=2)
    assert verify(journal)[-1].thread == "squid:dispatch:default"  # the gap, and no row that differs
    assert not journal.rows("SELECT FROM pg_tables WHERE schemaname = %s AND tablename ~ 'shadow'", journal.schema)


def test_workers_that_find_no_database_change_nothing(spark: SparkSession, journal: PostgresStorage) -> None:
    before = dump(journal)

    with pytest.raises(InvalidArgument, match="one of url, url_file and url_env"):
        restore_views(spark, journal, {})
    with pytest.raises(InvalidArgument, match="partitions is 0"):
        restore_views(spark, journal, location(journal), partitions=0)
    with pytest.raises(WorkFailed, match="url_file '/nowhere/url' cannot be read"):
        restore_views(spark, journal, {"url_file": "/nowhere/url"}, partitions=1)

    assert dump(journal) == before


def test_one_rebuild_at_a_time_whoever_folds(spark: SparkSession, journal: PostgresStorage) -> None:
    refused: list[str] = []

    def fill(cut: int, _: Any) -> tuple[int, int]:
        with pytest.raises(StorageUnavailable, match="another rebuild") as caught:
            restore_views(spark, journal, location(journal))
        refused.append(str(caught.value))
        raise StorageUnavailable(f"given up at {cut}")

    with pytest.raises(StorageUnavailable, match="given up"):
        rebuild_views(journal, fill=fill)
    assert len(refused) == 1


# --- a task that runs twice, by hand ---------------------------------------------------------------------------------


def groups(storage: PostgresStorage, upto: int) -> Groups:
    """Return all runs up to a cut, as a task gets them."""
    runs: dict[str | None, list[Entry]] = by_run(storage.read_between(0, upto))
    return ((run_id, iter(runs[run_id])) for run_id in sorted(runs, key=lambda run_id: run_id or ""))


@pytest.fixture
def rebuild(journal: PostgresStorage) -> Iterator[Rebuild]:
    """A rebuild that has made its shadows."""
    with journal.connection() as connection:
        rebuild = Rebuild(journal, connection)
        rebuild.create_shadows()
        yield rebuild


def shadows(storage: PostgresStorage) -> RebuildTables:
    """Return the shadow tables, as they are sent to a task."""
    return RebuildTables(locate(location(storage)), storage.schema, live_views._shadow_oid(storage))


def test_a_task_that_runs_twice_writes_once(journal: PostgresStorage, rebuild: Rebuild) -> None:
    before, cut, tasks = dump(journal), journal.cut(), shadows(journal)

    counts = [list(tasks.write(groups(journal, cut))) for _ in range(2)]
    rebuild.swap(cut)

    assert counts[0] == counts[1]
    assert dump(journal) == before


def test_a_late_twin_adds_nothing_to_what_was_folded_further(journal: PostgresStorage, rebuild: Rebuild) -> None:
    cut, tasks = journal.cut(), shadows(journal)
    list(tasks.write(groups(journal, cut)))
    journal.append("squid:run:fresh-1", [terminal("fresh-1")])  # its attempts have no rows from here on
    end = journal.cut()
    before = dump(journal)
    rebuild.catch_up(cut, end)

    list(tasks.write(groups(journal, cut)))
    rebuild.swap(end)

    assert dump(journal) == before
    assert verify(journal) == []


def test_a_worker_that_was_given_up_cannot_reach_a_later_rebuild(journal: PostgresStorage, rebuild: Rebuild) -> None:
    cut, late = journal.cut(), shadows(journal)
    rebuild.create_shadows()

    with pytest.raises(StorageUnavailable, match="another one took its place"):
        list(late.write(groups(journal, cut)))
    list(shadows(journal).write(groups(journal, cut)))
    rebuild.swap(cut)
    with pytest.raises(StorageUnavailable, match="another one took its place"):
        list(late.write(groups(journal, cut)))

    assert verify(journal) == []
