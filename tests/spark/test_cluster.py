"""Spark on clusters: executors in processes of their own, one of them killed, and a driver with little memory."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.spark.clusters import (
    SECRET,
    assert_as_in_this_process,
    assert_hidden,
    command_line,
    driver,
    events,
    kill,
    logged,
    page,
    standalone,
    web_pages,
)
from tests.spark.journal_generator import Plan, generate

FACTS = 40_000
LOCAL_CLUSTER = "local-cluster[2,1,1024]"
EXECUTOR, DAEMON = "CoarseGrainedExecutorBackend", "pyspark.daemon"


def fill(storage: PostgresStorage) -> None:
    """Write many facts, by two writers."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda seed: generate(storage, Plan(FACTS // 2, seed=seed)), (1, 2)))


@pytest.mark.timeout(900)  # three JVMs and their workers, where others may be busy too
def test_a_rebuild_survives_its_executor_and_never_folds_in_the_driver_and_a_refresh_gives_the_same(
    postgres: PostgresStorage, tmp_path: Path
) -> None:
    log, trap = tmp_path / "events", tmp_path / "trap"
    log.mkdir()
    with driver(LOCAL_CLUSTER, postgres, log) as program:
        fill(postgres)
        program.tell(f"rebuild {tmp_path / 'calm'}")
        calm = program.told("rebuilt")
        commands = {pid: command_line(pid) for pid in program.processes()}

        program.tell(f"rebuild {tmp_path / 'hit'} {trap}")
        killed = int(program.wait_for_file(trap))
        assert EXECUTOR in command_line(killed)
        kill(killed)
        hit = program.told("rebuilt", 2)

        generate(postgres, Plan(500, seed=3, runs_per_commit=10))
        program.tell(f"refresh {tmp_path / 'calm'}")
        refreshed = program.told("refreshed")
        program.tell(f"rebuild {tmp_path / 'hit'}")
        again = program.told("rebuilt", 3)

    assert hit["tables"] == calm["tables"]
    assert not refreshed["full"]
    assert refreshed["tables"] == again["tables"] != calm["tables"]
    assert SECRET not in "".join([*commands.values(), *logged(log)])
    assert calm["rows"]["run_history"] > FACTS / 20
    log_events = events(log)
    removed = [event for event in log_events if event["Event"] == "SparkListenerExecutorRemoved"]
    started = [event["Task Info"] for event in log_events if event["Event"] == "SparkListenerTaskStart"]
    assert removed
    assert [task for task in started if task["Attempt"] > 0 and task["Executor ID"] != removed[0]["Executor ID"]]

    (jvm,) = [pid for pid, command in commands.items() if "org.apache.spark.deploy.SparkSubmit" in command]
    assert "-Xmx512m" in commands[jvm].split("\0")
    assert calm["folded_in"]
    for pid, above in calm["folded_in"].items():
        (_, parent), (executor, grandparent), *_ = above
        assert int(pid) not in (calm["pid"], jvm)
        assert DAEMON in parent
        assert EXECUTOR in grandparent
        assert executor in commands


def test_a_standalone_cluster_folds_as_one_process_does_and_shows_no_password(
    spark: SparkSession, postgres: PostgresStorage, tmp_path: Path
) -> None:
    generate(postgres, Plan(300, runs_per_commit=10))
    with standalone(tmp_path / "work") as cluster, driver(cluster.master, postgres, tmp_path) as program:
        program.tell("look")
        looked = program.told("looked")
        shown = [
            looked["plans"],
            *web_pages(looked["web"]),
            page(f"{cluster.web}/json/"),
            *(command_line(pid) for source in [program, *cluster.programs] for pid in source.processes()),
        ]

    assert_as_in_this_process(spark, postgres, looked)
    assert_hidden(shown, tmp_path)
