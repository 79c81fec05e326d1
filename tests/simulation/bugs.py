"""Plant one bug at a time: the simulation must catch each of them. `python -m tests.simulation.bugs [names]`."""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from squid_dagster.testing.simulation.campaign import quiet
from squid_dagster.testing.simulation.scenario import random_scenario
from squid_dagster.testing.simulation.schedule import ScheduleResult, expectation, play
from tests.simulation.planting import Bug, planted

SCHEDULES = 400  # after so many without a violation, a bug is not caught
_PER_SCENARIO = 8
_SEEDS = 1000

BUGS = (
    # --- fences and leases
    Bug(
        "a stale claim may act",
        "protocol.folds.attempt:check_fence",
        " or not attempt.held_by(claim_id, claim_token_hash)",
        "",
    ),
    Bug(
        "an expired claim may act",
        "protocol.folds.attempt:check_fence",
        "return Reason.EXPIRED_CLAIM if attempt.expired(at) else None",
        "return None",
    ),
    Bug(
        "claims are not fenced by a revision",
        "journal.fold_store.dispatch_store:FoldDispatchStore.claim",
        "expected_rev=revision",
        "",
    ),
    Bug(
        "an end on the run's own thread is no fence",
        "journal.fold_store.fold_cache:FoldCache.run",
        "ended=state.terminal",
        "ended=False",
    ),
    Bug("an ended run takes results", "journal.settlement.member_facts:find_attempt", "if run.fenced:", "if False:"),
    Bug(
        "fencing tokens do not grow",
        "journal.fold_store.claim_facts:claim_facts",
        "run.next_token(attempt.idempotency_key)",
        "1",
    ),
    Bug(
        "a claim takes what another holds",
        "protocol.folds.attempt:Attempt.due_at",
        "return self.lease_until",
        "return self.visible_at",
    ),
    Bug(
        "heartbeats extend nothing", "runtime.worker.heartbeats:Heartbeats.beat", "if not held:", "if held or not held:"
    ),
    Bug(
        "a lease is counted from its claim on",
        "journal.settlement.member_facts:heartbeat_fact",
        "lease_until=at + lease",
        "lease_until=attempt.lease_until",
    ),
    # --- dead letters
    Bug(
        "a dead letter one delivery too early",
        "protocol.folds.attempt:out_of_deliveries",
        ">= attempt",
        "+ 1 >= attempt",
    ),
    Bug("a dead letter one delivery too late", "protocol.folds.attempt:out_of_deliveries", ">= attempt", "> attempt"),
    Bug(
        "never a dead letter",
        "protocol.folds.attempt:out_of_deliveries",
        "attempt.deliveries >= attempt.max_deliveries",
        "False",
    ),
    Bug("a dead letter while it is held", "protocol.folds.attempt:Attempt.expired", "self.lease_until <= at", "True"),
    # --- groups and planning
    Bug(
        "plans are not fenced by a revision",
        "journal.fold_store.dispatch_store:FoldDispatchStore._write_group",
        "revisions.get(one.thread)",
        "None",
    ),
    Bug(
        "a result is applied twice",
        "protocol.folds.plan_state:PlanState._close",
        "last: int = self._pop(self.open, runnable.idempotency_key)",
        "last: int = 0",
    ),
    Bug(
        "a join waits for one alone",
        "workflow.planner.planner:_Planning._is_ready",
        "return all(before",
        "return any(before",
    ),
    Bug(
        "a run ends before its last step",
        "workflow.planner.planner:_Planning._join",
        "if done == len(self.definition.steps):",
        "if done + 1 >= len(self.definition.steps):",
    ),
    Bug(
        "compensations in the wrong order",
        "workflow.planner.planner:_Planning._next_compensation",
        "reversed(self.state.to_undo.items())",
        "self.state.to_undo.items()",
    ),
    Bug(
        "a compensation is left out",
        "protocol.folds.plan_state:PlanState._apply",
        'runnable.recovery is None or runnable.recovery.get("compensated")',
        "runnable.recovery is None",
    ),
    Bug(
        "a run ends while a sibling is to be undone",
        "workflow.planner.planner:_Planning._undo_or_end",
        "not under_way or not self._compensates",
        "True",
    ),
    Bug(
        "retries are not counted",
        "runtime.execution.step_execution:failure",
        "delay(step.retry, attempt.attempt_number",
        "delay(step.retry, 1",
    ),
    Bug("a retry is not mirrored", "workflow.planner.planner:_Planning.settle", "self._mirror(attempt, retry)", "pass"),
    # --- commands
    Bug(
        "commands are not fenced by a revision",
        "journal.fold_store.dispatch_store:FoldDispatchStore.command",
        "compared_revisions(self._storage, revisions, facts)",
        "{}",
    ),
    Bug(
        "repairs and children are not fenced by a revision",
        "journal.fold_store.dispatch_store:FoldDispatchStore.decide",
        "commit_in_order(self._storage, facts, revisions)",
        "commit_in_order(self._storage, facts, {})",
    ),
    Bug(
        "an idempotency key is ignored",
        "runtime.commands.derived_ids:derived_run_id",
        "_framed(parts)",
        "_framed(parts) + uuid.uuid4().bytes",
    ),
    Bug(
        "a cancel leaves the runs below behind",
        "runtime.commands.run_commands:cancel",
        "if cascade and runtime.storage.atomic_across_threads else [run_id]",
        "if False else [run_id]",
    ),
    Bug(
        "a cron starts the latest window alone",
        "runtime.commands.cron_starts:_start_due",
        "windows_due(cron, cursor, at, _MOST)]",
        "windows_due(cron, cursor, at, _MOST)[-1:]]",
    ),
    Bug(
        "a paused queue gives claims",
        "journal.fold_store.queue_index:QueueIndex.claimable",
        "iter(()) if self.paused else ",
        "",
    ),
    # --- recovery
    Bug(
        "recovery schedules nothing",
        "runtime.recovery.run_repair:_plan_missing",
        "for runnable in missing.schedules:",
        "for runnable in ():",
    ),
    Bug("recovery applies nothing", "runtime.recovery.run_repair:_plan_missing", "if missing.settled:", "if False:"),
    Bug("recovery fences nothing", "runtime.recovery.run_repair:_plan_missing", "if missing.fence:", "if False:"),
    Bug(
        "recovery starts no child",
        "runtime.recovery.run_repair:repair_run",
        "if not _started(runtime, link):",
        "if False:",
    ),
    Bug("recovery cascades nothing", "runtime.recovery.run_repair:repair_run", "if ancestor is not None:", "if False:"),
    # --- workers
    Bug(
        "a worker does not poll",
        "runtime.worker.worker:Worker._is_done",
        "_SHORT_POLL) if soon else self._poll",
        "_SHORT_POLL) if soon else 10**9",
    ),
    Bug(
        "a worker forgets one of its claims",
        "runtime.worker.worker:Worker._begin",
        "self._pool.submit(jobs)",
        "self._pool.submit(jobs[:1])",
    ),
    Bug(
        "a worker ends at the first error",
        "runtime.worker.worker:Worker._claim_loop",
        "except Exception as error:",
        "except KeyError as error:",
    ),
)


class HuntResult(NamedTuple):
    """The first schedule that shows a bug, if there is one."""

    bug: str
    schedules: int
    played: ScheduleResult | None
    seconds: float


def hunt(bug: Bug, most: int = SCHEDULES, seed: int = 0) -> HuntResult:
    """Run schedules with a bug planted until one fails. The expected ends are computed without the bug."""
    began = time.monotonic()
    for number, (scenario_seed, count) in enumerate(_parts(seed, most)):
        scenario = random_scenario(scenario_seed)
        with quiet():
            expected = expectation(scenario)
            for offset in range(count):
                with planted(bug):
                    played = play(scenario, expected, scenario_seed * _SEEDS + offset)
                if played.problems and not play(scenario, expected, played.seed).problems:  # it is the bug's doing
                    schedules = number * _PER_SCENARIO + offset + 1
                    return HuntResult(bug.name, schedules, played, time.monotonic() - began)
    return HuntResult(bug.name, most, None, time.monotonic() - began)


def _parts(seed: int, most: int) -> Iterator[tuple[int, int]]:
    for number in range(-(-most // _PER_SCENARIO)):
        yield seed + number, min(_PER_SCENARIO, most - number * _PER_SCENARIO)


def main(arguments: list[str] | None = None) -> int:
    """Run the hunt for all bugs, or for those whose names contain a word."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--schedules", type=int, default=SCHEDULES)
    options = parser.parse_args(arguments)
    wanted = [bug for bug in BUGS if not options.words or any(word in bug.name for word in options.words)]
    caught = 0
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        for hunted in pool.imap_unordered(partial(hunt, most=options.schedules), wanted, chunksize=1):
            caught += hunted.played is not None
            said = hunted.played.problems[0][:150] if hunted.played else "NOT CAUGHT"
            print(f"{hunted.bug}: {hunted.schedules} schedules, {hunted.seconds:.1f} s: {said}", flush=True)
    word = "OK" if caught == len(wanted) else "FAILED"
    print(f"BUGS {word}: planted={len(wanted)} caught={caught}")
    return 0 if caught == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
