"""Any number of recoveries at once, beside each other and beside workers, are as good as one."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from squid_dagster import RecoveryReport
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.queries import RunFilter
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import run_index_thread, run_thread
from squid_dagster.runtime.recovery.recovery import list_started
from squid_dagster.testing import InjectedStorage, Plan
from tests.facts import started
from tests.recovery import workflows as w
from tests.recovery.conftest import MakeClient
from tests.recovery.damage import DAMAGE
from tests.recovery.scenario import Client, counts, ends_of, everything, work

TEN = 10
LISTINGS = ("run_indexed", "run_cataloged")


@pytest.fixture
def twin(storage: Storage, clock: VirtualClock, postgres_url: str, schema_names: Iterator[str]) -> Iterator[Storage]:
    """Another empty journal of the same kind."""
    if isinstance(storage, MemoryStorage):
        yield MemoryStorage(clock, atomic_across_threads=storage.atomic_across_threads)
        return
    other = PostgresStorage(postgres_url, next(schema_names), clock=clock)
    other.upgrade()
    yield other
    other.close()


def plant_everything(client: Client) -> None:
    """Write every kind of damage, twice."""
    for plant in DAMAGE:
        for number in (1, 2):
            plant(client.squid, client.clock, client.name(f"{plant.__name__}-{number}"))


def recover_at_once(clients: list[Client]) -> list[RecoveryReport]:
    """Run a recovery in many threads at the same time."""
    together = threading.Barrier(len(clients))

    def recover(client: Client) -> RecoveryReport:
        together.wait()
        return client.squid.recover()

    with ThreadPoolExecutor(len(clients)) as pool:
        return list(pool.map(recover, clients))


def test_ten_recoveries_at_once_are_as_good_as_one(storage: Storage, twin: Storage, make_client: MakeClient) -> None:
    alone, crowded = make_client(storage), make_client(twin)
    for client in (alone, crowded):
        plant_everything(client)

    one = alone.squid.recover()
    ten = recover_at_once([make_client(twin) for _ in range(TEN)])

    assert ends_of(twin) == ends_of(storage)
    assert all((report.held, report.quarantined, report.failed) == ([], [], {}) for report in ten)
    assert crowded.squid.recover() == alone.squid.recover() == RecoveryReport()
    if isinstance(storage, PostgresStorage):
        # Runs are locked while they are repaired, so that nothing but a listing is written twice, nor counted.
        assert _types(twin) == _types(storage)
        assert sum((Counter(counts(report)) for report in ten), Counter()) == Counter(counts(one))
    for client in (alone, crowded):
        work(client)
    assert ends_of(twin) == ends_of(storage)


def _types(storage: Storage) -> Counter[str]:
    return Counter(entry.fact.type for entry in everything(storage) if entry.fact.type not in LISTINGS)


def work_until_all_have_ended(client: Client) -> None:
    """Execute steps beside other workers. Time stands still, so that no worker loses a lease."""
    while client.squid.runtime.queries.list_runs(RunFilter(open_only=True), None, 1):
        client.squid.execute_next(client.case)


def test_recoveries_beside_workers_change_nothing(storage: Storage, twin: Storage, make_client: MakeClient) -> None:
    # What is halfway because a worker is at it, and not because one crashed, is no damage.
    workflows = (w.line(), w.diamond(), w.mended(), w.parent())
    for journal in (storage, twin):
        starter = make_client(journal, workflows)
        for number in range(5):
            for workflow in workflows:
                starter.start(workflow, f"{workflow.name}-{number}")
    work(make_client(storage, workflows))
    make_client(storage, workflows).squid.recover()

    over = threading.Event()
    recovering = [make_client(twin, workflows) for _ in range(2)]

    def keep_recovering(client: Client) -> list[RecoveryReport]:
        reports = []
        while not over.is_set():
            reports.append(client.squid.recover())
        return reports

    with ThreadPoolExecutor(4) as pool:
        reports = [pool.submit(keep_recovering, client) for client in recovering]
        try:
            list(pool.map(work_until_all_have_ended, [make_client(twin, workflows) for _ in range(2)]))
        finally:
            over.set()
    assert all(report.failed == {} for future in reports for report in future.result())
    recovering[0].squid.recover()
    assert ends_of(twin) == ends_of(storage)


def test_a_worker_is_not_refused_when_somebody_else_went_on_from_its_outcome(
    clock: VirtualClock, make_client: MakeClient
) -> None:
    storage = MemoryStorage(clock, atomic_across_threads=False)
    other = make_client(storage, (w.hourly(),))
    other.start(w.hourly())
    applied = 3  # after the claim, and the outcome on the queue's thread
    worker = make_client(InjectedStorage(storage, Plan(meanwhile={applied: other.squid.recover})), (w.hourly(),))

    seen = worker.squid.execute_next(worker.case)

    assert seen is not None
    assert seen.status == "completed"
    types = [entry.fact.type for entry in storage.read(run_thread(other.name("run")))]
    assert types.count("runnable_applied") == types.count("run_terminal") == 1


def test_a_run_that_is_not_on_its_queue_yet_is_listed_under_the_queue_of_its_start(
    storage: Storage, make_client: MakeClient
) -> None:
    # given a run whose own thread was written, and the queue's not yet
    client = make_client(storage)
    storage.append(run_thread("late"), [started("late", workflow="w", queue="other")])
    # when a recovery lists it before the queue's facts come
    list_started(client.squid.runtime)
    # then a recovery behind them would have written the same
    (entry,) = storage.read(run_index_thread("w"))
    assert (entry.fact.run_id, entry.fact.queue) == ("late", "other")  # type: ignore[union-attr]
