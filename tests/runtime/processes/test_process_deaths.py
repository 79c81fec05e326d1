"""Steps that end their worker's process: only they become dead letters, never those that were held beside them."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from squid_dagster.api import Squid
from squid_dagster.journal import PostgresStorage, verify
from squid_dagster.protocol.folds.attempt import Attempt
from squid_dagster.protocol.folds.run_unit import RunUnit
from tests.processes import Child, children
from tests.runtime.processes.process_deaths import DEATHS, MAX_DELIVERIES, WORKFLOWS, supervise
from tests.runtime.workers import facts_of, status_of, until

OPTIONS: dict[str, Any] = {"lease": 1.5, "poll": 0.1, "concurrency": 10}


def attempt_of(storage: PostgresStorage, run_id: str) -> Attempt:
    (attempt,) = RunUnit.fold(storage.read_run(run_id)).dispatch.attempts.values()
    return attempt


def is_over(storage: PostgresStorage, run_id: str) -> bool:
    return status_of(storage, run_id) == "completed" or attempt_of(storage, run_id).status == "dead_lettered"


@contextmanager
def supervised(storage: PostgresStorage, *workers: dict[str, Any]) -> Iterator[list[Child]]:
    with children() as started:
        started += [supervise(storage, **OPTIONS | options) for options in workers or ({},)]
        yield started
        for child in started:
            child.process.terminate()
        for child in started:
            child.end()


def deaths(supervisors: list[Child]) -> int:
    return sum(line.startswith("ended") for child in supervisors for line in child.lines)


def assert_only_the_culprits_are_dead_letters(
    storage: PostgresStorage, culprits: list[str], innocents: list[str]
) -> None:
    assert Counter(status_of(storage, run) for run in innocents) == {"completed": len(innocents)}
    for run in culprits:
        attempt = attempt_of(storage, run)
        assert (attempt.status, attempt.deliveries) == ("dead_lettered", MAX_DELIVERIES)
        assert facts_of(storage, run, "attempt_dead_lettered")[0].deliveries == MAX_DELIVERIES
    assert verify(storage) == []


def test_an_attempt_that_kills_its_process_takes_none_of_nine_others_along(
    postgres: PostgresStorage, tmp_path: Path
) -> None:
    # given ten attempts that are held and executed by one worker, of which one ends the process
    squid = Squid(postgres, WORKFLOWS)
    options = {"begun_before": 10, "notes": str(tmp_path)}
    innocents = [squid.start("deadly", options).run_id for _ in range(5)]
    culprit = squid.start("deadly_in_transactions", {**options, "death": "exit"}).run_id
    innocents += [squid.start("deadly_in_transactions", options).run_id for _ in range(4)]
    # when the worker is restarted as often as it takes
    with supervised(postgres) as supervisors:
        until(lambda: all(is_over(postgres, run) for run in [culprit, *innocents]), "the end of all runs")
    # then all ten were lost at first, and the culprit is the only dead letter
    assert_only_the_culprits_are_dead_letters(postgres, [culprit], innocents)
    assert all(attempt_of(postgres, run).deliveries > 1 for run in innocents)
    assert [fact.alone for fact in facts_of(postgres, culprit, "attempt_claimed")] == [None, None, True]
    assert squid.explain_run(culprit).details["alone"] is True
    assert deaths(supervisors) <= MAX_DELIVERIES


def test_culprits_of_every_kind_among_many_are_found_out_by_several_workers_at_once(
    postgres: PostgresStorage, tmp_path: Path
) -> None:
    # given two workers, and a process that takes one attempt after the other
    squid = Squid(postgres, WORKFLOWS)
    innocent = {"notes": str(tmp_path), "seconds": 0.05}
    innocents, culprits = [], []
    for death in DEATHS:
        innocents += [squid.start("deadly", innocent).run_id for _ in range(6)]
        culprits.append(squid.start("deadly", {**innocent, "death": death}).run_id)
    innocents += [squid.start("deadly", innocent).run_id for _ in range(6)]
    everyone = [*culprits, *innocents]
    with supervised(postgres, {}, {}, {"execute_next": True}) as supervisors:
        until(lambda: all(is_over(postgres, run) for run in everyone), "the end of all runs")
    # then there were no more restarts than the culprits may be delivered
    assert_only_the_culprits_are_dead_letters(postgres, culprits, innocents)
    assert deaths(supervisors) <= MAX_DELIVERIES * len(culprits)


def test_a_step_that_dies_in_a_process_of_its_own_fails_and_ends_no_worker(postgres: PostgresStorage) -> None:
    squid = Squid(postgres, WORKFLOWS)
    culprit = squid.start("deadly_in_processes", {"death": "segfault"}).run_id
    innocent = squid.start("deadly_in_processes", {}).run_id
    with supervised(postgres, {"lease": 60}) as supervisors:
        until(lambda: status_of(postgres, culprit) == "failed", "the failure")
        until(lambda: status_of(postgres, innocent) == "completed", "the completion")
    assert [attempt_of(postgres, run).deliveries for run in (culprit, innocent)] == [1, 1]
    assert deaths(supervisors) == 0
