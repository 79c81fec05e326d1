"""The processes under chaos: workers, a starter and an operator. They are started again, and their ends are counted."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import effects
from tests.chaos.roles import DRAINED, GENTLE, LEASE, QUEUES
from tests.processes import REPOSITORY

SHIFT = "SQUID_CHAOS_CLOCK_HOURS"


@dataclass(slots=True)
class RoleProcess:
    """One role, and the process that plays it now."""

    role: str
    command: list[str]
    environment: dict[str, str]
    process: "subprocess.Popen[bytes] | None" = None
    tree: Path = REPOSITORY  # whose code it runs
    killed: bool = False  # by us
    stopped: bool = False  # by SIGSTOP


def _place(tree: Path) -> dict[str, str]:
    """Return the environment by which a process runs the code of a tree; older code is spared what it cannot do."""
    return {"PYTHONPATH": str(tree), GENTLE: "" if tree == REPOSITORY else "yes"}


class RoleProcesses:
    """All processes, and how they have ended."""

    def __init__(
        self, home: Path, url: str, effects_path: Path, *, workers: int, runs: int, drained: bool = False
    ) -> None:
        """Describe the processes; nothing is started. With `drained`, some of the runs are left to Dagster."""
        self._home, self._effects = home, effects_path
        self._lock = threading.Lock()
        self.kills: Counter[str] = Counter()
        self.died: list[str] = []  # ended by themselves, without a reason of ours
        self.ended: set[str] = set()  # roles that came to their end
        self._closed = False
        base = {
            **os.environ,
            "SQUID_DATABASE_URL": url,
            "SQUID_SCHEMA": "",
            effects.VARIABLE: str(effects_path),
            DRAINED: "yes" if drained else "",
        }
        queues = [part for queue in QUEUES for part in ("--queue", queue)]
        serve = [sys.executable, "-m", "tests.chaos.worker", "worker", "-m", "tests.chaos.workflows", *queues]
        serve += ["--lease", str(LEASE.total_seconds()), "--grace", "5", "--concurrency", "10"]
        self.members = [
            RoleProcess(f"worker-{i}", serve, {**base, SHIFT: str((0, 3, -3)[i % 3])}) for i in range(workers)
        ]
        act = [sys.executable, "-m", "tests.chaos.roles"]
        self.members += [
            RoleProcess("starter", [*act, "starter", str(runs)], base),
            RoleProcess("operator", [*act, "operator"], base),
        ]

    def start(self) -> None:
        """Start every role that has no process."""
        with self._lock:
            for member in self.members:
                if member.process is None and member.role not in self.ended and not self._closed:
                    with (self._home / f"{member.role}.log").open("ab") as log:
                        member.process = subprocess.Popen(
                            member.command,
                            cwd=member.tree,
                            env={**member.environment, **_place(member.tree)},
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,
                        )
                    member.killed = member.stopped = False

    def look(self) -> None:
        """Record the processes that have ended, and start others in their place."""
        with self._lock:
            for member in self.members:
                if member.process is not None and (code := member.process.poll()) is not None:
                    self._note_end(member, code)
                    self._end_group(member.process.pid)
                    member.process = None
        self.start()

    def _note_end(self, member: RoleProcess, code: int) -> None:
        assert member.process is not None
        if member.killed:
            return
        if member.role == "starter" and code == 0:
            if member.tree == REPOSITORY:  # else some are left
                self.ended.add("starter")
            return
        crashed = {line["pid"] for line in effects.read(self._effects) if line["kind"] == "crash"}
        if member.process.pid not in crashed and member.tree == REPOSITORY:  # older code has defects of its own
            self.died.append(f"{member.role} ended by itself with exit code {code}")

    @staticmethod
    def _end_group(group: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)  # what a step has forked

    def kill(self, chance: random.Random) -> str:
        """End one process by SIGKILL."""
        with self._lock:
            alive = [member for member in self.members if member.process is not None]
            if not alive:
                return "nothing to kill"
            member = chance.choice(alive)
            assert member.process is not None
            member.killed = True
            member.process.kill()
            member.process.wait()
        self.kills["SIGKILL"] += 1
        self.look()
        return f"SIGKILL {member.role}"

    def use(self, tree: Path, *roles: str) -> None:
        """Run these roles, or all, from the code of a tree; processes that run from another are killed."""
        with self._lock:
            for member in self.members:
                if (not roles or member.role in roles) and member.tree != tree:
                    member.tree = tree
                    if member.process is not None:
                        member.killed = True
                        member.process.kill()
                        member.process.wait()

    def suspend(self, chance: random.Random, seconds: float) -> str:
        """Suspend one process for a while, without waiting for it."""
        with self._lock:
            free = [member for member in self.members if member.process is not None and not member.stopped]
            if not free:
                return "nothing to suspend"
            member = chance.choice(free)
            assert member.process is not None
            member.stopped = True
            member.process.send_signal(signal.SIGSTOP)
            pid = member.process.pid
        self.kills["SIGSTOP"] += 1
        timer = threading.Timer(seconds, self._resume, (member, pid))
        timer.daemon = True
        timer.start()
        return f"SIGSTOP {member.role} for {seconds:.1f} s"

    def _resume(self, member: RoleProcess, pid: int) -> None:
        with self._lock:
            if member.process is not None and member.process.pid == pid:
                member.process.send_signal(signal.SIGCONT)
                member.stopped = False

    def resume_all(self) -> None:
        """Resume all suspended processes."""
        for member in self.members:
            if member.stopped and member.process is not None:
                self._resume(member, member.process.pid)

    def close(self) -> None:
        """Stop everything: workers by SIGTERM, whose exit code must then be 0; whatever is left by SIGKILL."""
        with self._lock:
            self._closed = True
        self.resume_all()
        self.look()
        with self._lock:
            for member in self.members:
                if member.process is None:
                    continue
                member.killed = not member.role.startswith("worker")
                member.process.send_signal(signal.SIGTERM)
            for member in self.members:
                if member.process is None:
                    continue
                try:
                    code = member.process.wait(30)
                except subprocess.TimeoutExpired:
                    code = -signal.SIGALRM
                if (
                    code not in (0, -signal.SIGTERM) and not member.killed
                ):  # it was signalled before its handler was installed
                    self.died.append(f"{member.role} ended with exit code {code} when it was asked to stop")
                self._end_group(member.process.pid)
                member.process.wait()
                member.process = None

    def abandon(self) -> None:
        """End everything by SIGKILL, for when something went wrong on our own side."""
        for member in self.members:
            if member.process is not None:
                self._end_group(member.process.pid)
                member.process.wait()
                member.process = None
