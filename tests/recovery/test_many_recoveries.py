"""Any number of recoveries at once, beside each other and beside workers, are as good as one."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.contract.queries import RunFilter
from squid_dagster.journal.contract.storage import Storage
from squid_dagster.journal.memory import MemoryStorage
from squid_dagster.journal.postgres.storage import PostgresStorage
from squid_dagster.protocol import run_index_thread, run_thread
from squid_dagster.runtime.recovery.recovery import RecoveryReport, list_started
from squid_dagster.testing import InjectedStorage, Plan
from tests.facts import started
from tests.recovery import workflows as w
from tests.recovery.conftest import MakeScene
from tests.recovery.damage import DAMAGE
from tests.recovery.scenario import Scene, counts, ends_of, everything, work

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


def plant_everything(scene: Scene) -> None:
    """Leave every kind of damage behind, twice."""
    for plant in DAMAGE:
        for number in (1, 2):
            plant(scene.squid, scene.clock, scene.name(f"{plant.__name__}-{number}"))


def recover_at_once(scenes: list[Scene]) -> list[RecoveryReport]:
    """Let everybody recover at the same time."""
    together = threading.Barrier(len(scenes))

    def recover(scene: Scene) -> RecoveryReport:
        together.wait()
        return scene.squid.recover()

    with ThreadPoolExecutor(len(scenes)) as pool:
        return list(pool.map(recover, scenes))


def test_ten_recoveries_at_once_are_as_good_as_one(storage: Storage, twin: Storage, make_scene: MakeScene) -> None:
    alone, crowded = make_scene(storage), make_scene(twin)
    for scene in (alone, crowded):
        plant_everything(scene)

    one = alone.squid.recover()
    ten = recover_at_once([make_scene(twin) for _ in range(TEN)])

    assert ends_of(twin) == ends_of(storage)
    assert all((each.held, each.quarantined, each.failed) == ([], [], {}) for each in ten)
    assert crowded.squid.recover() == alone.squid.recover() == RecoveryReport()
    if isinstance(storage, PostgresStorage):
        # Runs are locked while they are repaired, so that nothing but a listing is written twice, nor counted.
        assert _types(twin) == _types(storage)
        assert sum((Counter(counts(each)) for each in ten), Counter()) == Counter(counts(one))
    for scene in (alone, crowded):
        work(scene)
    assert ends_of(twin) == ends_of(storage)


def _types(storage: Storage) -> Counter[str]:
    return Counter(entry.fact.type for entry in everything(storage) if entry.fact.type not in LISTINGS)


def work_until_all_have_ended(scene: Scene) -> None:
    """Work beside others. Time stands still, so that nobody loses a lease."""
    while scene.squid.runtime.queries.list_runs(RunFilter(open_only=True), None, 1):
        scene.squid.execute_next(scene.case)


def test_recoveries_beside_workers_change_nothing(storage: Storage, twin: Storage, make_scene: MakeScene) -> None:
    """What is halfway because somebody is at it, and not because somebody crashed, is no damage."""
    workflows = (w.line(), w.diamond(), w.mended(), w.parent())
    for each in (storage, twin):
        starter = make_scene(each, workflows)
        for number in range(5):
            for workflow in workflows:
                starter.start(workflow, f"{workflow.name}-{number}")
    work(make_scene(storage, workflows))
    make_scene(storage, workflows).squid.recover()

    over = threading.Event()
    recovering = [make_scene(twin, workflows) for _ in range(2)]

    def keep_recovering(scene: Scene) -> list[RecoveryReport]:
        reports = []
        while not over.is_set():
            reports.append(scene.squid.recover())
        return reports

    with ThreadPoolExecutor(4) as pool:
        reports = [pool.submit(keep_recovering, scene) for scene in recovering]
        try:
            list(pool.map(work_until_all_have_ended, [make_scene(twin, workflows) for _ in range(2)]))
        finally:
            over.set()
    assert all(report.failed == {} for future in reports for report in future.result())
    recovering[0].squid.recover()
    assert ends_of(twin) == ends_of(storage)


def test_a_worker_is_not_refused_when_somebody_else_went_on_from_its_outcome(
    clock: VirtualClock, make_scene: MakeScene
) -> None:
    storage = MemoryStorage(clock, atomic_across_threads=False)
    other = make_scene(storage, (w.hourly(),))
    other.start(w.hourly())
    applied = 3  # after the claim, and the outcome on the queue's thread
    worker = make_scene(InjectedStorage(storage, Plan(meanwhile={applied: other.squid.recover})), (w.hourly(),))

    seen = worker.squid.execute_next(worker.case)

    assert seen is not None
    assert seen.status == "completed"
    types = [entry.fact.type for entry in storage.read(run_thread(other.name("run")))]
    assert types.count("runnable_applied") == types.count("run_terminal") == 1


def test_a_run_that_is_not_on_its_queue_yet_is_listed_under_the_queue_of_its_start(
    storage: Storage, make_scene: MakeScene
) -> None:
    # given a run whose own thread was written, and the queue's not yet
    scene = make_scene(storage)
    storage.append(run_thread("late"), [started("late", workflow="w", queue="other")])
    # when a recovery lists it before the queue's facts come
    list_started(scene.squid.runtime)
    # then a recovery behind them would have written the same
    (entry,) = storage.read(run_index_thread("w"))
    assert (entry.fact.run_id, entry.fact.queue) == ("late", "other")  # type: ignore[union-attr]
