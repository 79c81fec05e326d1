"""A campaign: runs are started and worked on while faults come; when all have ended, the checker reads everything."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count, islice
from pathlib import Path

import psycopg

from examples.stack import Stack, StackError
from squid_dagster.journal import PostgresStorage
from squid_dagster.protocol.facts import AttemptClaimed
from tests.chaos import effects
from tests.chaos.checker.checker import Verdict, judge, judge_storage
from tests.chaos.checker.drains import failed_drains
from tests.chaos.checker.evidence import gather
from tests.chaos.earlier_release import check_out
from tests.chaos.processes import RoleProcesses
from tests.chaos.roles import LEASE, plan
from tests.chaos.servers.cluster import Cluster
from tests.chaos.servers.faults import WEIGHTS, Fault
from tests.chaos.workflows import TABLE
from tests.processes import REPOSITORY

Say = Callable[[str], None]

_SETTLE_SECONDS = 180.0  # for what is left when the faults are over
_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a campaign does."""

    runs: int
    seed: int
    workers: int = 3
    dagster: bool = True
    older: bool = True  # begin with workers of an earlier release, and upgrade under them
    longest: timedelta = timedelta(minutes=30)
    rest: tuple[float, float] = (0.3, 2.0)  # seconds between two faults of a kind
    faults: Mapping[Fault, int] | None = None  # how often each kind is drawn; None: all kinds
    each_once: bool = False  # the faults end when each has come once, in an order that the seed decides


@dataclass(slots=True)
class Outcome:
    """The result of a campaign."""

    verdict: Verdict
    kills: int
    db_faults: Counter[str]
    died: list[str]

    @property
    def well(self) -> bool:
        """Whether every promise was kept."""
        return not list(self.verdict) and not self.died

    def __str__(self) -> str:
        verdict = self.verdict
        word = "OK" if self.well else "FAILED"
        return (
            f"CHAOS {word}: runs={verdict.runs} kills={self.kills} db_faults={sum(self.db_faults.values())} "
            f"lost={len(verdict.lost)} doubled={len(verdict.doubled)} stuck={len(verdict.stuck)} died={len(self.died)}"
            + (f" wrong={len(verdict.wrong)}" if verdict.wrong else "")
        )


def chances(source: str, seed: int) -> Iterator[random.Random]:
    """Yield a random generator for each draw, so that one draw does not change the next."""
    return (random.Random(f"{source} {seed} {number}") for number in count())


def faults_of(plan: Plan) -> Iterator[tuple[Fault, random.Random]]:
    """Yield the faults of the database in the order that the seed decides, each with its own random generator."""
    weights = dict(plan.faults or WEIGHTS)
    order = random.Random(plan.seed).sample(list(weights), len(weights))
    draws = chances("database", plan.seed)
    if plan.each_once:
        yield from zip(order, draws, strict=False)
        return
    for chance in draws:
        yield chance.choices(list(weights), list(weights.values()))[0], chance


def _upgrade(cluster: Cluster, tree: Path) -> None:
    """Create or upgrade the schema by the code of a tree."""
    environment = {**os.environ, "SQUID_DATABASE_URL": cluster.url, "SQUID_SCHEMA": "", "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "tests.chaos.worker", "db", "upgrade"]
    subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True)


class Campaign:
    """One campaign in a folder of its own."""

    def __init__(self, plan: Plan, home: Path, say: Say) -> None:
        """Prepare; nothing is started."""
        self._plan, self._home, self._say = plan, home, say
        self._effects = home / "effects"
        self._over = threading.Event()  # no more faults
        self._began = time.monotonic()
        self.db_faults: Counter[str] = Counter()
        self._failed: list[str] = []  # in the campaign itself
        self._drains: dict[str, str] = {}  # drain runs that failed, and why

    def run(self) -> Outcome:
        """Run the campaign and return its outcome."""
        self._effects.touch(mode=0o666)
        with closing(Cluster(self._home)) as cluster:
            older = check_out(self._home) if self._plan.older else None
            _upgrade(cluster, older or REPOSITORY)
            with cluster.primary.connect() as connection:
                connection.execute(f"CREATE TABLE {TABLE} (key text, run_id text, n integer)")
            asked = self._plan
            processes = RoleProcesses(
                self._home, cluster.url, self._effects, workers=asked.workers, runs=asked.runs, drained=asked.dagster
            )
            try:
                if older is not None:
                    self._upgrade_under(cluster, processes, older)
                elif self._plan.older:
                    self._tell("without older code: git does not have it here")
                self._work(cluster, processes)
                verdict = self._check(cluster)
            finally:
                processes.abandon()
        drains = [f"drain run {run_id} failed: {error}" for run_id, error in self._drains.items()]
        kills = sum(processes.kills.values())
        return Outcome(verdict, kills, self.db_faults, [*processes.died, *self._failed, *drains])

    def _check(self, cluster: Cluster) -> Verdict:
        """Read everything that is left, past the proxy, and judge it; keep the journal if something is wrong."""
        with closing(PostgresStorage(cluster.primary.url)) as storage:
            evidence = gather(storage, self._effects, cluster.logs(), dict(plan(self._plan.runs)))
            claims = Counter(
                entry.fact.owner_id for entry in evidence.entries if isinstance(entry.fact, AttemptClaimed)
            )
            drains = [n for owner, n in claims.items() if owner.startswith("dagster:")]
            self._tell(f"{len(evidence.entries)} entries are read; {len(drains)} drain runs made {sum(drains)} claims")
            if self._plan.dagster and not drains:
                self._failed.append("the harness: no drain run of Dagster claimed anything")
            verdict = judge(evidence)
            verdict.wrong += judge_storage(storage, evidence.entries)
        if list(verdict):
            evidence.write(self._home / "journal.jsonl")
        self._tell("everything is checked")
        return verdict

    def _upgrade_under(self, cluster: Cluster, processes: RoleProcesses, older: Path) -> None:
        """Upgrade the schema while workers of the earlier release run, then replace them, one process after another."""
        draws = chances("older", self._plan.seed)
        processes.use(older)
        processes.start()
        for phase in range(len(processes.members) + 2):
            for chance in islice(draws, 3):
                time.sleep(chance.uniform(0.5, 1.0))
                processes.look()
                self._tell(f"{processes.kill(chance)} (older and newer code)")
            if phase == 0:
                _upgrade(cluster, REPOSITORY)
                self._tell("the schema is upgraded under workers of older code")
            elif phase <= len(processes.members):
                processes.use(REPOSITORY, processes.members[phase - 1].role)
        processes.look()

    def _work(self, cluster: Cluster, processes: RoleProcesses) -> None:
        processes.start()
        environment = {"SQUID_DATABASE_URL": cluster.url, "SQUID_SCHEMA": "", effects.VARIABLE: str(self._effects)}
        stack = Stack(self._home / "dagster", "tests.chaos.location", environment) if self._plan.dagster else None
        sources = [
            threading.Thread(target=self._guarded, args=(self._hit_processes, processes)),
            threading.Thread(target=self._guarded, args=(self._hit_database, cluster)),
        ]
        if stack is not None:
            stack.start("code", "daemon")
            sources.append(threading.Thread(target=self._guarded, args=(self._hit_dagster, stack, processes)))
        try:
            for source in sources:
                source.start()
            self._watch(cluster, processes, stack)
        finally:
            self._over.set()
            for source in sources:
                source.join()
            if stack is not None:
                self._note_dagster(stack)
                stack.close()
        processes.close()

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001  a harness that broke must be seen in the result
            self._failed.append(f"the harness: {work.__name__}: {type(error).__name__}: {error}")
            self._over.set()

    # --- faults -----------------------------------------------------------------------------------------------------

    def _rest(self, chance: random.Random) -> bool:
        """Wait between two faults; return whether there is to be another."""
        return not self._over.wait(chance.uniform(*self._plan.rest))

    def _hit_database(self, cluster: Cluster) -> None:
        for fault, chance in faults_of(self._plan):
            if not self._rest(chance):
                break
            try:
                done = fault(cluster, chance)
            except psycopg.Error as error:  # one of our own sessions was hit
                done = f"{fault.__name__} ({type(error).__name__})"
                cluster.heal()
            if done:
                self.db_faults[fault.__name__] += 1
                self._tell(done)
        self._over.set()

    def _hit_processes(self, processes: RoleProcesses) -> None:
        for chance in chances("processes", self._plan.seed):
            if not self._rest(chance):
                break
            processes.look()
            if chance.random() < 0.7:
                self._tell(processes.kill(chance))
            else:
                self._tell(processes.suspend(chance, chance.uniform(0.5, 2.5) * LEASE.total_seconds()))

    def _hit_dagster(self, stack: Stack, processes: RoleProcesses) -> None:
        for chance in chances("dagster", self._plan.seed):
            if self._over.wait(chance.uniform(20, 60)):
                break
            self._note_dagster(stack)
            if chance.random() < 0.3:
                self._suspend_dagster(stack, processes, chance)
                continue
            parts = chance.choice([("daemon",), ("code",), ("code", "daemon")])
            stack.kill(*parts)
            processes.kills["Dagster"] += 1
            event = f"SIGKILL Dagster's {' and '.join(parts)}"
            if len(parts) == 2 and chance.random() < 0.5:
                with suppress(FileNotFoundError):
                    stack.wipe()
                event += ", and its storage is deleted"
            self._tell(event)
            self._start_dagster(stack)
        self._start_dagster(stack)

    @staticmethod
    def _start_dagster(stack: Stack) -> None:
        """Start Dagster's parts that are not running; a start that fails on a busy machine is repeated from nothing."""
        for _ in range(3):
            with suppress(StackError):
                stack.start("code", "daemon")
                return
            stack.kill("code", "daemon")
        stack.start("code", "daemon")

    def _note_dagster(self, stack: Stack) -> None:
        """Record what has ended by itself: parts of Dagster, and drain runs."""
        self._failed += [f"Dagster's {name} ended by itself" for name in stack.ended()]
        for run_id, error in failed_drains(stack.home).items():
            self._drains.setdefault(run_id, error)

    def _suspend_dagster(self, stack: Stack, processes: RoleProcesses, chance: random.Random) -> None:
        """Suspend a part of Dagster, the code server with its run workers, for longer than a lease."""
        part = chance.choice(("daemon", "code"))
        group, seconds = stack.pid(part), chance.uniform(1.0, 2.5) * LEASE.total_seconds()
        os.killpg(group, signal.SIGSTOP)
        processes.kills["SIGSTOP of Dagster"] += 1
        self._tell(f"SIGSTOP Dagster's {part} for {seconds:.1f} s")
        self._over.wait(seconds)
        os.killpg(group, signal.SIGCONT)

    def _tell(self, done: str) -> None:
        self._say(f"{time.monotonic() - self._began:7.1f} s  {done}")

    # --- watching ---------------------------------------------------------------------------------------------------

    def _watch(self, cluster: Cluster, processes: RoleProcesses, stack: Stack | None) -> None:
        """Wait until all runs have ended; faults end then, or when it takes too long."""
        faults_end = self._began + self._plan.longest.total_seconds()
        ends: float | None = None
        shown = 0.0
        while True:
            processes.look()
            if ends is None and (self._over.is_set() or time.monotonic() > faults_end):
                self._over.set()
                ends = time.monotonic() + _SETTLE_SECONDS
                self._tell("no more faults")
            counts = self._counts(cluster)
            if counts is not None:
                started, left = counts
                done = "starter" in processes.ended and started >= self._plan.runs and left == 0
                if done and (ends is not None or not self._plan.each_once):
                    self._tell(f"all {started} runs have ended")
                    return
                if time.monotonic() - shown > 10:
                    shown = time.monotonic()
                    self._tell(f"-- {started} runs, {left} of them open")
            if ends is not None and time.monotonic() > ends:
                self._tell("not all runs have ended")
                return
            if ends is not None:
                processes.resume_all()
            time.sleep(_PAUSE_SECONDS)

    @staticmethod
    def _counts(cluster: Cluster) -> tuple[int, int] | None:
        """Return how many runs there are, and how many are open; None while the database cannot be asked."""
        try:
            with cluster.primary.connect() as connection:
                row = connection.execute(
                    "SELECT count(*), count(*) FILTER (WHERE terminal_status IS NULL) FROM squid.runs"
                ).fetchone()
        except (psycopg.Error, OSError):
            return None
        return (int(str(row[0])), int(str(row[1]))) if row is not None else None
