"""Reading a run at the price of its latest facts: from a checkpoint, where there is one that can be used."""

from squid_dagster.journal.storage import Storage
from squid_dagster.protocol.checks import checked
from squid_dagster.protocol.run import RunProjection
from squid_dagster.protocol.threads import run_thread

CHECKPOINT_EVERY = 256  # facts; below that, folding from the start costs less than reading a checkpoint


@checked
def load_run(storage: Storage, run_id: str) -> tuple[int, RunProjection]:
    """Give a run's revision and projection; a lost, damaged or foreign checkpoint only costs time.

    Whoever has to fold `CHECKPOINT_EVERY` facts or more leaves a checkpoint behind.
    """
    thread = run_thread(run_id)
    covered, projection = _from_checkpoint(storage, thread)
    news = storage.read(thread, after=covered)
    revision = news[-1].seq if news else covered
    projection = RunProjection.fold(news, onto=projection)
    if len(news) >= CHECKPOINT_EVERY:
        storage.put_checkpoint(thread, revision, projection.dump())
    return revision, projection


def _from_checkpoint(storage: Storage, thread: str) -> tuple[int, RunProjection]:
    checkpoint = storage.get_checkpoint(thread)
    if checkpoint is not None:
        try:
            return checkpoint.revision, RunProjection.load(checkpoint.data)
        except ValueError:  # written by another version of the fold: begin at the beginning
            storage.delete_checkpoint(thread)
    return 0, RunProjection()
