"""The heap of Spark's Python workers: what they have loaded is kept from the collection that follows every task."""

import gc

from pyspark import TaskContext


def set_heap_aside() -> None:
    """Keep what is there now from being looked through for garbage; once in a worker, and nowhere but in workers.

    Spark collects after each task of a worker that it keeps for the next one. Among the modules that were loaded there
    is never any garbage, and looking through them takes 35 ms, more than many a task.
    """
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()
