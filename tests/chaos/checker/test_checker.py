"""The checker of chaos finds nothing in an honest history, and every wrong one that is planted by hand."""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest

from squid_dagster.journal import PostgresStorage
from squid_dagster.journal.contract.clock import VirtualClock
from squid_dagster.journal.postgres.connection.pool import pooled_connection
from squid_dagster.plugin.names import DISPATCH_JOB
from squid_dagster.protocol import Entry
from squid_dagster.protocol.facts import AttemptClaimed
from squid_dagster.testing import execute_until_blocked, make_squid
from tests.chaos import effects
from tests.chaos.campaign import Outcome
from tests.chaos.checker.checker import Verdict, judge, judge_storage
from tests.chaos.checker.drains import failed_drains
from tests.chaos.checker.evidence import Evidence, gather
from tests.chaos.checker.wrong_histories import (
    Plant,
    acknowledge_a_start_as_two_runs,
    acknowledge_another_workflow,
    adopt_a_child,
    apply_a_result_after_the_end,
    apply_a_result_twice,
    apply_two_results_of_a_visit,
    compensate_a_success,
    compensate_oldest_first,
    complete_after_the_end,
    complete_after_the_lease,
    complete_under_a_lost_claim,
    deadlock,
    double_a_row,
    end_a_run_otherwise,
    end_a_run_twice,
    end_before_the_last_compensation,
    execute_a_claim_twice,
    execute_an_unknown_run,
    execute_without_a_claim,
    leave_a_run_open,
    lose_a_child,
    lose_a_command,
    lose_a_compensation,
    lose_a_link,
    lose_a_result,
    lose_a_row,
    lose_a_run,
    lose_an_effect,
    mix_up_results,
    never_start_a_run,
    overlap_two_leases,
    reuse_a_token,
    run_of,
    skip_a_sequence,
    start_a_child_too_many,
    start_a_run_twice,
    write_a_row_of_nothing,
)
from tests.chaos.processes import RoleProcess, RoleProcesses
from tests.chaos.roles import operate_once
from tests.chaos.workflows import TABLE, WORKFLOWS
from tests.facts import T0

PLANNED = dict(
    enumerate(
        [
            "chain",
            "fan",
            "loop",
            "retried",
            "failing",
            "routed",
            "reviewed",
            "endless",
            "parent",
            "saga",
            "saga",
            "booked",
        ]
    )
)
PLANNED |= {13: "reviewed", 14: "routed", 15: "routed", 16: "isolated"}


@dataclass(frozen=True)
class HonestHistory:
    """An honest history, and the storage that holds it."""

    evidence: Evidence
    storage: PostgresStorage


@pytest.fixture(scope="module")
def honest(
    postgres_url: str, schema_names: Iterator[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HonestHistory]:
    """A history that real steps wrote: one run of each workflow that does not hurt its process."""
    path = tmp_path_factory.mktemp("chaos") / "effects"
    storage = PostgresStorage(postgres_url, next(schema_names), clock=VirtualClock(T0))
    storage.upgrade()
    with pooled_connection(storage.engine) as connection:
        connection.execute(f"DROP TABLE IF EXISTS {TABLE}".encode())
        connection.execute(f"CREATE TABLE {TABLE} (key text, run_id text, n integer)".encode())
    with pytest.MonkeyPatch.context() as patch, make_squid(WORKFLOWS, storage=storage) as squid:
        patch.setenv(effects.VARIABLE, str(path))
        for n, name in PLANNED.items():
            run_id = squid.start(name, {"n": n}, idempotency_key=f"{name}-{n}").run_id
            effects.record("started", n=n, workflow=name, run=run_id)
            if name != "endless":
                execute_until_blocked(squid, run_id)
            operate_once(squid)
            execute_until_blocked(squid, run_id)
    yield HonestHistory(gather(storage, path, "LOG: all is well\n", PLANNED), storage)
    with pooled_connection(storage.engine) as connection:
        connection.execute(f"DROP TABLE {TABLE}".encode())
    storage.close()


def test_an_honest_history_is_found_without_fault(honest: HonestHistory) -> None:
    assert list(judge(honest.evidence)) == []
    assert judge_storage(honest.storage, honest.evidence.entries) == []
    assert {run.workflow for run in honest.evidence.runs.values()} == set(PLANNED.values())


@pytest.mark.parametrize(
    ("plant", "kind", "text"),
    [
        (lose_a_run, "lost", "acknowledged"),
        (never_start_a_run, "stuck", "never acknowledged"),
        (acknowledge_a_start_as_two_runs, "doubled", "acknowledged as"),
        (acknowledge_another_workflow, "lost", "run of chain with number 0"),
        (start_a_run_twice, "doubled", "started once too often"),
        (lose_a_command, "lost", "command approve_run"),
        (leave_a_run_open, "stuck", "has not ended"),
        (end_a_run_otherwise, "wrong", "ended as cancelled"),
        (end_a_run_twice, "doubled", "ended 2 times"),
        (lose_a_child, "lost", "child "),
        (lose_a_link, "lost", "children of run"),
        (start_a_child_too_many, "doubled", "3 instead of 2"),
        (adopt_a_child, "doubled", "of 2 parents"),
        (apply_a_result_twice, "doubled", "result "),
        (apply_two_results_of_a_visit, "doubled", "applied_once"),
        (apply_a_result_after_the_end, "doubled", "nothing_after_the_end"),
        (complete_after_the_end, "doubled", "nothing_after_the_end"),
        (lose_a_result, "lost", "result "),
        (mix_up_results, "doubled", "result 99"),
        (mix_up_results, "lost", "result 1 "),
        (overlap_two_leases, "doubled", "one_holder"),
        (complete_under_a_lost_claim, "doubled", "only_the_holder_acts"),
        (complete_after_the_lease, "doubled", "whose lease ran out"),
        (reuse_a_token, "wrong", "tokens_grow"),
        (lose_an_effect, "lost", "effect of"),
        (execute_a_claim_twice, "doubled", "execution of"),
        (execute_without_a_claim, "lost", "under which it was executed"),
        (execute_an_unknown_run, "lost", "of which step first was executed"),
        (lose_a_row, "lost", "transactional row"),
        (double_a_row, "doubled", "transactional row"),
        (write_a_row_of_nothing, "doubled", "transactional row"),
        (lose_a_compensation, "lost", "compensations executed"),
        (end_before_the_last_compensation, "lost", "compensations recorded"),
        (compensate_oldest_first, "wrong", "compensations executed"),
        (compensate_a_success, "wrong", "compensations executed"),
        (skip_a_sequence, "wrong", "contiguous_sequences"),
        (deadlock, "wrong", "40P01"),
    ],
)
def test_a_planted_wrong_history_is_found(honest: HonestHistory, plant: Plant, kind: str, text: str) -> None:
    verdict = judge(plant(honest.evidence))
    assert any(text in finding for finding in getattr(verdict, kind)), list(verdict)
    assert str(_outcome(verdict)).startswith("CHAOS FAILED")


def test_a_view_that_differs_from_the_fold_is_found(honest: HonestHistory) -> None:
    run_id = run_of(honest.evidence, "chain").run_id
    changes = ("'failed'", "'completed'")
    findings = []
    for status in changes:
        with pooled_connection(honest.storage.engine) as connection:
            text = f"UPDATE {honest.storage.schema}.runs SET terminal_status = {status} WHERE run_id = '{run_id}'"
            connection.execute(text.encode())
        findings.append(judge_storage(honest.storage, honest.evidence.entries))
    assert [len(texts) for texts in findings] == [1, 0]
    assert "terminal_status" in findings[0][0]


def test_entries_that_one_way_of_reading_misses_are_found(honest: HonestHistory) -> None:
    entry = next(entry for entry in honest.evidence.entries if isinstance(entry.fact, AttemptClaimed))
    seen: list[Entry] = [other for other in honest.evidence.entries if other is not entry]
    findings = judge_storage(honest.storage, seen)
    assert [text.split()[1] for text in findings] == ["thread", "run"]


# --- ends of processes ----------------------------------------------------------------------------------------------


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[RoleProcesses]:
    """Processes whose only worker exits with the code that its environment names."""
    made = RoleProcesses(tmp_path, "postgresql://nowhere", tmp_path / "effects", workers=1, runs=1)
    code = "import os, sys; sys.exit(int(os.environ['CODE']))"
    made.members = [RoleProcess("worker-0", [sys.executable, "-c", code], {"CODE": "3"})]
    yield made
    made.abandon()


def test_a_worker_that_ends_by_itself_is_found(processes: RoleProcesses) -> None:
    processes.start()
    process = processes.members[0].process
    assert process is not None
    process.wait()
    processes.look()
    assert processes.died == ["worker-0 ended by itself with exit code 3"]


def test_a_worker_that_ends_by_itself_without_an_error_is_found_too(processes: RoleProcesses) -> None:
    processes.members[0].environment["CODE"] = "0"
    processes.start()
    process = processes.members[0].process
    assert process is not None
    process.wait()
    processes.look()
    assert processes.died == ["worker-0 ended by itself with exit code 0"]


def test_a_worker_whose_step_ended_it_did_not_end_by_itself(processes: RoleProcesses, tmp_path: Path) -> None:
    processes.start()
    process = processes.members[0].process
    assert isinstance(process, subprocess.Popen)
    (tmp_path / "effects").write_text(json.dumps({"kind": "crash", "pid": process.pid}) + "\n")
    process.wait()
    processes.look()
    assert processes.died == []


@pytest.mark.parametrize("fails", [True, False])
def test_a_drain_run_that_fails_is_found(tmp_path: Path, fails: bool) -> None:
    @dg.op
    def drain() -> None:
        if fails:
            raise RuntimeError("the database is away")

    @dg.job(name=DISPATCH_JOB)
    def job() -> None:
        drain()

    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
    errors = failed_drains(tmp_path)
    assert list(errors) == ([result.run_id] if fails else [])
    assert all("the database is away" in error for error in errors.values())


# --- the last line --------------------------------------------------------------------------------------------------


def _outcome(verdict: Verdict, *died: str) -> Outcome:
    return Outcome(verdict, 3, Counter({"fail_over": 2}), list(died))


def test_the_last_line_says_ok_only_if_nothing_is_wrong() -> None:
    line = r"CHAOS OK: runs=\d+ kills=\d+ db_faults=\d+ lost=0 doubled=0 stuck=0 died=0"
    assert re.fullmatch(line, str(_outcome(Verdict(runs=5))))
    assert str(_outcome(Verdict(), "worker-0 ended")).startswith("CHAOS FAILED")
    for kind in ("lost", "doubled", "stuck", "wrong"):
        verdict = Verdict()
        getattr(verdict, kind).append("something")
        assert str(_outcome(verdict)).startswith("CHAOS FAILED")
