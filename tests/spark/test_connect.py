"""Spark Connect: a server that is started for it, and a session through `open_session`."""

import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from squid_dagster.journal.postgres.storage import PostgresStorage
from tests.spark.clusters import (
    assert_as_in_this_process,
    assert_hidden,
    command_line,
    connect_server,
    driver,
    web_pages,
)
from tests.spark.journal_generator import Plan, generate


def test_a_connect_server_folds_and_refreshes_as_one_process_does_and_shows_no_password(
    spark: SparkSession, postgres: PostgresStorage, tmp_path: Path
) -> None:
    generate(postgres, Plan(300, runs_per_commit=10))
    with connect_server(tmp_path) as cluster, driver(cluster.master, postgres, tmp_path) as program:
        program.tell(f"refresh {tmp_path / 'house'}")
        program.told("refreshed")
        generate(postgres, Plan(100, seed=1, runs_per_commit=10))
        program.tell(f"refresh {tmp_path / 'house'}")
        refreshed = program.told("refreshed", 2)
        program.tell(f"refresh {tmp_path / 'whole'}")
        whole = program.told("refreshed", 3)
        program.tell("look")
        looked = program.told("looked")
        shown = [
            looked["plans"],
            *web_pages(cluster.web),
            *(command_line(pid) for source in [program, *cluster.programs] for pid in source.processes()),
        ]

    assert (refreshed["full"], whole["full"]) == (False, True)
    assert refreshed["tables"] == whole["tables"]
    assert_as_in_this_process(spark, postgres, looked)
    assert_hidden(shown, tmp_path)


# In a process of its own: it has no session, and would be left in the mode of Connect.
_ASK_A_STRANGER = """
import grpc
from concurrent.futures import ThreadPoolExecutor
from squid_dagster.spark.errors import SparkUnavailable
from squid_dagster.spark.session.session import open_session

server = grpc.server(ThreadPoolExecutor(1))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
try:
    open_session(f"sc://127.0.0.1:{port}/;token_of_ours=s3cret")
except SparkUnavailable as refused:
    print(refused)
server.stop(None)
open_session("sc://127.0.0.1:1")
"""


def test_a_server_that_speaks_grpc_and_is_no_spark_is_told() -> None:
    done = subprocess.run([sys.executable, "-c", _ASK_A_STRANGER], capture_output=True, text=True, check=False)

    assert "no Spark master answers (127.0.0.1:1: " in done.stderr  # of the first one nothing is left
    assert "does not give us a session" in done.stdout
    assert "UNIMPLEMENTED" in done.stdout
    assert "s3cret" not in done.stdout
