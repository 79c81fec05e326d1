"""The resources of Spark's assets: a session by dagster-pyspark, and the directory of the tables.

Neither imports Spark before it is used: a location with such assets loads as fast as one without.
"""

import os
from collections.abc import Mapping
from typing import Any

import dagster as dg
from pydantic import Field

from squid_dagster.journal.tiers import EmbeddedTier, default_data_dir, resolve_tier
from squid_dagster.protocol.errors import InvalidArgument

WAREHOUSE_VARIABLE = "SQUID_WAREHOUSE"


class SparkResource(dg.ConfigurableResource[Any]):
    """A Spark session with the journal's data source, created at the first use, once per process.

    Example:
        `SparkResource(spark_master=dg.EnvVar("SPARK_MASTER"), spark_config={"spark.executor.memory": "4g"})`
    """

    spark_master: str = Field(
        default="local[*]",
        description="Where Spark runs: local[*] or local[2], spark://host:7077 for a standalone cluster, or "
        "sc://host:15002 for Spark Connect; one that holds a token as a dg.EnvVar.",
    )
    spark_config: dict[str, str] = Field(default={}, description="More settings of the session, which win over ours.")

    @classmethod
    def _is_dagster_maintained(cls) -> bool:
        return False

    @property
    def spark_session(self) -> Any:
        """The session.

        Raises:
            InvalidArgument: a master of no known kind.
            SparkUnavailable: the master does not answer, or this process has a session on another one.
            JavaMissing: Java is needed, and is not installed.
        """
        from dagster_pyspark import LazyPySparkResource

        from squid_dagster.spark.session.session import open_session, spark_config

        # First with our checks and their errors; Dagster's own resource then returns the same session.
        open_session(self.spark_master, self.spark_config)
        return LazyPySparkResource(spark_config=spark_config(self.spark_master, self.spark_config)).spark_session


class WarehouseResource(dg.ConfigurableResource[Any]):
    """The directory of the tables.

    Example:
        `WarehouseResource(path="s3://company-data/squid")`
    """

    path: str | None = Field(
        default=None,
        description="A directory, by path or URI. None: SQUID_WAREHOUSE, else `warehouse` in the directory of the "
        "embedded server's data.",
    )

    @classmethod
    def _is_dagster_maintained(cls) -> bool:
        return False

    @property
    def warehouse(self) -> Any:
        """The warehouse, a `squid_dagster.spark.tables.warehouse.Warehouse`. Nothing is touched.

        Raises:
            InvalidArgument: no directory is configured, or no file system is known for it.
        """
        from squid_dagster.spark.tables.warehouse import Warehouse

        return Warehouse(self.path or default_warehouse())


def default_warehouse(environ: Mapping[str, str] = os.environ) -> str:
    """Return the directory that the environment names, else one below that of the embedded server.

    Raises:
        InvalidArgument: none is named in Kubernetes, where a default would be gone with its pod.
    """
    if named := environ.get(WAREHOUSE_VARIABLE):
        return named
    if environ.get("KUBERNETES_SERVICE_HOST") and not environ.get("SQUID_DATA_DIR"):
        raise InvalidArgument(
            "no warehouse is configured, and inside Kubernetes a directory of its own would be gone with its pod: set "
            f"{WAREHOUSE_VARIABLE} to a bucket, such as s3://company-data/squid, or to a persistent volume"
        )
    named_only = {name: environ[name] for name in ("SQUID_DATA_DIR",) if environ.get(name)}
    tier = resolve_tier(None, named_only) if named_only else None
    directory = tier.data_dir if isinstance(tier, EmbeddedTier) else default_data_dir(environ)
    return str(directory / "warehouse")
