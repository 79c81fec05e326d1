"""Spark: the journal as a data source, its folds over all runs, and the tables made from them.

Only this package imports pyspark. It exports what the guide (docs/spark.md) uses, imported on first access, and needs
the extra `squid-dagster[spark]`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from squid_dagster.spark.errors import (
        ForeignWarehouse,
        JavaMissing,
        RefreshFailed,
        SparkUnavailable,
        WarehouseBusy,
        WarehouseTooNew,
        WarehouseUnavailable,
    )
    from squid_dagster.spark.fold.folds import fold_runs
    from squid_dagster.spark.session.session import open_session, register, spark_config
    from squid_dagster.spark.source.credentials import handed_over
    from squid_dagster.spark.source.data_source import read_journal
    from squid_dagster.spark.tables.refresh import RefreshResult, refresh
    from squid_dagster.spark.tables.run_tables import project_frame
    from squid_dagster.spark.tables.warehouse import Warehouse

_MODULES = {
    "errors": (
        "ForeignWarehouse",
        "JavaMissing",
        "RefreshFailed",
        "SparkUnavailable",
        "WarehouseBusy",
        "WarehouseTooNew",
        "WarehouseUnavailable",
    ),
    "fold.folds": ("fold_runs",),
    "session.session": ("open_session", "register", "spark_config"),
    "source.credentials": ("handed_over",),
    "source.data_source": ("read_journal",),
    "tables.refresh": ("RefreshResult", "refresh"),
    "tables.run_tables": ("project_frame",),
    "tables.warehouse": ("Warehouse",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
_EXTRA = frozenset({"adbc_driver_manager", "adbc_driver_postgresql", "numpy", "pandas", "py4j", "pyarrow", "pyspark"})

__all__ = [
    "ForeignWarehouse",
    "JavaMissing",
    "RefreshFailed",
    "RefreshResult",
    "SparkUnavailable",
    "Warehouse",
    "WarehouseBusy",
    "WarehouseTooNew",
    "WarehouseUnavailable",
    "fold_runs",
    "handed_over",
    "open_session",
    "project_frame",
    "read_journal",
    "refresh",
    "register",
    "spark_config",
]


def __getattr__(name: str) -> Any:
    """Import an exported name from its module. Raises `ImportError` that names the extra if a package is missing."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA:
            raise
        raise ImportError(
            f"{__name__}.{name} needs {error.name}, which is not installed: run pip install 'squid-dagster[spark]'"
        ) from error
