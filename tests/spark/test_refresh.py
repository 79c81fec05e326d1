"""Refreshes: increments and a full rebuild give the same tables, whatever happened in between."""

import json
import threading
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, LiteralString

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from squid_dagster.api import Squid
from squid_dagster.journal.contract.storage import Append
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import Fact, RunStarted
from squid_dagster.protocol.errors import InvalidArgument, SchemaOutdated
from squid_dagster.spark.errors import (
    ForeignWarehouse,
    RefreshFailed,
    WarehouseBusy,
    WarehouseTooNew,
    WarehouseUnavailable,
)
from squid_dagster.spark.fold.run_rows import fold_run, loose_row, unit_row
from squid_dagster.spark.tables import stage as warehouse_stage
from squid_dagster.spark.tables.columns import STAGE_SCHEMA
from squid_dagster.spark.tables.files import Files
from squid_dagster.spark.tables.manifest import UNKNOWN, Manifest
from squid_dagster.spark.tables.queue_health import QueueTally
from squid_dagster.spark.tables.refresh import Refreshed, Refresher, refresh
from squid_dagster.spark.tables.warehouse import STAGE, TABLES, Warehouse
from tests.facts import (
    claimed,
    completed,
    entries,
    failed,
    queue_paused,
    queue_resumed,
    queued,
    scheduled,
    started,
    t,
    terminal,
)
from tests.journal.access import put, terminate_backends
from tests.planted_secrets import CANARY, TOLD, URL, fill, workflows
from tests.spark.reading import location
from tests.spark.synthetic_runs import Life, Mix, make_life
from tests.spark.test_folds import damage

RICH = Mix(retries=0.3, expiries=0.2, approvals=0.2, children=0.2, anomalies=0.2, unfinished=0.2)
START = datetime(2026, 1, 1, 6, tzinfo=UTC)

_RUNS_AT_A_TIME = 6

Moments = list[list[Fact]]


def lives(random: Random, count: int, every: timedelta, first: int = 0) -> list[Life]:
    """Runs in which everything happens, and their children."""
    return [
        life
        for number in range(first, first + count)
        for life in make_life(
            f"run-{number}",
            random=random,
            mix=RICH,
            start=START + number * every,
            workflow=random.choice(["billing", "mail"]),
            queue=random.choice(["default", "slow"]),
            steps=2,
        )
    ]


def late(life: Life) -> Moments:
    """The moments of a life whose start is written after its first steps."""
    begin, *rest = life.moments
    start: list[Fact] = [fact for fact in begin if isinstance(fact, RunStarted)]
    return [[fact for fact in begin if fact not in start], *rest[:1], start, *rest[1:]]


def mixed(random: Random, all_moments: list[Moments]) -> Moments:
    """All moments, in a random order that keeps that of each run; runs begin one after another, and soon end."""
    turns = [index for index, moments in enumerate(all_moments) for _ in moments]
    turns.sort(key=lambda index: index + random.random() * _RUNS_AT_A_TIME)
    iterators = [iter(moments) for moments in all_moments]
    return [next(iterators[index]) for index in turns]


def write(storage: PostgresStorage, moments: Moments, together: int = 20) -> None:
    """Write moments, some of them in each commit."""
    for at in range(0, len(moments), together):
        threads: dict[str, list[Fact]] = {}
        for moment in moments[at : at + together]:
            for fact in moment:
                threads.setdefault(fact.thread, []).append(fact)
        # Queues first, as in every commit: a run's end must not fence what it ends with.
        ordered = sorted(threads, key=lambda thread: not thread.startswith("squid:dispatch"))
        storage.commit([Append(thread, threads[thread]) for thread in ordered])


def run_refresh(spark: SparkSession, storage: PostgresStorage, warehouse: Warehouse, **options: Any) -> Refreshed:
    """Refresh the tables of a storage."""
    return refresh(spark, storage, location(storage), warehouse, **options)


def contents(warehouse: Warehouse) -> dict[str, list[str]]:
    """Every row of every table, the stage too, in an order of its own; read by somebody who knows nothing of Spark."""
    found = {}
    for table in (STAGE, *TABLES):
        manifest = warehouse.manifest(table)
        assert manifest is not None
        paths = [Path(warehouse.path) / table / directory for directory in manifest.directories]
        rows = [row for path in paths for row in pq.read_table(path, partitioning=None).to_pylist()]
        found[table] = as_text(rows)
    return found


def as_text(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as text that can be compared and sorted."""
    return sorted(json.dumps(row, default=str, sort_keys=True) for row in rows)


def marks(warehouse: Warehouse, table: str) -> dict[str, tuple[int, int, bool]]:
    """What a manifest says of each part: rows, open runs, sealed."""
    manifest = warehouse.manifest(table)
    assert manifest is not None
    return {name: (part.rows, part.open_runs, part.sealed) for name, part in manifest.parts.items()}


DAMAGE: LiteralString = "UPDATE {schema}.journal_entries SET data = '{{}}' WHERE run_id = %s AND type = %s"


def test_increments_and_a_full_rebuild_give_the_same_tables(
    spark: SparkSession, postgres: PostgresStorage, tmp_path: Path
) -> None:
    random = Random(1)
    every = lives(random, 24, timedelta(hours=5))
    chosen = {life.run_id for life in random.sample(every, 6)}
    moments = mixed(random, [late(life) if life.run_id in chosen else life.moments for life in every])
    third = len(moments) // 3
    steps, whole = Warehouse(str(tmp_path / "steps")), Warehouse(str(tmp_path / "whole"))

    write(postgres, moments[:third])
    first = run_refresh(spark, postgres, steps)
    pauses: list[Fact] = [queue_paused("slow"), queue_paused("idle"), queue_resumed("slow")]
    for fact in pauses:
        postgres.append(fact.thread, [fact])
    # A run that had its day loses it with its start, and is touched again; another one is damaged for good.
    begun = {fact.run_id for moment in moments[:third] for fact in moment if isinstance(fact, RunStarted)}
    ids = [getattr(fact, "run_id", None) for moment in moments[third:] for fact in moment]
    touched = [run_id for run_id in ids if run_id in begun]
    damage(postgres, DAMAGE, touched[0], "run_started")
    writer = _Writer(postgres, moments[third : 2 * third])
    writer.start()
    second = run_refresh(spark, postgres, steps)  # while somebody writes
    writer.join()
    assert writer.error is None
    write(postgres, moments[2 * third :])
    last = run_refresh(spark, postgres, steps)
    rebuilt = run_refresh(spark, postgres, whole, full=True, upto=last.cut)

    assert (first.full, second.full, last.full, rebuilt.full) == (True, False, False, True)
    assert last.covered_before == second.cut >= first.cut
    assert contents(steps) == contents(whole)
    assert last.rows == rebuilt.rows
    for table in (STAGE, *TABLES):
        assert marks(steps, table) == marks(whole, table)
    assert rebuilt.rows["run_history"] == len(every)
    anomalies = steps.read(spark, "journal_anomalies").where("reason = 'malformed_entry'").collect()
    assert [row.run_id for row in anomalies] == [touched[0]]
    assert touched[0] in {row.run_id for row in steps.read(spark, "run_history", ["unknown"]).collect()}


def test_a_run_that_gets_its_day_late_or_loses_it_is_in_one_place_only(
    spark: SparkSession, postgres: PostgresStorage, tmp_path: Path
) -> None:
    steps, whole = Warehouse(str(tmp_path / "steps")), Warehouse(str(tmp_path / "whole"))

    def refreshed(*facts: Fact) -> Refreshed:
        write(postgres, [[fact] for fact in facts])
        return run_refresh(spark, postgres, steps)

    refreshed(queued("late"), scheduled("late"), queued("sound"), started("sound"), scheduled("sound"))
    assert marks(steps, "run_history") == {"2026-01-01": (1, 1, False), UNKNOWN: (1, 1, False)}

    assert refreshed(started("late", at=86_400)).days == ("2026-01-02",)
    assert marks(steps, "run_history") == {"2026-01-01": (1, 1, False), "2026-01-02": (1, 1, False)}

    damage(postgres, DAMAGE, "sound", "run_started")
    last = refreshed(claimed("sound", at=90_000))
    assert marks(steps, "run_history") == {"2026-01-02": (1, 1, False), UNKNOWN: (1, 1, False)}

    run_refresh(spark, postgres, whole, full=True, upto=last.cut)
    assert contents(steps) == contents(whole)


class _Writer(threading.Thread):
    def __init__(self, storage: PostgresStorage, moments: Moments) -> None:
        super().__init__()
        self._storage, self._moments = storage, moments
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            write(self._storage, self._moments, together=2)
        except BaseException as error:  # noqa: BLE001  told by the test
            self.error = error


def test_only_days_that_were_touched_are_written_and_others_stay_readable(
    spark: SparkSession, postgres: PostgresStorage, tmp_path: Path
) -> None:
    random, warehouse = Random(3), Warehouse(str(tmp_path / "house"))
    days = [lives(random, 3, timedelta(minutes=1), first) for first in (0, 1440, 2880)]
    opened = next(life for life in days[1] if life.unfinished == 0 and len(life.moments) > 2)
    for life in (life for day in days for life in day):
        write(postgres, life.moments[:-2] if life is opened else life.moments)
    run_refresh(spark, postgres, warehouse)
    assert set(marks(warehouse, "run_history")) == {"2026-01-01", "2026-01-02", "2026-01-03"}
    before, held = contents(warehouse), warehouse.read(spark, "attempt_history")
    open_before = marks(warehouse, STAGE)["2026-01-02"][1]
    (Path(warehouse.path) / STAGE / "0-crashed" / "part=2026-01-01").mkdir(parents=True)

    write(postgres, opened.moments[-2:])
    done = run_refresh(spark, postgres, warehouse)

    assert done.days == ("2026-01-02",)
    assert {name: each.days for name, each in done.tables.items() if name != "queue_health"} == dict.fromkeys(
        (STAGE, *TABLES[:-1]), ("2026-01-02",)
    )
    assert marks(warehouse, STAGE)["2026-01-02"][1] == open_before - 1
    assert done.rows["run_history"] == len(before["run_history"])  # runs of that day that nobody touched are there too
    assert not (Path(warehouse.path) / STAGE / "0-crashed").exists()
    assert held.count() == len(before["attempt_history"])  # whoever read before still can

    unchanged = run_refresh(spark, postgres, warehouse)
    assert (unchanged.cut, unchanged.days) == (done.cut, ())
    assert all(not each.written for each in unchanged.tables.values())

    # Some days are made anew from the stage, or from the journal where the stage has lost them.
    manifest = warehouse.manifest(STAGE)
    assert manifest is not None
    after = contents(warehouse)
    for lost in (Path(warehouse.path) / STAGE).glob("*/part=2026-01-01/*.parquet"):
        lost.unlink()
    with Refresher(spark, postgres, location(postgres), warehouse).begun() as work:
        folded = work.stage(days=[date(2026, 1, 1), date(2026, 1, 7)])
        cut = work.table("run_history", days=[date(2026, 1, 1)])
    assert (folded.days, cut.days, cut.manifest.covered) == (("2026-01-01",), ("2026-01-01",), manifest.covered)
    assert contents(warehouse) == after


def test_a_table_that_was_never_made_says_so(spark: SparkSession, tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path))
    with pytest.raises(WarehouseUnavailable, match=r"no table 'run_index' in the warehouse .* yet: materialize it"):
        warehouse.read(spark, "run_index")
    with pytest.raises(InvalidArgument, match="no table 'runs': choose from run_index"):
        warehouse.read(spark, "runs")


def test_an_empty_journal_has_empty_tables(spark: SparkSession, postgres: PostgresStorage, tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path))
    done = run_refresh(spark, postgres, warehouse)
    assert (done.cut, done.rows) == (0, dict.fromkeys(TABLES, 0))
    history = warehouse.read(spark, "run_history")
    assert (history.count(), history.columns[:2], history.columns[-1]) == (0, ["run_id", "first_position"], "day")


def test_no_table_holds_a_secret_of_an_error(spark: SparkSession, postgres: PostgresStorage, tmp_path: Path) -> None:
    """Not even of one that was written before errors were redacted."""
    with Squid(postgres, workflows) as squid:
        fill(squid)
    put(postgres, started("old"), queued("old"), scheduled("old"), claimed("old"), failed("old", error=TOLD))
    put(postgres, terminal("old", status="failed", error={"message": URL, **TOLD}))
    warehouse = Warehouse(str(tmp_path))

    run_refresh(spark, postgres, warehouse)

    rows = "\n".join(row for table in contents(warehouse).values() for row in table)
    assert '"old"' in rows
    assert "api.example.com" in rows
    assert CANARY not in rows


def test_whatever_goes_wrong_on_the_way_all_tables_stay_as_they_were(
    spark: SparkSession, postgres: PostgresStorage, tmp_path: Path
) -> None:
    random, warehouse = Random(5), Warehouse(str(tmp_path / "house"))
    moments = mixed(random, [life.moments for life in lives(random, 8, timedelta(hours=9))])
    write(postgres, moments[:-20])
    run_refresh(spark, postgres, warehouse)
    before = contents(warehouse)
    write(postgres, moments[-20:])

    def losing_the_lock(what: str) -> None:
        if what.startswith("folding"):
            terminate_backends(postgres)

    with pytest.raises(WarehouseBusy, match=r"lock of the warehouse .* was lost"):
        run_refresh(spark, postgres, warehouse, progress=losing_the_lock)
    assert contents(warehouse) == before

    def losing_the_journal(what: str) -> None:
        if what.startswith("folding"):
            rename(postgres, "ALTER TABLE {schema}.journal_entries RENAME COLUMN data TO away")

    with pytest.raises(RefreshFailed, match=rf"could not write table '{STAGE}'.*StorageRefused.*refresh again"):
        run_refresh(spark, postgres, warehouse, progress=losing_the_journal)
    rename(postgres, "ALTER TABLE {schema}.journal_entries RENAME COLUMN away TO data")
    assert contents(warehouse) == before
    assert sum(warehouse.read(spark, table).count() for table in TABLES) == sum(len(before[table]) for table in TABLES)

    # The stage is done when a table cannot be written: it is behind, and whole.
    (tmp_path / "house" / "run_catalog").rename(tmp_path / "aside")
    (tmp_path / "house" / "run_catalog").write_text("in the way")
    with pytest.raises(WarehouseUnavailable, match="cannot read in the warehouse"):
        run_refresh(spark, postgres, warehouse)
    (tmp_path / "house" / "run_catalog").unlink()
    (tmp_path / "aside").rename(tmp_path / "house" / "run_catalog")
    behind, stage = warehouse.manifest("run_catalog"), warehouse.manifest(STAGE)
    assert behind is not None
    assert stage is not None
    assert behind.covered < stage.covered
    assert contents(warehouse)["run_catalog"] == before["run_catalog"]

    done = run_refresh(spark, postgres, warehouse)
    whole = Warehouse(str(tmp_path / "whole"))
    run_refresh(spark, postgres, whole, upto=done.cut)
    assert contents(warehouse) == contents(whole)


def rename(storage: PostgresStorage, text: LiteralString) -> None:
    """Take a table away, or put it back."""
    with storage.connection() as connection:
        connection.execute(storage.sql(text))


def test_a_refresh_is_refused_before_anything_is_touched(
    spark: SparkSession, postgres: PostgresStorage, postgres_url: str, schema_names: Iterator[str], tmp_path: Path
) -> None:
    warehouse = Warehouse(str(tmp_path / "house"))
    write(postgres, [moment for life in lives(Random(7), 2, timedelta(hours=1)) for moment in life.moments])
    run_refresh(spark, postgres, warehouse)
    before = contents(warehouse)

    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WarehouseUnavailable, match="cannot write in the warehouse"):
        run_refresh(spark, postgres, Warehouse(str(tmp_path / "file")))
    nowhere = PostgresStorage(postgres_url, "nowhere")
    with pytest.raises(SchemaOutdated):
        run_refresh(spark, nowhere, warehouse)
    nowhere.close()
    with pytest.raises(InvalidArgument, match=r"upto 3 lies before \d+, which the tables cover"):
        run_refresh(spark, postgres, warehouse, upto=3)
    with pytest.raises(InvalidArgument, match=f"upto {2**60} is no cut: the journal is settled up to"):
        run_refresh(spark, postgres, warehouse, upto=2**60)

    other = PostgresStorage(postgres_url, next(schema_names))
    other.upgrade()
    write(other, [moment for life in lives(Random(8), 2, timedelta(hours=1)) for moment in life.moments])
    with pytest.raises(ForeignWarehouse, match=r"tables of another journal .* full=True to replace them"):
        run_refresh(spark, other, warehouse)
    other.close()

    manifest = tmp_path / "house" / STAGE / "manifest.json"
    kept = manifest.read_text()
    manifest.write_text(kept.replace('"layout": 1', '"layout": 99'))
    for full in (False, True):
        with pytest.raises(WarehouseTooNew, match="layout 99"):
            run_refresh(spark, postgres, warehouse, full=full)
    manifest.write_text("{")
    with pytest.raises(WarehouseUnavailable, match="full=True to make all tables anew"):
        run_refresh(spark, postgres, warehouse)
    manifest.write_text(kept)
    assert contents(warehouse) == before

    # Rows of another shape, as an older version has left them, are never mixed with new ones: all are made anew.
    manifest.write_text(kept.replace("last_position", "older_position"))
    done = run_refresh(spark, postgres, warehouse)
    assert done.full
    assert contents(warehouse) == before


def test_a_part_of_several_files_is_refreshed_as_one(
    spark: SparkSession, postgres: PostgresStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warehouse_stage, "_FILE_BYTES", 1)
    random = Random(11)
    steps, whole = Warehouse(str(tmp_path / "steps")), Warehouse(str(tmp_path / "whole"))
    moments = mixed(random, [life.moments for life in lives(random, 9, timedelta(minutes=1))])
    third = len(moments) // 3
    for at in range(0, 3 * third, third):
        write(postgres, moments[at : at + third] if at < 2 * third else moments[at:])
        last = run_refresh(spark, postgres, steps)
    run_refresh(spark, postgres, whole, upto=last.cut)
    assert len(list((tmp_path / "steps" / STAGE).glob(f"{last.cut}-*/part=2026-01-01/*.parquet"))) == 3
    assert contents(steps) == contents(whole)


class _Crash(BaseException):
    """The end of a process, at a line of ours."""


@pytest.mark.parametrize("published", range(1 + len(TABLES)))
def test_a_crash_before_any_table_is_published_leaves_all_readable_and_the_next_refresh_right(
    spark: SparkSession, postgres: PostgresStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: int
) -> None:
    random, warehouse = Random(13), Warehouse(str(tmp_path / "house"))
    moments = mixed(random, [life.moments for life in lives(random, 5, timedelta(hours=9))])
    write(postgres, moments[:-10])
    run_refresh(spark, postgres, warehouse)
    before = contents(warehouse)
    write(postgres, moments[-10:])
    whole = Warehouse(str(tmp_path / "whole"))
    cut = run_refresh(spark, postgres, whole).cut
    names = (STAGE, *TABLES)

    def publish(self: Warehouse, manifest: Manifest) -> None:
        if manifest.table == names[published]:
            raise _Crash
        real(self, manifest)

    real = Warehouse.publish
    with monkeypatch.context() as crashing:
        crashing.setattr(Warehouse, "publish", publish)
        crashing.setattr(Files, "remove", lambda *_: None)  # nor did it get to put things away
        with pytest.raises(_Crash):
            run_refresh(spark, postgres, warehouse, upto=cut)

    after, found = contents(whole), contents(warehouse)
    assert found == {name: (after if names.index(name) < published else before)[name] for name in names}
    run_refresh(spark, postgres, warehouse, upto=cut)
    assert contents(warehouse) == after
    assert not list((tmp_path / "house" / STAGE).glob("*-touched"))


def test_a_file_that_cannot_be_merged_is_told_and_nothing_is_left_of_the_try(
    spark: SparkSession, postgres: PostgresStorage, tmp_path: Path
) -> None:
    random, warehouse = Random(17), Warehouse(str(tmp_path / "house"))
    moments = mixed(random, [life.moments for life in lives(random, 3, timedelta(minutes=1))])
    write(postgres, moments[:-3])
    run_refresh(spark, postgres, warehouse)
    before = contents(warehouse)
    write(postgres, moments[-3:])
    (file,) = (tmp_path / "house" / STAGE).glob("*/part=2026-01-01/*.parquet")
    kept = file.read_bytes()
    file.write_bytes(b"damaged")
    with pytest.raises(RefreshFailed, match=f"could not write table '{STAGE}'"):
        run_refresh(spark, postgres, warehouse)
    assert not list((tmp_path / "house" / STAGE).glob("*-touched"))
    file.write_bytes(kept)
    assert contents(warehouse) == before


def test_the_health_of_a_queue_is_that_of_the_last_fact() -> None:
    day = 86_400.0
    runs: dict[str, list[Fact]] = {
        "done": [started("done"), scheduled("done"), claimed("done", at=10), completed("done"), terminal("done")],
        "long-ago": [started("long-ago", at=-9 * day), scheduled("long-ago", at=-9 * day, visible_at=t(-9 * day))],
        "due": [started("due"), scheduled("due", at=5)],
        "held": [started("held"), scheduled("held"), claimed("held", at=20, lease_until=t(3_600))],
        "lost": [started("lost"), scheduled("lost"), claimed("lost", at=30, lease_until=t(60))],
        "ended": [started("ended"), scheduled("ended"), terminal("ended")],
    }
    units = [unit_row(run, fold_run(entries(facts))) for run, facts in runs.items()]
    units.append(loose_row(entries([queue_paused(), queue_paused("quiet"), queue_resumed("quiet")])))
    schema, tally = to_arrow_schema(STAGE_SCHEMA, timezone="UTC"), QueueTally()
    for one in units:  # each by a task of its own
        told = QueueTally()
        told.add_runs(pa.RecordBatch.from_pylist([one], schema=schema), t(100))
        tally.add(QueueTally.load(told.dump()))

    found = {row["queue"]: row for row in tally.rows(t(100))}

    assert found["default"] == {
        "queue": "default",
        "paused": True,
        "scheduled": 0,
        "due": 2,
        "claimed": 1,
        "lease_over": 1,
        "dead_letters": 0,
        "oldest_due_at": t(-9 * day),
        "deliveries": 3,
        "expiries": 0,
        "completed": 1,
        "failed": 0,
        "dead_lettered": 0,
        "waiting_p50_ms": 20_000.0,
        "waiting_p95_ms": 29_000.0,
        "as_of": t(100),
    }
    assert (found["quiet"]["paused"], found["quiet"]["due"], found["quiet"]["waiting_p50_ms"]) == (False, 0, None)
    assert len(found) == 2
