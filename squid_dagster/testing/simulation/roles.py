"""The processes of a simulation: workers, clients, operators, recoveries, a scheduler; each with its own `Squid`.

A process that ends before the schedule is restarted, as by a supervisor.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from random import Random
from typing import Any

from squid_dagster.api import Squid
from squid_dagster.journal.contract.queries import RunFilter
from squid_dagster.protocol.errors import InvalidTransition, StorageRefused, StorageUnavailable, ViewsMissing
from squid_dagster.runtime.worker.worker import Worker
from squid_dagster.testing.simulation.environment.machine import Process
from squid_dagster.testing.simulation.environment.storage import ProcessStorage, SharedJournal, SharedState
from squid_dagster.testing.simulation.environment.wakeups import Wakeups
from squid_dagster.testing.simulation.scenario import Scenario, Start
from squid_dagster.testing.simulation.verdict.run_results import open_family

LEASE = timedelta(seconds=6)
TRANSIENT = (StorageUnavailable, StorageRefused, ViewsMissing)
_AGAIN = 0.4  # seconds until a client repeats what failed
_PAGE = 100
_OUTAGE = 200.0  # seconds without a scheduler: some windows of a cron for every minute


@dataclass(slots=True)
class ScheduleState:
    """The state of one schedule: its processes, and the commands of its clients and operators."""

    shared: SharedState
    scenario: Scenario
    random: Random
    wakeups: Wakeups = field(init=False)
    resources: dict[str, object] = field(init=False)
    workers: dict[str, Worker] = field(default_factory=dict)
    run_ids: dict[str, str] = field(default_factory=dict)  # of starts, by key
    cancelled: set[str] = field(default_factory=set)  # run ids whose cancel was acknowledged
    cancel_requested: set[str] = field(default_factory=set)  # run ids with a cancel, acknowledged or not
    families: dict[str, set[str]] = field(default_factory=dict)  # open runs below, at the first cancel
    pending: set[str] = field(default_factory=set)  # commands not yet acknowledged
    problems: list[str] = field(default_factory=list)
    over: bool = False

    def __post_init__(self) -> None:
        """Initialize wakeups and resources."""
        self.wakeups = Wakeups(self.shared)
        self.resources = dict(self.scenario.resources())

    def open_runs(self) -> Collection[str]:
        """Return the open runs that the schedule waits for: all except those of crons."""
        runs, crons = self.shared.runs, self.scenario.crons
        if not crons:
            return runs.open_runs
        started = runs.started
        return {run_id for run_id in runs.open_runs if started[run_id] not in crons}

    def squid(self, process: Process | None = None) -> Squid:
        """Return the `Squid` of one process."""
        storage = ProcessStorage(self.shared, process)
        squid = Squid(
            storage,
            self.scenario.definitions,
            resources=self.resources,
            lease=LEASE,
            random_unit=lambda: 0.0,
        )
        squid.runtime = replace(squid.runtime, notifier=self.wakeups, **self.shared.adapters(storage))
        return squid

    def launch(self, name: str, role: Callable[[Squid, str], None], again: bool = True, number: int = 1) -> None:
        """Launch a process, and launch it again whenever it ends."""
        full = name if number == 1 else f"{name}.{number}"
        machine = self.shared.machine

        def main() -> None:
            if number > 1:
                machine.wait(0.3 + 0.2 * number)
            role(self.squid(), full)

        def exited() -> None:
            if again and not self.over:
                self.launch(name, role, again, number + 1)

        process = machine.launch(full, main)
        process.on_exit = exited

    def sleep(self, seconds: float) -> None:
        """Sleep for virtual time."""
        self.shared.machine.wait(seconds)

    # --- roles ------------------------------------------------------------------------------------------------------

    def work(self, squid: Squid, name: str, *, concurrency: int, keeps_house: bool) -> None:
        """Run the real worker."""
        if self.over:
            return
        self.workers[name] = worker = Worker(
            squid.runtime,
            self.scenario.queues,
            concurrency=concurrency,
            lease=LEASE,
            poll=timedelta(seconds=1.5),
            grace=timedelta(seconds=10),
            housekeeping=timedelta(seconds=7) if keeps_house else None,
            worker_id=name,
        )
        worker.run()

    def start(self, squid: Squid, name: str, *, starts: list[Start]) -> None:
        """Start runs, and retry each until it is acknowledged."""
        for start in starts:
            self.sleep(self.random.uniform(0, 2))
            while True:
                try:
                    self._start(squid, start)
                except TRANSIENT:
                    self.sleep(_AGAIN)
                    continue
                break
        for start in starts:
            self.pending.discard(f"start {name.partition('.')[0]} {start.key}")

    def _start(self, squid: Squid, start: Start) -> None:
        identity: dict[str, Any] = {"idempotency_key": start.key} if start.by_key else {"run_id": start.key}
        receipt = squid.start(start.workflow, start.payload, queue=start.queue, **identity)
        known = self.run_ids.setdefault(start.key, receipt.run_id)
        if known != receipt.run_id:
            self.problems.append(f"start {start.key!r} gave run {receipt.run_id!r} after {known!r}")

    def recover(self, squid: Squid, name: str) -> None:
        """Recover periodically; check that a recovery without failures repaired all that it could see."""
        journal = self.shared.journal
        while not self.over:
            self.sleep(5)
            with suppress(*TRANSIENT):
                before = journal.unrepaired() if isinstance(journal, SharedJournal) else set[tuple[str, str]]()
                report = squid.recover()
                if before and not report.failed and isinstance(journal, SharedJournal):
                    left = before & journal.unrepaired()
                    self.problems += [
                        f"{name} has left run {run_id!r} without its {what}" for run_id, what in sorted(left)
                    ]

    def tick(self, squid: Squid, name: str, *, until: float) -> None:
        """Start due crons for a while; sometimes pause for some windows, and catch up on them."""
        while not self.over and (self.shared.machine.now < until or "outage" in self.pending):
            with suppress(*TRANSIENT):
                squid.start_due_crons()
                if "outage" in self.pending:
                    self.sleep(_OUTAGE)
                    squid.start_due_crons()
                    self.pending.discard("outage")
            self.sleep(11)

    def operate(self, squid: Squid, name: str) -> None:
        """Decide approvals, retry dead letters, cancel and replay runs as the scenario says."""
        while not self.over:
            self.sleep(1.2)
            with suppress(*TRANSIENT):
                self._decide(squid)
                self._retry_dead_letters(squid)
                self._command(squid)
                self._pause(squid, name.partition(".")[0])

    def _pause(self, squid: Squid, name: str) -> None:
        """Pause a queue for a while; after a crash, the restarted operator resumes it."""
        queue = self.scenario.queues[0]
        if f"pause {name}" in self.pending:
            squid.pause_queue(queue, idempotency_key=f"pause {name}")
            self.pending.discard(f"pause {name}")
            self.sleep(3)
        if f"resume {name}" in self.pending:
            squid.resume_queue(queue, idempotency_key=f"resume {name}")
            self.pending.discard(f"resume {name}")

    def _decide(self, squid: Squid) -> None:
        for row in squid.runtime.queries.list_runs(RunFilter(status="paused"), None, _PAGE):
            workflow, step = row.workflow or "", row.manual_step or ""
            with suppress(InvalidTransition):  # another operator was faster
                if row.manual_kind == "pause":
                    squid.resume(row.run_id, step=step)
                elif self.scenario.approves(workflow, step):
                    squid.approve(row.run_id, actor="ada", step=step)
                else:
                    squid.reject(row.run_id, actor="ada", step=step)

    def _retry_dead_letters(self, squid: Squid) -> None:
        for attempt in squid.runtime.queries.dead_letters(None, _PAGE):
            with suppress(InvalidTransition):
                squid.retry_attempt(attempt.run_id, attempt.runnable_key)

    def _command(self, squid: Squid) -> None:
        for start in self.scenario.starts:
            run_id = self.run_ids.get(start.key)
            if run_id is None:
                continue
            if f"cancel {start.key}" in self.pending:
                self.cancel_requested.add(run_id)
                self.families.setdefault(run_id, open_family(self.shared.journal, run_id))
                with suppress(InvalidTransition):  # it has ended by itself
                    squid.cancel(run_id, cascade=True, idempotency_key=f"cancel {start.key}")
                    self.cancelled.add(run_id)
                self.pending.discard(f"cancel {start.key}")
            row = squid.runtime.queries.get_run(run_id) if f"replay {start.key}" in self.pending else None
            if row is not None and row.ended_at is not None:
                squid.replay(run_id, allow_irreversible=True, idempotency_key=f"replay {start.key}")
                self.pending.discard(f"replay {start.key}")

    def launch_last_processes(self) -> None:
        """Launch one process of each kind, to finish open runs."""
        self.launch("worker-last", partial(self.work, concurrency=4, keeps_house=False))
        self.launch("operator-last", self.operate)
        self.launch("recovery-last", self.recover)

    def launch_all_processes(self) -> None:
        """Launch all processes."""
        random, scenario = self.random, self.scenario
        workers = random.choice([1, 2, 2, 3])
        for number in range(workers):
            role = partial(self.work, concurrency=random.choice([1, 2, 4]), keeps_house=random.random() < 0.4)
            self.launch(f"worker{number}", role)
        clients = 2 if random.random() < 0.3 else 1
        for number in range(clients):
            starts = random.sample(list(scenario.starts), len(scenario.starts))
            self.pending |= {f"start client{number} {start.key}" for start in starts}
            self.launch(f"client{number}", _until_done(self, f"client{number}", partial(self.start, starts=starts)))
        for number in range(2 if random.random() < 0.3 else 1):
            if random.random() < 0.1:
                self.pending |= {f"pause operator{number}", f"resume operator{number}"}
            self.launch(f"operator{number}", self.operate)
        self.launch("recovery", self.recover)
        if random.random() < 0.3:
            self.launch("recovery-b", self.recover)
        if scenario.crons:
            if random.random() < 0.3:
                self.pending.add("outage")
            self.launch("scheduler", partial(self.tick, until=70.0))
        self.pending |= {f"cancel {start.key}" for start in scenario.starts if start.cancelled}
        self.pending |= {f"replay {start.key}" for start in scenario.starts if start.replayed}


def _until_done(state: ScheduleState, name: str, role: Callable[[Squid, str], None]) -> Callable[[Squid, str], None]:
    """Return a role that runs again after a crash, and not once it is done."""

    def play(squid: Squid, full: str) -> None:
        if any(command.startswith(f"start {name} ") for command in state.pending):
            role(squid, full)
        state.sleep(10**6)

    return play
