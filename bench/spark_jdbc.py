"""Spark's own JDBC reader, for the comparison only: the driver's jar from the machine, or from its package."""

import subprocess
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.peers.process import BenchError
from bench.spark_journal import SCHEMA

COLUMNS = ("position", "thread", "seq", "type", "run_id", "occurred_at", "data")
_PACKAGE = "libpostgresql-jdbc-java"
_JAR = Path("usr/share/java/postgresql.jar")
_FETCH_ROWS = 20_000  # without it the driver fetches everything at once
_SELECT = f"SELECT {', '.join(COLUMNS[:-1])}, data::text AS data FROM {SCHEMA}.journal_entries"


def find_jar(directory: Path) -> Path:
    """Return the driver's jar: of this machine, else of Debian's package, unpacked into a directory.

    Raises:
        BenchError: there is none, and it cannot be downloaded.
    """
    installed = Path("/") / _JAR
    if installed.exists():
        return installed
    commands = (["apt-get", "download", _PACKAGE], ["sh", "-c", f"dpkg-deb -x {_PACKAGE}_*.deb ."])
    try:
        for command in commands:
            subprocess.run(command, cwd=directory, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        msg = f"the comparison with Spark's JDBC reader needs its driver: apt-get install {_PACKAGE} ({error})"
        raise BenchError(msg) from error
    return directory / _JAR


def read_by_jdbc(spark: SparkSession, jdbc_url: str, upto: int, partitions: int) -> DataFrame:
    """Read what `read_journal` reads, in as many parts."""
    options: dict[str, str | int] = {
        "url": jdbc_url,
        "driver": "org.postgresql.Driver",
        "dbtable": f"({_SELECT}) entries",
        "fetchsize": _FETCH_ROWS,
        "partitionColumn": "position",
        "lowerBound": 0,
        "upperBound": upto,
        "numPartitions": partitions,
    }
    return spark.read.format("jdbc").options(**options).load()
