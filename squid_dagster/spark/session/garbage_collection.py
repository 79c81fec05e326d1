"""The garbage collection of Spark's Python workers, which follows every task: loaded modules are excluded from it."""

import gc

from pyspark import TaskContext


def freeze_loaded_modules() -> None:
    """Exclude the objects that exist now from garbage collection (`gc.freeze`), once per worker; elsewhere do nothing.

    Spark collects after each task of a reused worker. Loaded modules are never garbage, and scanning them takes 35 ms,
    more than many tasks take.
    """
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()
