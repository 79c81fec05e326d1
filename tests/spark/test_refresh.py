"""Refreshes: increments and a full rebuild give the same tables, whatever happened in between."""

import threading
from datetime import date, timedelta
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from squid_dagster.api import Squid
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import Fact, RunStarted
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.errors import (
    WarehouseUnavailable,
)
from squid_dagster.spark.fold.run_rows import fold_run, loose_row, unit_row
from squid_dagster.spark.tables import stage as warehouse_stage
from squid_dagster.spark.tables.columns import UNIT_SCHEMA
from squid_dagster.spark.tables.manifest import UNKNOWN
from squid_dagster.spark.tables.queue_health import QueueTally
from squid_dagster.spark.tables.refresh import RefreshResult, WarehouseRefresh
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
from tests.journal.access import put
from tests.planted_secrets import CANARY, TOLD, URL, fill, workflows
from tests.spark.reading import location
from tests.spark.refresh_steps import DAMAGE, Moments, contents, late, marks, mixed, random_runs, run_refresh, write
from tests.spark.test_folds import damage


def test_increments_and_a_full_rebuild_give_the_same_tables(
    spark: SparkSession, postgres: PostgresStorage, tmp_path: Path
) -> None:
    random = Random(1)
    every = random_runs(random, 24, timedelta(hours=5))
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
    second = run_refresh(spark, postgres, steps)  # while another process writes
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

    def refreshed(*facts: Fact) -> RefreshResult:
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
    days = [random_runs(random, 3, timedelta(minutes=1), first) for first in (0, 1440, 2880)]
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
    assert {name: table.days for name, table in done.tables.items() if name != "queue_health"} == dict.fromkeys(
        (STAGE, *TABLES[:-1]), ("2026-01-02",)
    )
    assert marks(warehouse, STAGE)["2026-01-02"][1] == open_before - 1
    assert done.rows["run_history"] == len(before["run_history"])  # also the unchanged runs of that day
    assert not (Path(warehouse.path) / STAGE / "0-crashed").exists()
    assert held.count() == len(before["attempt_history"])  # an earlier frame is still readable

    unchanged = run_refresh(spark, postgres, warehouse)
    assert (unchanged.cut, unchanged.days) == (done.cut, ())
    assert all(not table.written for table in unchanged.tables.values())

    # Some days are made anew from the stage, or from the journal where the stage has lost them.
    manifest = warehouse.manifest(STAGE)
    assert manifest is not None
    after = contents(warehouse)
    for lost in (Path(warehouse.path) / STAGE).glob("*/part=2026-01-01/*.parquet"):
        lost.unlink()
    with WarehouseRefresh(spark, postgres, location(postgres), warehouse).begun() as work:
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
    """Check an error that was written before errors were redacted."""
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


def test_a_part_of_several_files_is_refreshed_as_one(
    spark: SparkSession, postgres: PostgresStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warehouse_stage, "_FILE_BYTES", 1)
    random = Random(11)
    steps, whole = Warehouse(str(tmp_path / "steps")), Warehouse(str(tmp_path / "whole"))
    moments = mixed(random, [life.moments for life in random_runs(random, 9, timedelta(minutes=1))])
    third = len(moments) // 3
    for at in range(0, 3 * third, third):
        write(postgres, moments[at : at + third] if at < 2 * third else moments[at:])
        last = run_refresh(spark, postgres, steps)
    run_refresh(spark, postgres, whole, upto=last.cut)
    assert len(list((tmp_path / "steps" / STAGE).glob(f"{last.cut}-*/part=2026-01-01/*.parquet"))) == 3
    assert contents(steps) == contents(whole)


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
    schema, tally = to_arrow_schema(UNIT_SCHEMA, timezone="UTC"), QueueTally()
    for one in units:  # each by a task of its own
        single = QueueTally()
        single.add_runs(pa.RecordBatch.from_pylist([one], schema=schema), t(100))
        tally.add(QueueTally.load(single.dump()))

    by_queue = {row["queue"]: row for row in tally.rows(t(100))}

    assert by_queue["default"] == {
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
    assert (by_queue["quiet"]["paused"], by_queue["quiet"]["due"], by_queue["quiet"]["waiting_p50_ms"]) == (
        False,
        0,
        None,
    )
    assert len(by_queue) == 2
