"""The checks of a journal: each kind of damage turns one of them red, and no writer at work turns any."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from squid_dagster.journal import PostgresStorage
from squid_dagster.protocol.errors import InvalidArgument
from squid_dagster.spark.checks.journal_checks import Check, CheckResult, checked
from squid_dagster.spark.checks.known_anomalies import KnownAnomalies
from squid_dagster.spark.fold.worker_journal import WorkFailed
from tests.facts import started
from tests.journal.writers import start
from tests.processes import Child, children
from tests.spark.damages import DAMAGES, ENDED, OPEN, SHARED, Damage, damage_named, healthy
from tests.spark.reading import location

CheckResults = dict[Check, CheckResult]


@pytest.fixture
def journal(postgres: PostgresStorage) -> PostgresStorage:
    """A healthy journal."""
    healthy(postgres)
    return postgres


@pytest.fixture(scope="module")
def memory(spark: SparkSession, postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> KnownAnomalies:
    """The anomalies of the healthy journal: they are the same in each."""
    memory = KnownAnomalies(str(tmp_path_factory.mktemp("warehouse")))
    storage = PostgresStorage(postgres_url, "healthy")
    storage.upgrade()
    healthy(storage)
    with checked(spark, storage, location(storage), memory=memory, partitions=2) as done:
        assert vector(done.results) == "G G G R"  # nothing is known yet
        done.remember()
    storage.close()
    return memory


def check(
    spark: SparkSession, storage: PostgresStorage, memory: KnownAnomalies | None = None, **options: Any
) -> CheckResults:
    """Return all results; nothing is remembered."""
    with checked(spark, storage, location(storage), memory=memory, partitions=2, **options) as done:
        return done.results


def vector(results: CheckResults) -> str:
    """Return all checks in order, as passed or failed."""
    return " ".join("G" if results[name].passed else "R" for name in Check)


def runs(result: CheckResult) -> set[str | None]:
    """Return the runs that a check names."""
    return {one.run_id for one in result.runs}


# --- damage, of one kind at a time ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def damaged(
    spark: SparkSession, postgres_url: str, schema_names: Iterator[str], memory: KnownAnomalies
) -> Iterator[dict[str, Future[CheckResults]]]:
    """Each damage in a journal of its own, checked: some at a time, since most of a small job is waiting."""

    def judge(schema: str, plant: Callable[[PostgresStorage], None]) -> CheckResults:
        storage = PostgresStorage(postgres_url, schema)
        try:
            storage.upgrade()
            healthy(storage)
            plant(storage)
            return check(spark, storage, memory)
        finally:
            storage.close()

    with ThreadPoolExecutor(3) as pool:
        yield {damage.name: pool.submit(judge, next(schema_names), damage.plant) for damage in DAMAGES}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.name)
def test_damage_turns_one_check_red(damaged: dict[str, Future[CheckResults]], damage: Damage) -> None:
    results = damaged[damage.name].result()

    print(f"damage={damage.name} checks={vector(results)}")
    assert vector(results) == " ".join("R" if name is damage.check else "G" for name in Check), results
    if damage.check is None:
        assert all(result.runs == () and result.remedy == "" for result in results.values())
        return
    result = results[damage.check]
    assert result.remedy
    assert 0 < len(result.runs) <= 20
    assert result.unnamed == result.counts["found"] - len(result.runs)
    assert damage.run is None or damage.run in runs(result)


def test_what_is_counted_tells_how_much_was_looked_at(damaged: dict[str, Future[CheckResults]]) -> None:
    green, emptied = damaged["none"].result(), damaged["view_emptied"].result()[Check.VIEWS]
    gap = damaged["dispatch_entry_deleted"].result()

    assert green[Check.VIEWS].counts["runs"] == green[Check.LISTED].counts["runs"] > 20
    assert green[Check.ANOMALIES].counts["anomalies"] == green[Check.ANOMALIES].counts["known"] > 0
    assert emptied.counts["found"] == emptied.counts["runs"] == len(emptied.runs) + emptied.unnamed > 20
    # The gap is on a thread that many runs share: the one that misses the fact is named by the check of the gap.
    assert gap[Check.VIEWS].counts["not_judged"] == gap[Check.SEQUENCES].counts["runs_hurt"] == 1
    assert runs(gap[Check.SEQUENCES]) == {None, OPEN}
    assert any(SHARED in one.what for one in gap[Check.SEQUENCES].runs)


def test_damage_in_one_place_hides_none_in_another(
    spark: SparkSession, journal: PostgresStorage, memory: KnownAnomalies
) -> None:
    for name in ("run_entry_deleted", "run_row_missing", "index_of_unknown_run", "refused_by_ended"):
        damage_named(name).plant(journal)

    results = check(spark, journal, memory)

    assert vector(results) == "R R R R"
    assert runs(results[Check.VIEWS]) == {ENDED}
    assert runs(results[Check.LISTED]) == {"ghost"}
    assert runs(results[Check.SEQUENCES]) == {OPEN}
    assert runs(results[Check.ANOMALIES]) == {ENDED}


# --- what is no damage ----------------------------------------------------------------------------------------------


def test_writers_at_full_speed_turn_nothing_red(
    spark: SparkSession, postgres: PostgresStorage, postgres_url: str
) -> None:
    start(postgres, ["first"])
    seen = [check(spark, postgres)[Check.LISTED].counts]  # Spark is awake before the journal begins to grow
    with children() as crowd:
        crowd.append(Child("tests.journal.writers", "work", postgres_url, postgres.schema, "1", "1000000"))
        crowd.append(Child("tests.journal.writers", "scatter", postgres_url, postgres.schema, "2", "1000000"))
        for child in crowd:
            child.wait_for_lines(10)
        with ThreadPoolExecutor(3) as pool:
            for results in pool.map(lambda _: check(spark, postgres), range(10)):
                assert vector(results) == "G G G G", results
                seen.append(results[Check.LISTED].counts)
        assert all(child.process.poll() is None for child in crowd)
    assert seen[-1]["runs"] > seen[1]["runs"] > 1
    assert seen[-1]["waiting"] > 1  # these writers list nothing, and a moment ago is no damage


def test_a_run_may_take_a_while_into_index_and_catalog(spark: SparkSession, postgres: PostgresStorage) -> None:
    start(postgres, ["young"])
    postgres.append("squid:run:old", [started("old")])  # its time is months ago

    result = check(spark, postgres)[Check.LISTED]
    late = check(spark, postgres, grace=timedelta(0))[Check.LISTED]

    assert (runs(result), result.counts["waiting"]) == ({"old"}, 1)
    assert (runs(late), late.counts["waiting"]) == ({"old", "young"}, 0)


# --- what is remembered ---------------------------------------------------------------------------------------------


def test_an_anomaly_is_new_once_and_all_are_new_to_who_remembers_nothing(
    spark: SparkSession, journal: PostgresStorage, tmp_path: Path
) -> None:
    def look() -> CheckResult:
        known = KnownAnomalies(str(tmp_path / "house"))
        with checked(spark, journal, location(journal), memory=known, checks=[Check.ANOMALIES], partitions=2) as done:
            done.remember()
            assert done.results.keys() == {Check.ANOMALIES}
            return done.results[Check.ANOMALIES]

    first = look()
    assert not first.passed
    assert first.counts["found"] == first.counts["anomalies"] > 1
    assert look().passed
    damage_named("refused_start").plant(journal)
    second = look()
    assert (second.passed, second.counts["found"], runs(second)) == (False, 1, {OPEN})
    assert look().passed

    (tmp_path / "house/checks/known_anomalies.json").write_text("{damaged")

    assert look().counts["found"] == first.counts["found"] + 1
    assert look().passed
    assert len(list((tmp_path / "house/checks/known_anomalies").iterdir())) <= 2


# --- what cannot be checked -----------------------------------------------------------------------------------------


def test_one_check_alone_does_what_it_needs(spark: SparkSession, journal: PostgresStorage) -> None:
    green = check(spark, journal, checks=[Check.SEQUENCES])
    damage_named("catalog_entry_deleted").plant(journal)
    red = check(spark, journal, checks=[Check.SEQUENCES])

    assert green.keys() == red.keys() == {Check.SEQUENCES}
    assert (green[Check.SEQUENCES].passed, red[Check.SEQUENCES].passed) == (True, False)
    assert OPEN in runs(red[Check.SEQUENCES])


def test_wrong_arguments_are_refused(spark: SparkSession, journal: PostgresStorage) -> None:
    for wrong, kind, message in (
        ({}, InvalidArgument, "one of url, url_file and url_env"),
        ({"url_file": "/nowhere/url"}, InvalidArgument, "cannot be read on this machine"),
    ):
        with pytest.raises(kind, match=message), checked(spark, journal, wrong):
            pass
    with pytest.raises(InvalidArgument, match="partitions is 0"), checked(spark, journal, {}, partitions=0):
        pass
    with (
        pytest.raises(WorkFailed, match="the journal could not be checked"),
        checked(spark, journal, location(journal), partitions=2),
    ):
        spark.sql("SELECT raise_error('a worker gave up')").collect()
